"""Size buckets, so that calls of similar sizes share a compiled program."""

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence

import numpy as np

# Buckets of rows are dense for small batches, where one row more is a large part of the work.
_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# Buckets of prompt tokens, cache slots and new tokens; for larger sizes see `round_size`.
_SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

# Reuse a compiled size if it costs at most this many times the requested work, or if its work is
# below `_LITTLE_WORK`.
_MOST_WASTE = 4
_LITTLE_WORK = 256
# A size gets its own program if one call has this many batches of it, or if it made up a third of
# the recent batches. The latter needs many batches: among few, any size is a third by chance.
OFTEN = 5
_OFTEN_AMONG_LAST, _LAST = 16, 48
_MOST_KNOWN = 12


def round_rows(rows: int) -> int:
    """Round a number of rows up to the next bucket; beyond the table, to a multiple of 512."""
    for step in _ROWS:
        if rows <= step:
            return step
    return -(-rows // 512) * 512


def round_rows_down(rows: int) -> int:
    """Round a number of rows, at least 1, down to a bucket."""
    if rows >= 1536:
        return rows // 512 * 512
    return max(step for step in _ROWS if step <= rows)


def round_size(size: int) -> int:
    """Round a number of tokens or slots up; beyond the table, four steps per power of two."""
    for step in _SIZES:
        if size <= step:
            return step
    quarter = 1 << ((size - 1).bit_length() - 3)
    return -(-size // quarter) * quarter


class RequestHistory:
    """Recently requested keys, kept to decide which of them are frequent."""

    def __init__(self):
        self._last: deque = deque(maxlen=_LAST)

    def often(self, wanted: Hashable, times: int = 1, least: int = _OFTEN_AMONG_LAST) -> bool:
        """Return whether `wanted`, requested `times` times now, is frequent.

        A key is frequent if it is requested at least 5 times now, or if it made up at least `least`
        of the last 48 requests.
        """
        self._last.extend([wanted] * min(times, _LAST))
        return times >= OFTEN or self._last.count(wanted) >= least


class ShapeBuckets:
    """Compiled sizes, and the choice of one to pad to.

    A second of compiling costs as much as a lot of padding. So a new size is padded to a compiled
    size of up to four times its work, until it is requested often and gets its own program.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._known: dict[Hashable, OrderedDict] = {}
        self._recent: dict[Hashable, RequestHistory] = {}

    def __reduce__(self):
        return ShapeBuckets, ()  # a copy has no programs

    def choose(
        self,
        wanted: tuple[int, ...],
        most: tuple[int | None, ...] | None = None,
        group: Hashable = (),
        times: int = 1,
    ) -> tuple[int, ...]:
        """Return the size to pad to.

        Args:
            wanted: the requested size, such as rows and tokens. The product measures the work.
            most: upper bound of each number, or None if it has none. Defaults to no bounds.
            group: key of the compiled sizes to choose from. There should be few groups.
            times: how often this size is needed now, such as the number of batches. Defaults to 1.

        Returns:
            A tuple of as many numbers as `wanted`, each at least as large.
        """
        most = most or (None,) * len(wanted)
        with self._lock:
            known = self._known.setdefault(group, OrderedDict())
            often = self._recent.setdefault(group, RequestHistory()).often(wanted, times)
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


class RoundedSizes(ShapeBuckets):
    """Sizes that are rounded but do not depend on earlier ones.

    Padding changes the last bits of a result. With these sizes a program that starts again repeats
    the results of one that ran through.
    """

    def choose(self, wanted, most=None, group=(), times=1):
        return wanted

    def __reduce__(self):
        return RoundedSizes, ()


def pad_rows(
    rows: Sequence[Sequence[int]], pad_id: int, length: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Pad rows on the right to `length`; return the array, int32 `(rows, length)`, and its mask.

    `length` defaults to the longest row, rounded up so that few shapes occur.
    """
    length = round_size(max(map(len, rows))) if length is None else length
    ids = np.full((len(rows), length), pad_id, "int32")
    mask = np.zeros(ids.shape, "bool")
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = True
    return ids, mask
