"""Progress bars of work that may take long."""

import sys
from collections.abc import Collection, Iterator
from typing import TypeVar

_T = TypeVar("_T")
# Shorter work has no bar.
SECONDS_UNTIL_BAR = 2.0


def shows_bars() -> bool:
    """Return whether someone watches: standard error is a terminal, or a notebook runs."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


def progress(values: Collection[_T], what: str, unit: str) -> Iterator[_T]:
    """Yield values, with a progress bar if they take more than two seconds and someone watches.

    The bar is removed at the end.

    Args:
        values: what is worked on, one after the other.
        what: what is being done, such as `"Loading"`.
        unit: what a value is, such as `"tensor"`.
    """
    if not shows_bars():
        yield from values
        return
    from tqdm.auto import tqdm

    yield from tqdm(values, desc=what, unit=unit, delay=SECONDS_UNTIL_BAR, leave=False)
