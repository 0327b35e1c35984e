"""Former public names, which still work and say the new one."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.support.foreign_names import missing


class FormerName:
    """A former name of an attribute, which gives the attribute and a DeprecationWarning.

    Args:
        old: the former name, to which this is assigned in a class.
        new: name of the attribute.
    """

    def __init__(self, old: str, new: str):
        self.old, self.new = old, new

    def __get__(self, instance: Any, owner: type) -> Any:
        _warn(f"{owner.__name__}.{self.old}", f"{owner.__name__}.{self.new}")
        return getattr(owner if instance is None else instance, self.new)


def renamed(module: str, name: str, former: Mapping[str, str], names: Sequence[str]) -> Any:
    """Return the object that had the name `name` in a module, with a DeprecationWarning.

    Args:
        module: name of the module.
        name: the name that was looked up.
        former: former names and the present ones.
        names: names that the module exports, for the error.

    Raises:
        AttributeError: if `name` is not among the former names either.
    """
    if name not in former:
        raise missing(module, name, names)
    _warn(f"{module}.{name}", f"{module}.{former[name]}")
    return getattr(sys.modules[module], former[name])


def _warn(old: str, new: str) -> None:
    warnings.warn(f"`{old}` is now `{new}`.", DeprecationWarning, stacklevel=3)
