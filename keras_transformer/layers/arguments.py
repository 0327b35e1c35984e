"""The arguments of a layer's call: by name, and none that it would ignore."""

import inspect
from collections.abc import Callable
from typing import Any

import keras


def named_arguments(call: Callable, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name, those with defaults too.

    For `compute_output_spec`, which Keras gives them as the caller did, by place or by name.
    """
    bound = inspect.signature(call).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


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
