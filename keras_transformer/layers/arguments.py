"""Checks of a layer's options and of the arguments of its calls: names, ranges and shapes."""

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import keras

from keras_transformer.checking import agree, known_shape, show_shape
from keras_transformer.config import TransformerConfig
from keras_transformer.config_checks import check_option
from keras_transformer.kerashub_names import refuse_argument

# The axes of what an attention is given beside its states, behind that of the batch.
_AXES = {
    **dict.fromkeys(("mask", "query_mask", "inputs_mask"), ("tokens",)),
    **dict.fromkeys(("query_positions", "query_pack", "prefix"), ("queries",)),
    **dict.fromkeys(("padding", "key_positions", "key_pack"), ("keys",)),
    **dict.fromkeys(("value_mask", "encoder_states_mask"), ("keys",)),
    **dict.fromkeys(("explicit", "buckets"), ("queries", "keys")),
    "global_positions": ("count",),
    "bias": ("heads", "queries", "keys"),
}


def named_arguments(call: Callable, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name, those with defaults too.

    For `compute_output_spec`, which Keras gives them as the caller did, by place or by name.
    """
    bound = inspect.signature(call).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


@functools.cache
def _names_of(layer: type) -> tuple[str, ...]:
    return tuple(inspect.signature(layer.call).parameters)[1:]


class ChecksCall:
    """Mixin for a layer that checks the names and shapes of its call's arguments, in graphs too.

    Attributes:
        axes: for each array of the call, the names of its axes. A name stands for
            one size in a call; that of an axis such as `"batch or 1"` may be 1 too. `...` in front
            stands for any axes, at least one.
        fixed: sizes of axes that are known once the layer is built, by name.
    """

    axes: ClassVar[dict[str, tuple]] = {}
    fixed: Mapping[str, int] = MappingProxyType({})

    def __call__(self, *args, **kwargs):
        known = _names_of(type(self))
        for name in kwargs:
            if name not in known and name != "training":  # which Keras gives to any layer
                refuse_argument(type(self).__name__, name, known)
        self.check_axes(dict(zip(known, args, strict=False)) | kwargs)
        return super().__call__(*args, **kwargs)

    def check_axes(self, given: dict[str, Any]) -> None:
        """Raise ValueError if an array of a call has not the axes that `axes` tells.

        Args:
            given: the arguments by name.
        """
        check_axes(type(self).__name__, self.axes, self.fixed, given)


def check_axes(layer: str, axes: dict, fixed: Mapping[str, int], given: dict[str, Any]) -> None:
    """Raise ValueError if arrays have not the named axes, or disagree in the size of one.

    Args:
        layer: name of the layer for the message.
        axes: names of the axes of each array, as in `ChecksCall`.
        fixed: sizes that are known, as there.
        given: arrays by name; those that are missing or None are passed over.
    """
    sizes: dict[str, int] = dict(fixed)
    for name, names in axes.items():
        shape = known_shape(given.get(name))
        if shape is None:
            continue
        further = max(len(shape) - len(names) + 1, 1)
        shown = names if names[0] is not ... else (*["..."] * further, *names[1:])
        needed = tuple(sizes.get(axis.removesuffix(" or 1"), axis) for axis in shown)
        given_shape = tuple(
            None if size == 1 and axis.endswith(" or 1") else size
            for size, axis in itertools.zip_longest(shape, shown[: len(shape)], fillvalue="")
        )
        if not agree(given_shape, needed):
            shown = needed if names[0] is not ... else ("...", *needed[further:])
            raise ValueError(
                f"`{name}` of {layer} must be of shape {show_shape(shown)}, received "
                f"{show_shape(shape)}."
            )
        for axis, size in zip(shown, given_shape, strict=True):
            if axis != "..." and isinstance(size, int):
                sizes.setdefault(axis.removesuffix(" or 1"), size)


def options_of(layer: type) -> tuple[str, ...]:
    """The names of the arguments that the constructor of a layer states."""
    stated = list(inspect.signature(layer.__init__).parameters.values())[1:]
    return tuple(p.name for p in stated if p.kind is not inspect.Parameter.VAR_KEYWORD)


class SavesArguments:
    """Mixin for a layer whose config is what its constructor was given.

    Keras does so by itself where all arguments are numbers and texts. Here they may also be
    functions, layers, initializers and dicts. An option must be as the config's option of this
    name says.

    Attributes:
        option_rules: for an option of another name than the config's, that name; or a function of
            the option's name and value that returns the value or raises ValueError.
    """

    option_rules: ClassVar[dict[str, str | Callable]] = {}

    def __new__(cls, *args, **kwargs):
        layer = super().__new__(cls, *args, **kwargs)
        given = named_arguments(cls.__init__, (layer, *args), kwargs)
        given.pop("self")
        given |= given.pop("kwargs", {})
        given = checked_options(cls, given)
        # No dict: Keras would track layers in it, and write them to a file under other names than
        # those of a loaded layer.
        object.__setattr__(layer, "_given", MappingProxyType(given))
        return layer

    def get_config(self) -> dict[str, Any]:
        given = {name: _serialized(value) for name, value in self._given.items()}
        return {**given, **super().get_config()}


# Options that may be functions or layers, which a layer looks up by itself.
_FUNCTIONS = frozenset({"activation", "convolution_activation", "score"})
_OF_CONFIG = {field.name: field for field in dataclasses.fields(TransformerConfig)}


@functools.cache
def _defaults_of(layer: type) -> dict[str, Any]:
    stated = inspect.signature(layer.__init__).parameters.values()
    return {p.name: p.default for p in stated}


def checked_options(layer: type, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a layer, each checked as the same option of a config is.

    Args:
        layer: class of the layer, which may have `option_rules`, see `SavesArguments`.
        given: the options by name.

    Raises:
        ValueError: if one has another type or is out of range.
    """
    defaults, checked = _defaults_of(layer), dict(given)
    for name, value in given.items():
        if value is None and defaults.get(name) is None:
            continue
        if name in _FUNCTIONS and (callable(value) or isinstance(value, dict)):
            continue
        rule = layer.option_rules.get(name, name)
        if callable(rule):
            checked[name] = rule(name, value)
        elif rule in _OF_CONFIG:
            # A layer names its choices by itself.
            checked[name] = check_option(name, value, _OF_CONFIG[rule], any_choice=True)
    return checked


def _serialized(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(value)
    return keras.saving.serialize_keras_object(value) if callable(value) else value


def deserialized(value: Any) -> Any:
    """A function or a layer as the config of a layer has it, or a value as it is."""
    return keras.saving.deserialize_keras_object(value) if isinstance(value, dict) else value


def own_layer(value: Any) -> Any:
    """Return a function, or a layer that no other layer here has yet.

    A file keeps the weights of each layer in one place, so two attentions cannot share a layer: the
    second one gets a copy, of the same weights where they are made already.

    Args:
        value: a function, a layer, the config of either, or a name, which is returned as it is.
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
    """ValueError if one of the arguments is given, since it would be ignored.

    Args:
        reason: why it would, and what to do: a sentence for the message.
        **arguments: by name, None where not given.

    Raises:
        ValueError: with the names of those that are given.

    Example:
    ```python
    from keras_transformer.layers.arguments import refuse_unused

    refuse_unused("there is no `value`.", value_mask=None)
    ```
    """
    given = [f"`{name}`" for name, value in arguments.items() if value is not None]
    if given:
        raise ValueError(f"{' and '.join(given)} would be ignored: {reason}")


def with_further(output: Any, *further: Any) -> Any:
    """What a call returns: the output, in a tuple with those of `further` that are not None."""
    given = tuple(x for x in further if x is not None)
    return (output, *given) if given else output


def asked_further(scores: bool, projections: bool) -> tuple[dict[str, bool], list[dict]]:
    """What attention is asked for beside its states, and a dict for each that is wanted."""
    asked = {"return_attention_scores": scores, "return_projections": projections}
    return asked, [{} for wanted in asked.values() if wanted]


def put_aside(result: Any, side: str, further: list[dict]) -> Any:
    """The output of what `with_further` returned; the rest goes into dicts, by the side."""
    if not further:
        return result
    output, *rest = result
    for each, given in zip(further, rest, strict=True):
        each[side] = given
    return output


def check_shapes(queries: Any, keys: Any, **arrays: Any) -> None:
    """ValueError for arrays that do not fit the states that they are given with.

    One row may stand for all, and of pairs of tokens one on each axis.

    Args:
        queries: States `(batch, length, dim)`.
        keys: Those that are attended to. None with a cache: masks are then of its slots.
        **arrays: What is given with them, by name, or None.
    """
    batch, length, *_ = (*(known_shape(queries) or ()), None, None)
    _, key_length, *_ = (*(known_shape(keys) or ()), None, None)
    tokens = None if keys is None else length
    sizes = {"batch": batch, "queries": length, "keys": key_length, "tokens": tokens}
    for name, array in arrays.items():
        shape, axes = known_shape(array), ("batch", *_AXES[name])
        if shape is None:
            continue
        if name == "explicit" and len(shape) == 4:
            axes = ("batch", "heads", "queries", "keys")
        needed = tuple(axis if sizes.get(axis) is None else sizes[axis] for axis in axes)
        ones = 1 if len(axes) == 2 else len(axes)  # axes whose size may be 1
        given = [None if size == 1 and i < ones else size for i, size in enumerate(shape)]
        if not agree(tuple(given), needed):
            raise ValueError(
                f"`{name}` must be of shape {show_shape(needed)}, received {show_shape(shape)}."
            )
