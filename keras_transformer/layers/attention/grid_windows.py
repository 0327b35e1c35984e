"""Attention over the grid of patches of an image: in windows, and with distances in the scores."""

import functools
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_transformer import config
from keras_transformer.layers.attention.chunks import attend_in_chunks
from keras_transformer.layers.attention.sparse import AttentionPattern

# From this number of places on, the biases of some queries are computed at a time.
_LONG = 2048


class GridWindowsPattern(AttentionPattern):
    """Square windows of a grid, within which places see each other, see `config.GridWindows`.

    Source: Li et al. 2022, "Exploring Plain Vision Transformer Backbones for Object Detection",
    section 3.
    """

    part: config.GridWindows

    def attend(self, attention, attend, states, projected, visibility, bias, **options):
        limits = ("padding", "query_pack", "explicit", "prefix")
        given = [name for name in limits if getattr(visibility, name) is not None]
        if given or bias is not None or not options["may_cut"]:
            raise ValueError(
                "Attention in windows of a grid takes whole images, and returns no weights, since "
                "its windows have padding: call it without masks, a bias, a cache and "
                "`return_attention_scores`."
            )
        length = ops.shape(states)[1]
        check_length(length, self.part.grid)
        fills = (None, attention.key_dense.bias, attention.value_dense.bias)
        cut = [self.windows(x, fill) for x, fill in zip(projected, fills, strict=True)]
        added = None if attention.grid_scores is None else attention.grid_scores(cut[0])
        attended, _ = attend(*cut, visibility._replace(pattern=None), added)
        return self.joined(attended), None

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of windows above and beside each other."""
        rows, columns = (-(-n // self.part.size) for n in self.part.grid)
        return rows, columns

    def windows(self, x, fill=None):
        """Cut the places of a grid into windows.

        Args:
            x: float `(batch, rows * columns, heads, head_dim)`.
            fill: float `(heads * head_dim,)`, the vector of padding. Defaults to zeros.

        Returns:
            Float `(batch * windows, size * size, heads, head_dim)`.
        """
        (rows, columns), size, (down, right) = self.part.grid, self.part.size, self.counts
        heads = x.shape[2:]
        x = ops.reshape(x, (-1, rows, columns, *heads))
        vector = ops.zeros(heads, x.dtype)
        if fill is not None:
            vector = ops.reshape(ops.cast(fill, x.dtype), heads)
        for axis, missing in ((2, right * size - columns), (1, down * size - rows)):
            if missing:
                shape = list(ops.shape(x))
                shape[axis] = missing
                x = ops.concatenate([x, ops.broadcast_to(vector, shape)], axis=axis)
        x = ops.reshape(x, (-1, down, size, right, size, *heads))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5, 6))
        return ops.reshape(x, (-1, size * size, *heads))

    def joined(self, x):
        """Join windows to the places of a grid, without padding: the reverse of `windows`."""
        (rows, columns), size, (down, right) = self.part.grid, self.part.size, self.counts
        heads = x.shape[2:]
        x = ops.reshape(x, (-1, down, right, size, size, *heads))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5, 6))
        x = ops.reshape(x, (-1, down * size, right * size, *heads))[:, :rows, :columns]
        return ops.reshape(x, (-1, rows * columns, *heads))


class DecomposedScores(keras.layers.Layer):
    """Products of queries with trained vectors of the distances in rows and in columns.

    Args:
        grid: ints, rows and columns of the places.
        head_dim: int, width of a head.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        queries: float `(batch, rows * columns, heads, head_dim)`.

    Returns:
        Float `(batch, heads, rows * columns, rows * columns)`, what is added to the scores.

    Source: Li et al. 2021, "MViTv2", section 4.1.
    """

    def __init__(self, grid: tuple[int, int], head_dim: int, **kwargs):
        super().__init__(**kwargs)
        self.grid = grid
        self.head_dim = head_dim

    def build(self, queries_shape=None):
        rows, columns = self.grid
        self.rows = self.add_weight((2 * rows - 1, self.head_dim), "zeros", name="rows")
        self.columns = self.add_weight((2 * columns - 1, self.head_dim), "zeros", name="columns")
        self.built = True

    def call(self, queries):
        rows, columns = self.grid
        length = ops.shape(queries)[1]
        check_length(length, self.grid)
        x = ops.reshape(queries, (-1, rows, columns, *queries.shape[2:]))
        vectors = [
            ops.take(ops.cast(table, x.dtype), between(size), axis=0)
            for table, size in ((self.rows, rows), (self.columns, columns))
        ]
        down = ops.einsum("bijhd,ikd->bhijk", x, vectors[0])
        right = ops.einsum("bijhd,jkd->bhijk", x, vectors[1])
        bias = ops.expand_dims(down, 5) + ops.expand_dims(right, 4)
        return ops.reshape(bias, (-1, queries.shape[2], rows * columns, rows * columns))

    def in_parts(self, queries) -> bool:
        """Return whether the biases of all places at once would take too much memory."""
        return self.grid[0] * self.grid[1] >= _LONG

    def attend(self, attend: Callable, queries, keys, values, visibility, bias=None):
        """Attend with these biases, of some queries at a time, and return no weights.

        Args:
            attend: function of queries, keys, values, an `AttentionMask` and a bias.
            queries: float `(batch, rows * columns, heads, head_dim)`.
            keys: float, of the same shape.
            values: float, of the same shape.
            visibility: `AttentionMask` of all queries.
            bias: None.
        """
        check_length(queries.shape[1], self.grid)
        tables = (ops.convert_to_tensor(self.rows), ops.convert_to_tensor(self.columns))

        def of_some(part, keys, values, rows, columns, visibility, seed=None):
            first, count = visibility.first_slot, part.shape[1]
            places = first + ops.arange(count, dtype="int32")
            places = ops.minimum(places, self.grid[0] * self.grid[1] - 1)  # behind the last
            added = self._of_places(part, places, rows, columns)
            # Without a mask the keys are the same whatever the first query.
            return attend(part, keys, values, visibility._replace(first_slot=0), added)

        visibility = visibility._replace(first_slot=0)
        attended = attend_in_chunks(of_some, queries, (keys, values, *tables), visibility)
        return attended, None

    def _of_places(self, queries, places, rows, columns):
        """Return the biases of queries `(batch, count, heads, head_dim)` at these places."""
        size = self.grid
        parts = []
        for table, own, count in (
            (rows, places // size[1], size[0]),
            (columns, places % size[1], size[1]),
        ):
            distances = own[:, None] - ops.arange(count, dtype="int32") + count - 1
            vectors = ops.take(ops.cast(table, queries.dtype), distances, axis=0)
            parts.append(ops.einsum("bnhd,nkd->bhnk", queries, vectors))
        bias = ops.expand_dims(parts[0], 4) + ops.expand_dims(parts[1], 3)
        return ops.reshape(bias, (-1, queries.shape[2], queries.shape[1], size[0] * size[1]))

    def compute_output_shape(self, queries_shape):
        batch, length, heads, _ = queries_shape
        return (batch, heads, length, length)


@functools.lru_cache(maxsize=16)
def between(size: int) -> np.ndarray:
    """Return the row of a table for each pair of a query and a key in a line, int32."""
    places = np.arange(size, dtype="int32")
    return places[:, None] - places[None] + size - 1


def check_length(length, grid: tuple[int, int]) -> None:
    """Raise ValueError unless the states are those of a grid."""
    if isinstance(length, int) and length != grid[0] * grid[1]:
        raise ValueError(
            f"Attention over a grid of {grid[0]} x {grid[1]} patches received {length:,} states: "
            "give images of the `image_size` of the config."
        )
