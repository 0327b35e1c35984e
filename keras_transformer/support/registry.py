"""Registry through which a module calls functions of modules that import it.

Users look for `Backbone.from_preset`, but its implementation is in `checkpoints`, which imports
`Backbone`. So `checkpoints` binds its functions here when the package is imported, and `Backbone`
looks them up when they are called: there is no circular import.
"""

from collections.abc import Callable
from typing import Any

_functions: dict[str, Callable[..., Any]] = {}


def bind(**functions: Callable[..., Any]) -> None:
    """Register functions by name."""
    _functions.update(functions)


def bound(name: str) -> Callable[..., Any]:
    """Return the function that is registered by this name."""
    return _functions[name]
