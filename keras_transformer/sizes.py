"""The sizes that programs are compiled for: few, so that different calls share them."""

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable

# Rows are few: one more is a large part of the work.
_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# Tokens of a prompt, slots of a cache, room for new tokens: up to here, then see `round_size`.
_SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

# A size at hand may be so many times the work of the one that is wanted, and always up to so much.
_MOST_WASTE = 4
_LITTLE_WORK = 256
# A size is worth a program of its own if a call has so many batches of it, or if a third of the
# last calls wanted it: of many calls, since of few any size is a third now and then, by chance.
OFTEN = 5
_OFTEN_AMONG_LAST, _LAST = 16, 48
_MOST_KNOWN = 12


def round_up(rows: int) -> int:
    """The next number of rows; above the ladder, multiples of 512."""
    for step in _ROWS:
        if rows <= step:
            return step
    return -(-rows // 512) * 512


def round_size(size: int) -> int:
    """The next number of tokens or slots; above the ladder, four steps to each power of two."""
    for step in _SIZES:
        if size <= step:
            return step
    quarter = 1 << ((size - 1).bit_length() - 3)
    return -(-size // quarter) * quarter


class Recent:
    """What was wanted last, to know what is wanted often."""

    def __init__(self):
        self._last: deque = deque(maxlen=_LAST)

    def often(self, wanted: Hashable, times: int = 1) -> bool:
        """Whether `wanted` is wanted so many times now that it is often, or was it lately."""
        self._last.extend([wanted] * min(times, _LAST))
        return times >= OFTEN or self._last.count(wanted) >= _OFTEN_AMONG_LAST


class Sizes:
    """Sizes that there are programs for, and take what fits until its own size is wanted often.

    A second of compiling buys a lot of padding. So what comes for the first time is padded to a
    size at hand, of up to four times the work. What comes often, in a steady load, gets its own.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._known: dict[Hashable, OrderedDict] = {}
        self._recent: dict[Hashable, Recent] = {}

    def __reduce__(self):
        return Sizes, ()  # A copy has no programs.

    def choose(
        self,
        wanted: tuple[int, ...],
        most: tuple[int | None, ...] | None = None,
        group: Hashable = (),
        times: int = 1,
    ) -> tuple[int, ...]:
        """The size to pad to, such as rows and tokens; the product is taken for the work.

        None is larger than `most` has it, where that is not None. Sizes of another `group`, of
        which there are to be few, are not at hand. `times`: how often it is wanted now.
        """
        most = most or (None,) * len(wanted)
        with self._lock:
            known = self._known.setdefault(group, OrderedDict())
            often = self._recent.setdefault(group, Recent()).often(wanted, times)
            work = max(_MOST_WASTE * math.prod(wanted), _LITTLE_WORK)
            fitting = [
                size
                for size in known
                if math.prod(size) <= work
                and all(
                    need <= has and (limit is None or has <= limit)
                    for need, has, limit in zip(wanted, size, most, strict=True)
                )
            ]
            size = min(fitting, key=math.prod, default=wanted)
            if often:
                size = wanted
            known[size] = None
            known.move_to_end(size)
            if len(known) > _MOST_KNOWN:
                known.popitem(last=False)
            return size
