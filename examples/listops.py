"""Make ListOps data, nested operations on digits, as for the Long Range Arena.

Source: Nangia and Bowman 2018; Tay et al. 2020, "Long Range Arena", section 2.1: trees of a depth
of at most 10 with 2 to 10 arguments, kept if they have more than 500 and fewer than 2,000 symbols.
"""

import random
import statistics
from collections.abc import Callable

_OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda numbers: int(statistics.median(numbers)),
    "[SM": lambda numbers: sum(numbers) % 10,
}
SYMBOLS = (*map(str, range(10)), *_OPERATORS, "]")
_MOST_DEPTH = _MOST_ARGUMENTS = 10
_SHARE_OF_DIGITS = 0.75


def tree(rng: random.Random, depth: int = 1) -> tuple[list[str], int]:
    """Return the symbols of a random tree, and its value, a digit."""
    if depth == _MOST_DEPTH or rng.random() < _SHARE_OF_DIGITS:
        value = rng.randrange(10)
        return [str(value)], value
    operator = rng.choice(list(_OPERATORS))
    symbols, values = [operator], []
    for _ in range(rng.randint(2, _MOST_ARGUMENTS)):
        part, value = tree(rng, depth + 1)
        symbols += part
        values.append(value)
    return [*symbols, "]"], _OPERATORS[operator](values)


def examples(
    count: int, seed: int, least: int = 500, most: int = 2000, depth: int = 1
) -> tuple[list[str], list[int]]:
    """Return `count` different trees as texts, and their values.

    A text has more than `least` and fewer than `most` symbols. A tree that begins at a `depth` over
    1 has correspondingly fewer levels.
    """
    rng = random.Random(seed)
    found: dict[str, int] = {}
    while len(found) < count:
        symbols, value = tree(rng, depth)
        if least < len(symbols) < most:
            found[" ".join(symbols)] = value
    return list(found), list(found.values())
