"""What a class of a lower floor offers and a higher floor does: bound when the package is imported.

`Backbone.from_preset` is there to be found, and what it needs is in `checkpoints`, which knows
backbones. So `checkpoints` binds its functions here, and nobody imports upward.
"""

from collections.abc import Callable
from typing import Any

_functions: dict[str, Callable[..., Any]] = {}


def bind(**functions: Callable[..., Any]) -> None:
    """Gives functions to the floors below, by name."""
    _functions.update(functions)


def bound(name: str) -> Callable[..., Any]:
    """The function of a higher floor that has this name."""
    return _functions[name]
