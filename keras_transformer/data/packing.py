"""Putting several short rows into one long one, so that hardly a position is padding."""

import numpy as np
from numpy.typing import ArrayLike

from keras_transformer.checking import check_int
from keras_transformer.data.buckets import check_lengths


def pack_rows(lengths: ArrayLike, capacity: int) -> list[list[int]]:
    """Groups of rows that fit into `capacity` positions together, few and full.

    Best fit, the longest rows first: each goes where it leaves the least room. The cost grows with
    the number of rows, hardly with `capacity`.

    Args:
        lengths: int array `(rows,)`, each at least 1.
        capacity: positions of a group.

    Returns:
        For each group the numbers of its rows.

    Raises:
        ValueError: a row longer than `capacity`.

    Source: Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination",
    section 3.1.

    Example:

    ```python
    from keras_transformer.data import pack_rows

    assert pack_rows([5, 2, 7, 3], capacity=8) == [[2], [0, 3], [1]]
    ```
    """
    capacity = check_int("capacity", capacity, at_least=1, at_most=2**24)
    lengths = check_lengths(lengths)
    if lengths.size and lengths.max() > capacity:
        row = int(lengths.argmax())
        raise ValueError(
            f"Row {row} has {lengths[row]} tokens, more than `pack_length`, {capacity}. Give "
            "`max_length` to cut such rows, or pack into longer ones."
        )
    groups = []
    with_room = [[] for _ in range(capacity + 1)]  # groups by the room that is left
    rooms = 0  # as bits, the rooms for which there is a group
    for row in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[row])
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            group = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, group = capacity, []
            groups.append(group)
        group.append(row)
        with_room[room - length].append(group)
        rooms |= 1 << (room - length)
    return groups


def packed_inputs(arrays: dict, side: str = "", paired: bool = False) -> dict:
    """What a backbone is told of packed rows, from the arrays of a batch; nothing of others.

    Args:
        arrays: as `BucketedDataset` gives them to `make_batch`.
        side: str before the names of the inputs, e.g. `"decoder_"`.
        paired: bool, of the paired columns.
    """
    names = ("position_ids", "pack_ids")
    prefix = "paired_" if paired else ""
    return {f"{side}{n}": arrays[f"{prefix}{n}"] for n in names if f"{prefix}{n}" in arrays}
