"""Choice of the few lengths that batches are padded to.

Every distinct shape costs a compilation, and every padded position costs arithmetic. A row may have
several lengths, such as source and target. A bucket then has as many lengths, and buckets form a
chain: a row that fits one fits all later ones, so `BucketedDataset` can move leftover rows up.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from keras_transformer.support.checking import check_int, describe, shorten

# The search compares every pair of candidate buckets. Beyond this number, the lengths of rows with
# two lengths are counted more coarsely (512 x 512 positions still fit exactly).
_MAX_CANDIDATES = 4096


def choose_buckets(
    lengths: ArrayLike,
    max_buckets: int = 6,
    multiple: int = 8,
    max_length: int | Sequence[int] | None = None,
    least_saving: int = 0,
) -> tuple:
    """Choose the bucket lengths that minimize the padding of the given rows.

    The result is exact: dynamic programming over the histogram of the lengths, so the cost depends
    on the longest row, hardly on the number of rows.

    Args:
        lengths: int array `(rows,)`, or `(rows, n)` for rows with `n` lengths each, for which the
            sum of the `n` padded lengths is minimized.
        max_buckets: the largest number of buckets; fewer are returned if more would not help.
            Defaults to 6.
        multiple: bucket lengths are multiples of this. Defaults to 8.
        max_length: int or `n` ints; longer rows count as truncated to it, and the last bucket is
            never longer, even if it is then not a multiple. Defaults to no limit.
        least_saving: int, the padded positions that each additional bucket must save. Defaults to
            0.

    Returns:
        Ascending tuple of ints, or of `n`-tuples. The last one fits the longest row.

    Raises:
        ValueError: if there are no lengths, or a length or an option is below 1.

    Example:
    ```python
    from keras_transformer.data import choose_buckets

    assert choose_buckets([3, 5, 6, 30, 31], max_buckets=2) == (8, 32)
    assert choose_buckets([(3, 9), (30, 20)]) == ((8, 16), (32, 24))
    ```
    """
    lengths = check_lengths(lengths)
    if lengths.size == 0:
        raise ValueError("choose_buckets needs at least one length, got none.")
    max_buckets = check_int("max_buckets", max_buckets, at_least=1)
    multiple = check_int("multiple", multiple, at_least=1, at_most=2**31)
    least_saving = check_int("least_saving", least_saving, at_least=0)
    rows = lengths.reshape(len(lengths), -1)
    limits = length_limits(max_length, rows.shape[1])
    rows = np.minimum(rows, limits)
    steps = -(-rows // multiple)
    if rows.shape[1] > 1:
        while np.prod(steps.max(axis=0)) > _MAX_CANDIDATES:
            multiple *= 2
            steps = -(-rows // multiple)

    fits, candidates = _candidates(steps, multiple, limits)
    chosen = _cheapest_chain(fits, candidates.sum(axis=-1), max_buckets, least_saving)
    buckets = tuple(tuple(int(length) for length in candidates[place]) for place in chosen)
    return buckets if lengths.ndim > 1 else tuple(bucket[0] for bucket in buckets)


def _candidates(steps, multiple, limits):
    """Return how many rows fit each candidate bucket, and the lengths of all candidates."""
    axes, places = zip(*(np.unique(column, return_inverse=True) for column in steps.T), strict=True)
    shape = tuple(len(axis) for axis in axes)
    fits = np.bincount(np.ravel_multi_index(places, shape), minlength=np.prod(shape)).reshape(shape)
    for axis in range(len(shape)):
        fits = fits.cumsum(axis=axis)
    candidates = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1) * multiple
    return fits, np.minimum(candidates, limits)


def _cheapest_chain(fits, width, max_buckets, least_saving):
    """Return the indices of the cheapest chain of candidates that ends in the last one.

    The best chain of k + 1 buckets that ends in candidate c extends, for some smaller p, the
    best chain of k that ends in p: cost(c) = cost(p) + width(c) * (fits(c) - fits(p)). Here
    `fits` is the number of rows that fit each candidate, and `width` the padded positions of a row.
    """
    cost = (width * fits).astype("float64")
    parents, totals_by_count = [], [cost.flat[-1]]
    for _ in range(1, min(max_buckets, fits.size)):
        longer = np.empty_like(cost)
        parent = np.empty(fits.shape, "int64")
        for place in np.ndindex(fits.shape):
            # Includes the place itself: a chain need not grow.
            smaller = tuple(slice(0, i + 1) for i in place)
            totals = cost[smaller] - width[place] * fits[smaller]
            inside = np.unravel_index(totals.argmin(), totals.shape)
            longer[place] = totals[inside] + width[place] * fits[place]
            parent[place] = np.ravel_multi_index(inside, fits.shape)
        parents.append(parent)
        cost = longer
        totals_by_count.append(cost.flat[-1])
    count = int(np.argmin(totals_by_count + least_saving * np.arange(len(totals_by_count))))
    chain = [tuple(size - 1 for size in fits.shape)]
    for parent in reversed(parents[:count]):
        chain.append(tuple(int(i) for i in np.unravel_index(parent[chain[-1]], fits.shape)))
    # Drop buckets that no row is the first to fit: they cost nothing, but are unused.
    used, before = [], 0
    for place in reversed(chain):
        if fits[place] > before:
            used.append(place)
            before = fits[place]
    return used


def bucket_of(lengths: ArrayLike, buckets: Sequence) -> np.ndarray:
    """Return the index of the first bucket that each row fits.

    Args:
        lengths: int array `(rows,)`, or `(rows, n)`.
        buckets: the result of `choose_buckets`: a chain of ints, or of `n`-tuples.

    Returns:
        int array `(rows,)`.

    Raises:
        ValueError: if the buckets are not a chain, or a row fits none of them.

    Example:
    ```python
    from keras_transformer.data import bucket_of

    assert bucket_of([3, 8, 9], (8, 16)).tolist() == [0, 0, 1]
    ```
    """
    rows, chain = check_lengths(lengths), check_lengths(buckets, "buckets")
    if not len(rows):
        return np.zeros(0, "int64")
    if chain.ndim != rows.ndim or chain.shape[1:] != rows.shape[1:] or chain.size == 0:
        raise ValueError(
            "buckets must hold one length for each length of a row, got "
            f"{shorten(buckets)} for lengths of shape {rows.shape}."
        )
    rows = rows.reshape(len(rows), -1)
    chain = chain.reshape(len(chain), -1)
    if chain.min() < 1 or (np.diff(chain, axis=0) < 0).any():
        raise ValueError(
            "buckets must be positive, and each at least as long as the one before: got "
            f"{shorten(buckets)}."
        )
    places = np.zeros(len(rows), "int64")
    for column, ends in zip(rows.T, chain.T, strict=True):
        places = np.maximum(places, np.searchsorted(ends, column))
    if len(places) and places.max() == len(chain):
        row = int(places.argmax())
        raise ValueError(
            f"Row {row} has length {rows[row].tolist()}, longer than the longest bucket "
            f"{chain[-1].tolist()}. Give a longer bucket, or max_length to truncate."
        )
    return places


def array_of(values) -> np.ndarray:
    """Convert nested numbers to an array, or to an array of None if the rows differ in size."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.asarray(None)


def check_lengths(lengths, name: str = "lengths") -> np.ndarray:
    """Return lengths, one or several for each row, as an int array; it may be empty.

    Raises ValueError if they are not integers of at least 1.
    """
    array = array_of(lengths)
    if array.size == 0 and array.ndim:
        return array.astype("int64")
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise ValueError(
            f"`{name}` must be integers, one for each row, received {describe(lengths)}."
        )
    if array.min() < 1:
        raise ValueError(f"`{name}` must be at least 1, received {array.min()}.")
    return array


def length_limits(max_length, count) -> np.ndarray:
    """Return `max_length` (None, an int, or `count` ints) as an int array `(count,)`."""
    limits = array_of(np.iinfo("int64").max if max_length is None else max_length)
    if limits.dtype.kind not in "iu" or limits.shape not in ((), (count,)) or limits.min() < 1:
        raise ValueError(
            f"max_length must be None, a positive int or {count} positive ints, got "
            f"{shorten(max_length)}."
        )
    return np.broadcast_to(limits, (count,))


def given_buckets(buckets, sides: int) -> list[list[int]]:
    """Return the user's buckets as lists with one length for each side."""
    lengths = array_of(list(buckets) if isinstance(buckets, Iterable) else None)
    if lengths.ndim == 1 and sides == 1:
        lengths = lengths[:, None]
    if lengths.dtype.kind not in "iu" or lengths.ndim != 2 or lengths.shape[1] != sides:
        raise ValueError(
            f"`buckets` must be a list of lengths{' in pairs' if sides > 1 else ''}, received "
            f"{describe(buckets)}."
        )
    return lengths.tolist()
