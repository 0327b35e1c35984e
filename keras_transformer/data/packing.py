"""Packing of short rows into longer ones, which reduces padding."""

import numpy as np
from numpy.typing import ArrayLike

from keras_transformer.data.buckets import check_lengths
from keras_transformer.support.checking import check_int


def pack_rows(lengths: ArrayLike, capacity: int) -> list[list[int]]:
    """Group rows that fit into `capacity` positions: best fit, the longest rows first.

    Args:
        lengths: int array `(rows,)`, each at least 1.
        capacity: the number of positions of a group.

    Returns:
        A list with the row indices of each group.

    Raises:
        ValueError: if a row is longer than `capacity`, or a number is below 1.

    Example:
    ```python
    from keras_transformer.data import pack_rows

    assert pack_rows([5, 2, 7, 3], capacity=8) == [[2], [0, 3], [1]]
    ```

    Source: Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination",
    section 3.1.
    """
    capacity = check_int("capacity", capacity, at_least=1, at_most=2**24)
    lengths = check_lengths(lengths)
    if lengths.size and lengths.max() > capacity:
        row = int(lengths.argmax())
        raise ValueError(
            f"Row {row} has {lengths[row]} tokens, more than `pack_length`, {capacity}. Give "
            "`max_length` to cut such rows, or a larger `pack_length`."
        )
    groups = []
    with_room = [[] for _ in range(capacity + 1)]  # groups by their remaining room
    rooms = 0  # bit set of the rooms for which there is a group
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


class Packs:
    """Groups of rows, each packed into one row of a batch.

    Args:
        lengths: int array `(rows, sides)`, the lengths of the rows to pack.
        length: int, number of positions of a pack on each side.

    Attributes:
        lengths: int array `(packs, sides)`, the number of tokens in each pack.
        row_lengths: the argument `lengths`.
    """

    def __init__(self, lengths: np.ndarray, length: int):
        # More positions would be a mistake, and exhaust memory.
        self.length = check_int("pack_length", length, at_least=1, at_most=2**24)
        self.row_lengths = lengths
        self._rows = pack_rows(lengths.max(axis=1), self.length)
        first = np.cumsum([0, *(len(rows) for rows in self._rows[:-1])])
        self.lengths = np.add.reduceat(lengths[np.concatenate(self._rows)], first, axis=0)

    def places(self, packs: np.ndarray, side: int, mask: np.ndarray) -> tuple:
        """Return which row each position of some packs belongs to.

        Args:
            packs: int array `(batch,)`, indices of packs.
            side: int, 0, or 1 for paired columns.
            mask: bool array `(batch, length)`, whose shape the results have.

        Returns:
            Three int arrays `(batch, length)`: the index of each position's row, the position in
            that row, and the index of the row within its pack, -1 for padding.
        """
        rows, places = np.zeros(mask.shape, "int64"), np.zeros(mask.shape, "int64")
        numbers = np.full(mask.shape, -1, "int32")
        for i, pack in enumerate(packs):
            members = self._rows[pack]
            lengths = self.row_lengths[members, side]
            end = lengths.sum()
            rows[i, :end] = np.repeat(members, lengths)
            places[i, :end] = np.arange(end) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            numbers[i, :end] = np.repeat(np.arange(len(members)), lengths)
        return rows, places, numbers


def packed_inputs(arrays: dict, side: str = "", paired: bool = False) -> dict:
    """Return the backbone's extra inputs for packed rows, or an empty dict without packing.

    `arrays` are those of a batch, `side` is a prefix of the input names, and `paired` takes the
    arrays of the paired columns.
    """
    names = ("position_ids", "pack_ids")
    prefix = "paired_" if paired else ""
    return {f"{side}{n}": arrays[f"{prefix}{n}"] for n in names if f"{prefix}{n}" in arrays}
