"""The batches of a `BucketedDataset`: checks of columns, order and sizes."""

from collections import Counter

import numpy as np

from keras_transformer.support.checking import shorten
from keras_transformer.support.sizes import OFTEN, ShapeBuckets, round_rows, round_size


def check_columns(sides: list[dict], values: dict, pad_values: dict) -> None:
    """Raise ValueError if columns and values do not describe the same rows."""
    rows = {n: len(c.lengths) for side in sides for n, c in side.items()}
    for name, value in values.items():
        if not value.ndim:
            raise ValueError(f"`values[{name!r}]` must be an array, received {shorten(value)}.")
        rows[name] = len(value)
    if not all(sides) or 0 in rows.values():
        raise ValueError(
            f"BucketedDataset needs columns with at least one row, got rows: {rows or 'none'}."
        )
    if len(set(rows.values())) > 1:
        raise ValueError(f"Columns and values must have equally many rows, got {rows}.")
    for side in sides:
        (first, one), *others = side.items()
        for other, two in others:
            differ = np.flatnonzero(one.lengths != two.lengths)
            if differ.size:
                row = differ[0]
                raise ValueError(
                    f"Row {row} has {one.lengths[row]} ids in column {first!r} but "
                    f"{two.lengths[row]} in column {other!r}; they must agree."
                )
    unknown = set(pad_values) - set(rows)
    if unknown:
        raise ValueError(
            f"`pad_values` has names that are not columns: {sorted(unknown)}. The columns are: "
            f"{list(rows)}."
        )


def compose(shapes: list, members: list, sizes: list[int], rng=None) -> list[tuple]:
    """Return an epoch's batches as a list of `(shape, row indices)`.

    Leftover rows of a bucket, fewer than a batch, move up to the next longer bucket.
    """
    batches = []
    waiting = np.empty(0, "int64")
    for bucket, (shape, rows) in enumerate(zip(shapes, members, strict=True)):
        rows = np.concatenate([waiting, rows if rng is None else rng.permutation(rows)])
        size = sizes[bucket]
        full = len(rows) if bucket == len(shapes) - 1 else len(rows) // size * size
        batches += [(shape, rows[i : min(i + size, full)]) for i in range(0, full, size)]
        waiting = rows[full:]
    return longest_second(batches, rng)


def compose_even(shapes: list, members: list, most: list[int], padded: bool) -> list[tuple]:
    """Return an epoch's batches as `(shape, row indices)`, each bucket split into equal batches.

    Args:
        shapes: the padded lengths of each bucket.
        members: the row indices of each bucket.
        most: the largest number of rows in a batch of each bucket.
        padded: whether the number of rows is rounded up to a bucket of `support.sizes.round_rows`,
            by repeating the last row of a batch.
    """
    batches = []
    for shape, rows, limit in zip(shapes, members, most, strict=True):
        size = -(-len(rows) // -(-len(rows) // limit))
        size = min(limit, round_rows(size)) if padded else size
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        if padded:
            parts = [np.pad(part, (0, size - len(part)), mode="edge") for part in parts]
        batches += [(shape, part) for part in parts]
    return batches


def in_order(outputs, order: np.ndarray):
    """Sort outputs, a list or an array, by their row indices in `order`, and keep each row once."""
    places = np.unique(order, return_index=True)[1]
    if isinstance(outputs, list):
        return [outputs[place] for place in places]
    return np.asarray(outputs)[places]


def longest_second(batches: list, rng=None) -> list:
    """Put the shortest shape first, the longest (or a smaller batch) second, then the others."""
    # On TensorFlow Keras derives the tensor signature of all batches from the first two: a
    # dimension that is equal in both would be treated as fixed.
    if len(batches) < 3:
        return batches
    first, *middle, last = batches
    if rng is not None:
        middle = [middle[i] for i in rng.permutation(len(middle))]
    return [first, last, *middle]


def padded_to_sizes(
    batches: list, sizes: ShapeBuckets, limits: list[int], even: bool = False
) -> list:
    """Pad batches to numbers of rows and tokens that `sizes` has, with at most `limits` tokens."""
    # If there are more than two batches, all have the same number of rows, see `longest_second`,
    # unless they are `even`, for a backend that compiles each shape separately.
    same = len(batches) > 2 and not even
    fixed = max(len(rows) for _, rows in batches) if same else None
    wanted = [(fixed or round_rows(len(rows)), *shape) for shape, rows in batches]
    chosen = {}
    for (count, *shape), times in Counter(wanted).items():
        # Only frequent shapes keep their exact length.
        lengths = shape if times >= OFTEN else map(min, map(round_size, shape), limits)
        chosen[count, *shape] = sizes.choose((count, *lengths), (fixed, *limits), times=times)
    padded = []
    for size, (_, rows) in zip(wanted, batches, strict=True):
        count, *shape = chosen[size]
        padded.append((tuple(shape), np.pad(rows, (0, count - len(rows)), mode="edge")))
    return longest_second(sorted(padded, key=lambda batch: batch[0]))
