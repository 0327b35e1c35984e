"""Attention over the grid of patches of an image: in windows, and with distances in the scores."""

import functools
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_transformer import config
from keras_transformer.kernels.indexing import look_up
from keras_transformer.kernels.values import constant
from keras_transformer.layers.attention.chunks import attend_in_chunks
from keras_transformer.layers.attention.grid import window_index
from keras_transformer.layers.attention.sparse import AttentionPattern
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.remat import no_inner_remat

# From this number of places on, the biases of some queries are computed at a time.
_LONG = 2048
# What is added to the scores of places that do not see each other; the scores of Swin V2 are from
# -100 to 116.
_HIDDEN = -200.0


class GridWindowsPattern(AttentionPattern):
    """Square windows of a grid, within which places see each other, see `config.GridWindows`.

    Source: Li et al. 2022, "Exploring Plain Vision Transformer Backbones for Object Detection",
    section 3; shifted windows: Liu et al. 2021, "Swin Transformer", section 3.2.
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
        grid = self.part.grid or options["grid"]
        check_length(ops.shape(states)[1], grid)
        fills = (None, attention.key_dense.bias, attention.value_dense.bias)
        cut = [self.windows(x, grid, fill) for x, fill in zip(projected, fills, strict=True)]
        added = None if attention.grid_scores is None else attention.grid_scores(cut[0])
        if self.part.shift_of(grid):
            added = self._with_edges(added, attention.num_heads, grid, cut[0].dtype)
        attended, _ = attend(*cut, visibility._replace(pattern=None), added)
        return self.joined(attended, grid), None

    def counts(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Return the numbers of windows above and beside each other."""
        rows, columns = (-(-n // self.part.size) for n in grid)
        return rows, columns

    def windows(self, x, grid: tuple[int, int], fill=None):
        """Cut the places of a grid into windows.

        Args:
            x: float `(batch, rows * columns, heads, head_dim)`.
            grid: ints, rows and columns.
            fill: float `(heads * head_dim,)`, the vector of padding. Defaults to zeros.

        Returns:
            Float `(batch * windows, size * size, heads, head_dim)`. Shifted windows, whose masks
            differ, are beside the heads: `(batch, size * size, heads * windows, head_dim)`. A mask
            then is a bias of heads, which the images of a batch share.
        """
        (rows, columns), size, (down, right) = grid, self.part.size, self.counts(grid)
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
        shift = self.part.shift_of(grid)
        if shift:
            x = ops.roll(x, (-shift, -shift), axis=(1, 2))
        x = ops.reshape(x, (-1, down, size, right, size, *heads))
        if shift:
            x = ops.transpose(x, (0, 2, 4, 5, 1, 3, 6))
            return ops.reshape(x, (-1, size * size, heads[0] * down * right, heads[1]))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5, 6))
        return ops.reshape(x, (-1, size * size, *heads))

    def joined(self, x, grid: tuple[int, int]):
        """Join windows to the places of a grid, without padding: the reverse of `windows`."""
        (rows, columns), size, (down, right) = grid, self.part.size, self.counts(grid)
        heads, shift = x.shape[2:], self.part.shift_of(grid)
        if shift:
            heads = (heads[0] // (down * right), heads[1])
            x = ops.reshape(x, (-1, size, size, heads[0], down, right, heads[1]))
            x = ops.transpose(x, (0, 4, 1, 5, 2, 3, 6))
        else:
            x = ops.reshape(x, (-1, down, right, size, size, *heads))
            x = ops.transpose(x, (0, 1, 3, 2, 4, 5, 6))
        x = ops.reshape(x, (-1, down * size, right * size, *heads))
        if shift:
            x = ops.roll(x, (shift, shift), axis=(1, 2))
        return ops.reshape(x[:, :rows, :columns], (-1, rows * columns, *heads))

    def _with_edges(self, bias, heads: int, grid: tuple[int, int], dtype):
        """Add the masks of shifted windows to a bias `(1, heads, size * size, size * size)`.

        Returns float `(1, heads * windows, size * size, size * size)`.
        """
        sides = constant(edge_sides(self.part, grid))
        hidden = ops.not_equal(ops.expand_dims(sides, 2), ops.expand_dims(sides, 1))
        bias = ops.zeros((1, heads, 1, 1), dtype) if bias is None else bias
        bias = ops.expand_dims(bias, 2) + ops.cast(hidden, dtype) * _HIDDEN
        return ops.reshape(bias, (1, -1, *hidden.shape[1:]))


class WindowBias(keras.layers.Layer):
    """Trained bias per head for each distance between two places of a window.

    Args:
        size: int, rows and columns of a window.
        num_heads: int, number of heads.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        queries: float, not used: the bias is the same for all.

    Returns:
        Float `(1, heads, size * size, size * size)`, what is added to the scores.

    Source: Liu et al. 2021, "Swin Transformer", section 3.2.
    """

    def __init__(self, size: int, num_heads: int, **kwargs):
        super().__init__(**kwargs)
        self.size = size
        self.num_heads = num_heads

    @classmethod
    def from_part(cls, part: config.Attention, **kwargs) -> "WindowBias":
        """Make the layer for an attention with windows; `kwargs` are its other arguments."""
        return cls(part.pattern.size, part.num_heads, **kwargs)

    def build(self, queries_shape=None):
        shape = ((2 * self.size - 1) ** 2, self.num_heads)
        self.embeddings = self.add_weight(shape, "zeros", name="embeddings")
        self.built = True

    def call(self, queries):
        bias = look_up(self.embeddings, window_index(self.size))
        return ops.cast(ops.transpose(bias, (2, 0, 1))[None], self.compute_dtype)

    def compute_output_shape(self, queries_shape):
        return (1, self.num_heads, self.size**2, self.size**2)


class ContinuousWindowBias(WindowBias):
    """Bias per head for each distance in a window by a network, see `config.ContinuousWindowBias`.

    Args:
        size: int, rows and columns of a window.
        num_heads: int, number of heads.
        inner_dim: int, width of the hidden layer.
        trained_size: int, rows and columns of the windows that the network was first trained for.
            Defaults to `size`.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        queries: float, not used: the bias is the same for all.

    Returns:
        Float `(1, heads, size * size, size * size)`, what is added to the scores.

    Source: Liu et al. 2021, "Swin Transformer V2", section 3.3.
    """

    def __init__(
        self,
        size: int,
        num_heads: int,
        inner_dim: int = 512,
        trained_size: int | None = None,
        **kwargs,
    ):
        super().__init__(size, num_heads, **kwargs)
        self.trained_size = trained_size
        with no_inner_remat():
            self.hidden = Dense(inner_dim, name="hidden", dtype=self.dtype_policy)
            self.output_dense = Dense(
                num_heads, use_bias=False, name="output", dtype=self.dtype_policy
            )

    @classmethod
    def from_part(cls, part: config.Attention, **kwargs) -> "ContinuousWindowBias":
        bias = part.score_bias
        size = part.pattern.size
        return cls(size, part.num_heads, bias.inner_dim, bias.trained_size, **kwargs)

    def build(self, queries_shape=None):
        self.hidden.build((None, 2))
        self.output_dense.build((None, self.hidden.units))
        self.built = True

    def call(self, queries):
        distances = constant(log_distances(self.size, self.trained_size))
        hidden = ops.relu(self.hidden(ops.cast(distances, self.compute_dtype)))
        table = 16 * ops.sigmoid(self.output_dense(hidden))
        return ops.transpose(look_up(table, window_index(self.size)), (2, 0, 1))[None]


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

    @classmethod
    def from_part(cls, part: config.Attention, **kwargs) -> "DecomposedScores":
        """Make the layer for an attention over a grid; `kwargs` are its other arguments."""
        return cls(part.scored_grid, part.head_dim, **kwargs)

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


@functools.lru_cache(maxsize=16)
def log_distances(size: int, trained_size: int | None = None) -> np.ndarray:
    """Return the logarithms of the distances in a window, with their signs.

    Args:
        size: int, rows and columns of the window.
        trained_size: int, rows and columns of a window whose distances are -1 to 1 before the
            logarithm. Defaults to `size`.

    Returns:
        Float32 `(distances, 2)`, rows and columns, in the order of `grid.window_index`.
    """
    line = np.arange(1 - size, size, dtype="float32") / max((trained_size or size) - 1, 1) * 8
    line = np.sign(line) * np.log2(np.abs(line) + 1) / np.log2(np.float32(8))
    return np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2).astype("float32")


@functools.lru_cache(maxsize=16)
def edge_sides(part: config.GridWindows, grid: tuple[int, int]) -> np.ndarray:
    """Return on which side of the edges of the grid each place of the shifted windows is.

    Returns:
        Int32 `(windows, size * size)`: 0, or another number for places that come from the opposite
        edge; places of a window with the same number see each other.
    """
    size, shift = part.size, part.shift_of(grid)
    # Of the windows at the lower and the right edge, the last lines come from the opposite edge.
    lines = [np.arange(-(-n // size) * size) for n in grid]
    rows, columns = (line >= len(line) - shift for line in lines)
    sides = (2 * rows[:, None] + columns).reshape(len(rows) // size, size, -1, size)
    return sides.transpose(0, 2, 1, 3).reshape(-1, size * size).astype("int32")


def check_length(length, grid: tuple[int, int]) -> None:
    """Raise ValueError unless the states are those of a grid."""
    if isinstance(length, int) and length != grid[0] * grid[1]:
        raise ValueError(
            f"Attention over a grid of {grid[0]} x {grid[1]} patches received {length:,} states: "
            "give images of the `image_size` of the config."
        )
