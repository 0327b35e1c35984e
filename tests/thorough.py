"""Extra work of `make test-thorough` over `make test`: more examples, and freshly drawn seeds.

Its seed is in the environment variable `TEST_SEED`; the same seed repeats the run. Without it a
run is the short one, which does the same each time.
"""

import os
from collections.abc import Iterable

import numpy as np

SEED = int(os.environ["TEST_SEED"]) if os.environ.get("TEST_SEED") else None
THOROUGH = SEED is not None


def many(count: int, short: int | None = None) -> int:
    """How many examples of a property are tried: ten times `count` in the thorough run.

    In a short run `count`, or `short` if a few examples of each of many kinds are enough.
    """
    return 10 * count if THOROUGH else short or count


def a_part(cases: Iterable, of: int = 3) -> list:
    """The first of each `of` cases in a short run, all in the thorough one.

    For checks whose number grows with families and formats, while their code is the same.
    """
    return list(cases)[:: 1 if THOROUGH else of]


def seeds(count: int) -> list[int]:
    """`count` seeds, the same in a short run, others in each thorough one."""
    return np.random.default_rng(SEED or 0).integers(2**31, size=count).tolist()
