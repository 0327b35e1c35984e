"""Arguments of layers: checks of options and calls, parts of a config, initial weights."""

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.config.flat import FIELDS
from keras_transformer.config.options import Part, check_option
from keras_transformer.kernels.programs import host_zeros
from keras_transformer.support.checking import describe
from keras_transformer.support.foreign_names import refuse_argument

# Axes of the call arguments of an attention other than its states, after the batch axis.
_AXES = {
    **dict.fromkeys(("mask", "query_mask", "inputs_mask"), ("tokens",)),
    **dict.fromkeys(("query_positions", "query_pack", "prefix", "prefix_start"), ("queries",)),
    **dict.fromkeys(("padding", "key_positions", "key_pack"), ("keys",)),
    **dict.fromkeys(("value_mask", "encoder_states_mask"), ("keys",)),
    **dict.fromkeys(("explicit", "buckets"), ("queries", "keys")),
    "global_positions": ("count",),
    "bias": ("heads", "queries", "keys"),
}


def named_arguments(call: Callable, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by name, including defaults.

    `compute_output_spec` needs this because Keras passes the arguments on as the caller gave them,
    by position or by name.
    """
    bound = inspect.signature(call).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


@functools.cache
def _names_of(layer: type) -> tuple[str, ...]:
    return tuple(inspect.signature(layer.call).parameters)[1:]


class ChecksCall:
    """Mixin for a layer that checks the arguments of its calls at the door, also in graphs.

    `call` itself does not check what `check_call` has checked. A layer or model that holds such a
    layer, and has checked the arguments or made them itself, calls it by `call_unchecked`.

    Attributes:
        axes: for each array of the call, the names of its axes. A name stands for one size
            throughout a call; an axis such as `"batch or 1"` may also have size 1. A leading `...`
            stands for one or more axes of any size.
        fixed: sizes of axes that are known once the layer is built, by name.
    """

    axes: ClassVar[dict[str, tuple]] = {}
    fixed: Mapping[str, int] = MappingProxyType({})

    def __call__(self, *args, **kwargs):
        known = _names_of(type(self))
        for name in kwargs:
            if name not in known and name != "training":  # Keras passes `training` to any layer
                refuse_argument(type(self).__name__, name, known)
        self.check_call(dict(zip(known, args, strict=False)) | kwargs)
        return super().__call__(*args, **kwargs)

    def check_call(self, given: dict[str, Any]) -> None:
        """Raise ValueError if the arguments of a call do not fit the layer or each other.

        Here: if an array does not have the axes that `axes` declares.

        Args:
            given: the arguments that the caller gave, by name.
        """
        check_axes(type(self).__name__, self.axes, self.fixed, given)


def call_unchecked(layer: keras.layers.Layer, *args, **kwargs) -> Any:
    """Call a layer as Keras does, without the checks of `ChecksCall`.

    Args:
        layer: a part of the caller, which has checked the arguments or made them itself.
        *args: the arguments of the call by position.
        **kwargs: the arguments of the call by name.

    Returns:
        The result of the layer.

    Example:
    ```python
    from keras_transformer.layers import FeedForward
    from keras_transformer.layers.arguments import call_unchecked
    from keras import ops

    layer, x = FeedForward(8), ops.ones((1, 2, 4))
    assert ops.all(call_unchecked(layer, x) == layer(x))
    ```
    """
    return keras.layers.Layer.__call__(layer, *args, **kwargs)


def check_axes(layer: str, axes: dict, fixed: Mapping[str, int], given: dict[str, Any]) -> None:
    """Raise ValueError if arrays lack the named axes, or disagree about the size of one.

    Args:
        layer: name of the layer for the message.
        axes: names of the axes of each array, as in `ChecksCall`.
        fixed: known sizes of axes, as in `ChecksCall`.
        given: arrays by name; missing ones and None are skipped.
    """
    sizes: dict[str, int] = dict(fixed)
    for name, names in axes.items():
        shape = known_shape(given.get(name))
        if shape is None:
            continue
        extra = max(len(shape) - len(names) + 1, 1)
        shown = names if names[0] is not ... else (*["..."] * extra, *names[1:])
        needed = tuple(sizes.get(axis.removesuffix(" or 1"), axis) for axis in shown)
        given_shape = tuple(
            None if size == 1 and axis.endswith(" or 1") else size
            for size, axis in itertools.zip_longest(shape, shown[: len(shape)], fillvalue="")
        )
        if not agree(given_shape, needed):
            shown = needed if names[0] is not ... else ("...", *needed[extra:])
            raise ValueError(
                f"`{name}` of {layer} must be of shape {show_shape(shown)}, received "
                f"{show_shape(shape)}."
            )
        for axis, size in zip(shown, given_shape, strict=True):
            if axis != "..." and isinstance(size, int):
                sizes.setdefault(axis.removesuffix(" or 1"), size)


def options_of(layer: type) -> tuple[str, ...]:
    """Return the names of the arguments in the signature of a layer's constructor."""
    stated = list(inspect.signature(layer.__init__).parameters.values())[1:]
    return tuple(p.name for p in stated if p.kind is not inspect.Parameter.VAR_KEYWORD)


class SavesArguments:
    """Mixin for a layer whose `get_config` returns the arguments of its constructor.

    Keras does this by itself only if all arguments are numbers and strings. Here they may also be
    functions, layers, initializers and dicts. Each option is checked by the rule of the
    `TransformerConfig` option of the same name.

    Attributes:
        option_rules: for an option whose name differs from the config's, the config's name; or a
            function of the option's name and value that returns the value or raises ValueError.
    """

    option_rules: ClassVar[dict[str, str | Callable]] = {}

    def __new__(cls, *args, **kwargs):
        layer = super().__new__(cls, *args, **kwargs)
        given = named_arguments(cls.__init__, (layer, *args), kwargs)
        given.pop("self")
        given |= given.pop("kwargs", {})
        given = checked_options(cls, given)
        # Not a dict: Keras would track the layers in it, and save them under other names than the
        # names of a loaded layer.
        object.__setattr__(layer, "_given", MappingProxyType(given))
        return layer

    def get_config(self) -> dict[str, Any]:
        given = {name: _serialized(value) for name, value in self._given.items()}
        return {**given, **super().get_config()}


# Options that may be functions or layers; each layer looks these up itself.
FUNCTIONS = frozenset({"activation", "convolution_activation", "score"})


@functools.cache
def _defaults_of(layer: type) -> dict[str, Any]:
    stated = inspect.signature(layer.__init__).parameters.values()
    return {p.name: p.default for p in stated}


def checked_options(layer: type, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a layer, each checked like the same option of a config.

    Args:
        layer: class of the layer, which may have `option_rules`, see `SavesArguments`.
        given: the options by name.

    Raises:
        ValueError: if an option has the wrong type or is out of range.
    """
    defaults, checked = _defaults_of(layer), dict(given)
    for name, value in given.items():
        if value is None and defaults.get(name) is None:
            continue
        if isinstance(value, Part | dict) or (name in FUNCTIONS and callable(value)):
            continue  # a part of a config, or a saved part, layer or function
        rule = layer.option_rules.get(name, name)
        if callable(rule):
            checked[name] = rule(name, value)
        elif rule in FIELDS:
            # Each layer checks the names of its choices itself.
            checked[name] = check_option(name, value, FIELDS[rule], any_choice=True)
    return checked


def _serialized(value: Any) -> Any:
    if isinstance(value, Part):
        value = value.to_dict()
    if isinstance(value, dict):
        return {name: _serialized(each) for name, each in value.items()}
    return keras.saving.serialize_keras_object(value) if callable(value) else value


def deserialized(value: Any) -> Any:
    """Deserialize a function or layer from a layer's config; return any other value unchanged."""
    return keras.saving.deserialize_keras_object(value) if isinstance(value, dict) else value


def own_layer(value: Any) -> Any:
    """Return a function, or a layer that does not belong to another layer yet.

    A file stores the weights of each layer in one place, so two attention layers cannot share a
    layer: the second one gets a copy, with the same weights if they have been created already.

    Args:
        value: a function, a layer, the config of either, or a name, which is returned unchanged.
    """
    value = deserialized(value)
    if not isinstance(value, keras.layers.Layer):
        return value
    if getattr(value, "_has_owner", False):
        copied = type(value).from_config(value.get_config())
        if value.built:
            copied.build_from_config(value.get_build_config())
            copied.set_weights(value.get_weights())
        value = copied
    value._has_owner = True
    return value


def refuse_unused(reason: str, **arguments: Any) -> None:
    """Raise ValueError if one of the arguments is given, since it would be ignored.

    Args:
        reason: why it would be ignored and what to do, a sentence for the message.
        **arguments: the arguments by name, None if not given.

    Raises:
        ValueError: if any argument is given; the message names all that are.

    Example:
    ```python
    from keras_transformer.layers.arguments import refuse_unused

    refuse_unused("there is no `value`.", value_mask=None)
    ```
    """
    given = [f"`{name}`" for name, value in arguments.items() if value is not None]
    if given:
        raise ValueError(f"{' and '.join(given)} would be ignored: {reason}")


def pack_outputs(output: Any, *extra: Any) -> Any:
    """Return the output of a call, in a tuple with each of `extra` that is not None."""
    given = tuple(x for x in extra if x is not None)
    return (output, *given) if given else output


def check_has_keys(layer: str, **states: Any) -> None:
    """Raise ValueError if states `(batch, length, dim)` that are attended to have no tokens.

    Args:
        layer: name of the layer for the message.
        **states: the states by name, or None.
    """
    for name, given in states.items():
        shape = known_shape(given)
        if shape is not None and isinstance(shape[1], int) and shape[1] == 0:
            raise ValueError(
                f"`{name}` of {layer} has no keys to attend to: its shape is {show_shape(shape)}."
            )


def check_shapes(queries: Any, keys: Any, **arrays: Any) -> None:
    """Raise ValueError if arrays do not fit the states that they are given with.

    The batch axis may have size 1. So may each axis of an array over pairs of tokens.

    Args:
        queries: query states `(batch, length, dim)`.
        keys: key states `(batch, key_length, dim)`. None with a cache, whose slots the masks then
            cover.
        **arrays: the arrays given with the states, by name, or None.
    """
    batch, length, *_ = (*(known_shape(queries) or ()), None, None)
    _, key_length, *_ = (*(known_shape(keys) or ()), None, None)
    tokens = None if keys is None else length
    sizes = {"batch": batch, "queries": length, "keys": key_length, "tokens": tokens}
    for name, array in arrays.items():
        shape, axes = known_shape(array), ("batch", *_AXES[name])
        if shape is None:
            continue
        if name in ("query_positions", "key_positions") and len(shape) == 3:
            shape = shape[:2]  # places on a grid, see `GridRotaryEmbedding`
        if name == "explicit" and len(shape) == 4:
            axes = ("batch", "heads", "queries", "keys")
        if name == "query_positions" and len(shape) == 3:
            axes = ("batch", "queries", "position_axes")
        needed = tuple(axis if sizes.get(axis) is None else sizes[axis] for axis in axes)
        ones = 1 if len(axes) == 2 else len(axes)  # axes whose size may be 1
        given = [None if size == 1 and i < ones else size for i, size in enumerate(shape)]
        if not agree(tuple(given), needed):
            raise ValueError(
                f"`{name}` must be of shape {show_shape(needed)}, received {show_shape(shape)}."
            )


def check_range(name: str, array: Any, least: int, most: int, known: str) -> None:
    """Check that an array has integers from `least` to `most`.

    `known` begins the part of the message that gives the range, as in "the model has the segments".
    """
    if array.dtype.kind not in "iu":
        raise ValueError(f"`{name}` must hold integers, received {array.dtype}.")
    if array.size and not (int(array.min()) >= least and int(array.max()) <= most):
        raise ValueError(
            f"`{name}` holds numbers from {int(array.min())} to {int(array.max())}, but {known} "
            f"{least} to {most}."
        )


def known_shape(array: Any) -> tuple | None:
    """Return the shape of an array or a tensor, or None if it is unknown."""
    try:
        return tuple(array.shape)
    except (AttributeError, ValueError):
        return None


def show_shape(shape: tuple) -> str:
    """Format a shape for messages. A size may be an int, a name, or None if it is unknown."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def agree(shape: tuple, like: tuple, rows_may_be_one: bool = False) -> bool:
    """Return whether two shapes are equal in all sizes that are known as ints.

    With `rows_may_be_one`, a first size of 1 in `shape` agrees with any number of rows.
    """
    if len(shape) != len(like):
        return False
    pairs = list(zip(shape, like, strict=True))
    if rows_may_be_one and shape[0] == 1:
        del pairs[0]
    return all(one == two for one, two in pairs if isinstance(one, int) and isinstance(two, int))


Known = TypeVar("Known", bound=Part)


def layer_of(part: Part) -> type:
    """Return the class of the layer that the type of a part names."""
    module, name = part.layer.split(":")
    return getattr(importlib.import_module(module), name)


def part_of(name: str, value: Any, known: type[Known]) -> Known:
    """Return the part that a layer was given, as such or as the dict in a saved layer.

    Args:
        name: name of the argument in messages.
        value: the part, or a dict of its values.
        known: class of the part.

    Raises:
        ValueError: if it is neither, or a value is invalid.
    """
    if isinstance(value, Mapping):
        return known.from_dict(_with_functions(value))
    if not isinstance(value, known):
        raise ValueError(
            f"`{name}` must be a `config.{known.__name__}`, received {describe(value)}."
        )
    return value


def _with_functions(value: Any) -> Any:
    """Restore the functions and layers among the values of a saved part."""
    if not isinstance(value, Mapping):
        return value
    return {
        name: deserialized(each) if name in FUNCTIONS else _with_functions(each)
        for name, each in value.items()
    }


@keras.saving.register_keras_serializable(package="keras_transformer")
class HostZeros(keras.initializers.Zeros):
    """Zeros for weights that are about to be loaded, for which random numbers would take seconds.

    The zeros are made on the host: on a device each shape would need a compiled program. On PyTorch
    and JAX on a CPU they take no memory before something is written in their place.
    """

    def __call__(self, shape, dtype=None):
        if keras.distribution.distribution() is not None:
            return super().__call__(shape, dtype)
        return host_zeros(shape, keras.backend.standardize_dtype(dtype))


def initial_stack(initializer: keras.initializers.Initializer, shape, dtype=None):
    """Return initial values of several kernels of one size, in one array `(number, in, out)`."""
    values = initializer(shape, dtype=dtype)
    # Keras takes the first axis for the width of a convolution and multiplies the number of inputs
    # by it.
    scaled = isinstance(initializer, keras.initializers.VarianceScaling)
    return values * shape[0] ** 0.5 if scaled else values


def kernel_initializer(
    config: TransformerConfig, initializer=None
) -> keras.initializers.Initializer:
    """Return the initializer of projections: the given one, or else the config's."""
    if initializer is not None:
        return keras.initializers.get(initializer)
    stddev = config.last_side.initializer_range
    if stddev is None:
        return keras.initializers.GlorotUniform()
    return keras.initializers.TruncatedNormal(stddev=stddev)


def embedding_initializer(
    config: TransformerConfig, initializer=None
) -> keras.initializers.Initializer:
    """Return the initializer of embeddings: the given one, or else the config's."""
    if initializer is not None:
        return keras.initializers.get(initializer)
    side = config.last_side
    stddev = side.initializer_range or side.hidden_dim**-0.5
    return keras.initializers.RandomNormal(stddev=stddev)
