"""Preparation of data by all processes of a run together: each does a part, once."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer.distribution.processes import (
    gather_arrays,
    gather_values,
    process_count,
    process_index,
)

# Whether the processes share the work.
TOGETHER = contextvars.ContextVar("together", default=False)


@contextlib.contextmanager
def prepared_together() -> Iterator[None]:
    """Let the processes share the work of a dataset that all of them make in this context."""
    token = TOGETHER.set(True)
    try:
        yield
    finally:
        TOGETHER.reset(token)


def workers() -> tuple[int, int]:
    """Return the number of this process among those that share the work, and how many do."""
    return (process_index(), process_count()) if TOGETHER.get() else (0, 1)


def part_of(rows: int) -> range:
    """Return which of some rows this process prepares; all of them unless others share the work."""
    index, count = workers()
    return range(rows * index // count, rows * (index + 1) // count)


def agreed(work: Callable[[], Any]) -> Any:
    """Run a process's part of the work, and raise an error in all processes if one fails.

    Otherwise the others would wait forever for the one that failed.
    """
    if workers()[1] == 1:
        return work()
    try:
        result, error = work(), None
    except Exception as raised:  # of any kind: the others wait
        result, error = None, raised
    found = gather_values(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for index, message in enumerate(found):
        if message is not None:
            raise ValueError(f"Process {index} could not prepare its part of the data: {message}")
    return result


def all_rows(rows: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Return arrays with the parts of all processes, each end to end in the processes' order."""
    return rows if workers()[1] == 1 else [np.concatenate(gather_arrays(each)) for each in rows]
