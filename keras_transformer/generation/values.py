"""Checks of the values that samplers, rules and calls of `generate` are given.

They return what was given as a Python value, so that NumPy's numbers share compiled functions with
the equal ones of Python.
"""

import math
import operator
from typing import Any

import numpy as np

# Beyond it products with scores leave the range of float32, or the place below which bans are.
LARGEST = 1e6
# More tokens than any tensor here has room for; int32 holds what is added to it.
MOST = 2**30
# What is traced once for each: more of them would only take time and memory.
MOST_TRACED = 256


def number(
    name: str,
    value: Any,
    expected: str,
    low: float,
    high: float,
    open_low: bool = False,
    hint: str = "",
) -> float:
    """`value` as a float that is finite, from `low` to `high`.

    Args:
        name: str, what the user calls it.
        value: any.
        expected: str, what the message says that it must be.
        low: float.
        high: float.
        open_low: bool, `low` itself is too low.
        hint: str, the end of the message.
    """
    found = math.nan
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
    if not (low <= found <= high and math.isfinite(found)) or (open_low and found == low):
        raise ValueError(f"`{name}` must be {expected}, received {value!r}.{hint}")
    return found


def integer(name: str, value: Any, least: int = 0, most: int = MOST, hint: str = "") -> int:
    """`value` as an int, from `least` to `most`; `hint` is added to what it must be."""
    try:
        found = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        found = None
    if found is None or found < least:
        raise ValueError(
            f"`{name}` must be an integer of at least {least}{hint}, received {value!r}."
        )
    if found > most:
        raise ValueError(
            f"`{name}` must be an integer of at most {most}{hint}, received {value!r}."
        )
    return found


def flag(name: str, value: Any) -> bool:
    """`value` as a bool; 0 and 1 are taken too."""
    if not isinstance(value, (bool, np.bool_, int, np.integer)) or value not in (0, 1):
        raise ValueError(f"`{name}` must be True or False, received {value!r}.")
    return bool(value)


def seed(value: Any) -> int:
    """`value`, the seed of a generator of random numbers: a key of 64 bits."""
    return integer("seed", value, 0, 2**64 - 1, " (it is from 0 to 2**64 - 1)")


def penalty(name: str, value: Any) -> float:
    """`value`, what is added to scores or multiplied with them."""
    return number(name, value, "a finite number from -1e6 to 1e6", -LARGEST, LARGEST)


def ids(name: str, values: Any) -> tuple[int, ...]:
    """`values`, a sequence of token ids."""
    if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
        raise ValueError(f"`{name}` must be a sequence of token ids, received {values!r}.")
    return tuple(integer(f"{name}[{i}]", value) for i, value in enumerate(values))


def words(name: str, values: Any) -> tuple[tuple[int, ...], ...]:
    """`values`, sequences of token ids that are not empty."""
    if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
        raise ValueError(f"`{name}` must be sequences of token ids, received {values!r}.")
    found = tuple(ids(f"{name}[{i}]", word) for i, word in enumerate(values))
    if () in found:
        raise ValueError(
            f"`{name}[{found.index(())}]` is empty. Each must have at least one token id."
        )
    return found


def put(frozen: Any, **values: Any) -> None:
    """Writes checked values into a frozen dataclass that is being made."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)
