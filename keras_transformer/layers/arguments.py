"""The arguments of a layer's call: by name, of shapes that fit, and none that it would ignore."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.checking import agree, known_shape, show_shape
from keras_transformer.kerashub_names import refuse_argument

# The axes of what an attention is given beside its states, behind that of the batch.
_AXES = {
    **dict.fromkeys(("mask", "query_mask", "inputs_mask"), ("tokens",)),
    **dict.fromkeys(("query_positions", "query_pack", "prefix"), ("queries",)),
    **dict.fromkeys(("padding", "key_positions", "key_pack"), ("keys",)),
    **dict.fromkeys(("value_mask", "encoder_states_mask"), ("keys",)),
    "explicit": ("queries", "keys"),
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


class NamesArguments:
    """Mixin for a layer that answers arguments of other libraries' calls with its own."""

    def __call__(self, *args, **kwargs):
        known = _names_of(type(self))
        for name in kwargs:
            if name not in known:
                refuse_argument(type(self).__name__, name, known)
        return super().__call__(*args, **kwargs)


def options_of(layer: type) -> tuple[str, ...]:
    """The names of the arguments that the constructor of a layer states."""
    stated = list(inspect.signature(layer.__init__).parameters.values())[1:]
    return tuple(p.name for p in stated if p.kind is not inspect.Parameter.VAR_KEYWORD)


class SavesArguments:
    """Mixin for a layer whose config is what its constructor was given.

    Keras does so by itself where all arguments are numbers and texts. Here they may also be
    functions, layers, initializers and dicts.
    """

    def __new__(cls, *args, **kwargs):
        layer = super().__new__(cls, *args, **kwargs)
        given = named_arguments(cls.__init__, (layer, *args), kwargs)
        given.pop("self")
        given |= given.pop("kwargs", {})
        object.__setattr__(layer, "_given", given)  # Keras would track what is in it.
        return layer

    def get_config(self) -> dict[str, Any]:
        given = {name: _serialized(value) for name, value in self._given.items()}
        return {**given, **super().get_config()}


def _serialized(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(value)
    return keras.saving.serialize_keras_object(value) if callable(value) else value


def deserialized(value: Any) -> Any:
    """A function or a layer as the config of a layer has it, or a value as it is."""
    return keras.saving.deserialize_keras_object(value) if isinstance(value, dict) else value


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
