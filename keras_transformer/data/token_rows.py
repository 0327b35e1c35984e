"""Rows of different lengths, of token ids or weights, stored end to end in one array."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from keras_transformer.support.former_names import FormerName


class TokenRows:
    """Rows of token ids of different lengths, stored end to end in an array or memory map.

    Args:
        ids: int array `(tokens,)`.
        lengths: int array `(rows,)`.
        starts: int array `(rows,)`, index in `ids` at which each row begins. Defaults to rows that
            follow each other.
        blocks: arrays that together hold the ids of all rows and nothing else. Defaults to `ids`.

    Example:
    ```python
    from keras_transformer.data import TokenRows

    rows = TokenRows.from_lists([[5, 6, 7], [8, 9]])
    assert [row.tolist() for row in rows.without_last()] == [[5, 6], [8]]
    ```
    """

    def __init__(
        self,
        ids: np.ndarray,
        lengths: np.ndarray,
        starts: np.ndarray | None = None,
        blocks: list[np.ndarray] | None = None,
    ):
        self.ids = ids
        self.blocks = [ids] if blocks is None else blocks
        self.lengths = np.asarray(lengths, "int64")
        self.starts = np.cumsum(self.lengths) - self.lengths if starts is None else starts

    of = FormerName("of", "from_lists")

    @classmethod
    def from_lists(cls, rows: Sequence, name: str = "rows") -> "TokenRows":
        """Store lists or arrays of ints end to end.

        Raises ValueError, with the column's `name`, if they are not ints that fit in 32 bits.
        """
        try:
            lengths = np.fromiter((len(row) for row in rows), "int64")
            ids = np.fromiter(chain.from_iterable(rows), "int32", count=int(lengths.sum()))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"Column {name!r} must hold lists of token ids that fit in 32 bits: {error}."
            ) from error
        return cls(ids, lengths)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        start = self.starts[index]  # the IndexError after the last row ends an iteration
        return self.ids[start : start + self.lengths[index]]

    def without_first(self) -> "TokenRows":
        """Return the rows without their first ids. Nothing is copied."""
        return TokenRows(self.ids, self.lengths - 1, self.starts + 1, self.blocks)

    def without_last(self) -> "TokenRows":
        """Return the rows without their last ids. Nothing is copied."""
        return TokenRows(self.ids, self.lengths - 1, self.starts, self.blocks)

    def ids_at(self, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the ids at positions `places` of `rows`, int32.

        The two int arrays are broadcast together. Beyond a row's end the ids are arbitrary.
        """
        ids = self.ids.take(self.starts[rows] + places, mode="clip")
        return ids.astype("int32", copy=False)


class TokenWeights(TokenRows):
    """Weights of tokens, as a column of a `BucketedDataset`.

    Columns hold integers, so a weight is stored as the bits of its float32 value. Padding, the
    integer 0, is then the weight 0.0.

    Args:
        weights: float array `(tokens,)`, the rows end to end; or `(rows,)`, one weight for
            all tokens of a row.
        lengths: int array `(rows,)`, the number of tokens of each row.
        per_row: bool, whether `weights` has one weight for each row. Defaults to False.

    Example:
    ```python
    from keras_transformer.data.token_rows import TokenWeights

    column = TokenWeights([0.5, 2.0], [2, 1], per_row=True)
    bits = column.ids_at([[0], [1]], [[0, 1]])
    assert TokenWeights.floats(bits).tolist() == [[0.5, 0.5], [2.0, 2.0]]
    ```
    """

    def __init__(self, weights, lengths, per_row: bool = False):
        super().__init__(np.ascontiguousarray(weights, "float32").view("int32"), lengths)
        self.per_row = per_row

    def ids_at(self, rows, places):
        if not self.per_row:
            return super().ids_at(rows, places)
        shape = np.broadcast_shapes(np.shape(rows), np.shape(places))
        return np.broadcast_to(self.ids[np.asarray(rows)], shape)

    @staticmethod
    def floats(bits: np.ndarray) -> np.ndarray:
        """Convert the integers of a batch to float32 weights."""
        return np.ascontiguousarray(bits, "int32").view("float32")
