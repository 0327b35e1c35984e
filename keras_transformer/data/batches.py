"""The batches of a `BucketedDataset`: checks of columns, order, sizes."""

from collections import Counter

import numpy as np

from keras_transformer.checking import shorten
from keras_transformer.sizes import OFTEN, Sizes, round_size, round_up


def check_columns(sides: list[dict], values: dict, pad_values: dict) -> None:
    """ValueError for columns and values that are not of the same rows."""
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
        raise ValueError(f"pad_values names no column: {sorted(unknown)}; have {list(rows)}.")


def compose(shapes: list, members: list, sizes: list[int], rng=None) -> list[tuple]:
    """The batches of an epoch, `(shape, rows)`: rows that are left over go to the next bucket."""
    batches = []
    waiting = np.empty(0, "int64")
    for bucket, (shape, rows) in enumerate(zip(shapes, members, strict=True)):
        rows = np.concatenate([waiting, rows if rng is None else rng.permutation(rows)])
        size = sizes[bucket]
        full = len(rows) if bucket == len(shapes) - 1 else len(rows) // size * size
        batches += [(shape, rows[i : min(i + size, full)]) for i in range(0, full, size)]
        waiting = rows[full:]
    return longest_second(batches, rng)


def in_order(outputs, order: np.ndarray):
    """Outputs, a list or an array, for rows of these numbers: by number, each once."""
    places = np.unique(order, return_index=True)[1]
    if isinstance(outputs, list):
        return [outputs[place] for place in places]
    return np.asarray(outputs)[places]


def longest_second(batches: list, rng=None) -> list:
    """Shortest shape first, longest (or the one smaller batch) second, then the others."""
    # On TensorFlow Keras derives the tensor signature of all batches from the first two; a
    # dimension that is equal in these would be taken as fixed.
    if len(batches) < 3:
        return batches
    first, *middle, last = batches
    if rng is not None:
        middle = [middle[i] for i in rng.permutation(len(middle))]
    return [first, last, *middle]


def padded_to_sizes(batches: list, sizes: Sizes, limits: list[int]) -> list:
    """The batches with as many rows and tokens as a size at hand has, `limits` tokens at most."""
    # Of more than two batches all have the same rows: see `longest_second`.
    fixed = max(len(rows) for _, rows in batches) if len(batches) > 2 else None
    wanted = [(fixed or round_up(len(rows)), *shape) for shape, rows in batches]
    chosen = {}
    for (count, *shape), times in Counter(wanted).items():
        # A length of its own is for many batches.
        lengths = shape if times >= OFTEN else map(min, map(round_size, shape), limits)
        chosen[count, *shape] = sizes.choose((count, *lengths), (fixed, *limits), times=times)
    padded = []
    for size, (_, rows) in zip(wanted, batches, strict=True):
        count, *shape = chosen[size]
        padded.append((tuple(shape), np.pad(rows, (0, count - len(rows)), mode="edge")))
    return longest_second(sorted(padded, key=lambda batch: batch[0]))
