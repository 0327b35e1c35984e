"""Checks of the values that rules are given."""

import math
import operator

import numpy as np


def number(name: str, value) -> float:
    """`value`, a finite number."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise ValueError(f"`{name}` must be a finite number, received {value!r}.")
    return float(value)


def count(name: str, value) -> int:
    """`value`, an integer of at least 0."""
    try:
        found = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = -1
    if found < 0:
        raise ValueError(f"`{name}` must be an integer of at least 0, received {value!r}.")
    return found


def ids(name: str, values) -> tuple[int, ...]:
    """`values`, a sequence of token ids."""
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise ValueError(f"`{name}` must be a sequence of token ids, received {values!r}.")
    return tuple(count(f"{name}[{i}]", value) for i, value in enumerate(values))


def words(name: str, values) -> tuple[tuple[int, ...], ...]:
    """`values`, sequences of token ids that are not empty."""
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise ValueError(f"`{name}` must be sequences of token ids, received {values!r}.")
    found = tuple(ids(f"{name}[{i}]", word) for i, word in enumerate(values))
    if () in found:
        raise ValueError(
            f"`{name}[{found.index(())}]` is empty. Each must have at least one token id."
        )
    return found
