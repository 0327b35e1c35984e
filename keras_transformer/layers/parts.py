"""Config parts as arguments of layers, and the layer class of a part."""

import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

from keras_transformer.config.options import Part
from keras_transformer.layers.arguments import FUNCTIONS, deserialized
from keras_transformer.support.checking import describe

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
