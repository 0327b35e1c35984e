"""Attention biases for pairs of places on a grid, such as the patches of an image."""

import functools

import keras
import numpy as np
from keras import ops

from keras_transformer.config import GridBias as GridBiasPart
from keras_transformer.config import Side
from keras_transformer.config.weight import grid_distances
from keras_transformer.kernels.indexing import look_up
from keras_transformer.layers.resampling import linear_resampling


class GridBias(keras.layers.Layer):
    """Trained bias per head for each distance between two places of a grid, in rows and columns.

    A `Stack` uses it for sequences of one token followed by the places of a grid, row by row.

    Args:
        num_heads: int, number of heads.
        grid: ints, rows and columns.
        num_layers: int, number of layers, each with its own table. None makes one table that all
            layers share.
        **kwargs: as in `keras.layers.Layer`.

    Source: Bao et al. 2021, "BEiT", section 2.2; other grids: Birkl et al. 2023, "MiDaS v3.1".
    """

    def __init__(self, num_heads: int, grid: tuple, num_layers: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.grid = tuple(grid)
        self.num_layers = num_layers

    @classmethod
    def from_part(cls, part: GridBiasPart, side: Side, causal: bool, **kwargs) -> "GridBias":
        """Make the layer for a part of a config; `kwargs` are the other arguments of the layer."""
        kwargs.pop("embeddings_initializer", None)
        stem, layers = side.input, side.num_layers if part.tables == "own" else None
        grid = stem.grid(stem.image_size)
        return cls(side.num_heads, grid, layers, name="grid_bias", **kwargs)

    def build(self, input_shape=None):
        layers = () if self.num_layers is None else (self.num_layers,)
        # The last three rows are for the token before the places: its scores with the places, the
        # places' scores with it, and its score with itself.
        shape = (*layers, grid_distances(self.grid), self.num_heads)
        self.embeddings = self.add_weight(shape, "zeros", name="embeddings")

    def of_layers(self, grid: tuple[int, int]) -> list:
        """Return a bias for each layer, or one for all, float `(1, num_heads, length, length)`.

        Args:
            grid: rows and columns of the places. The tables are interpolated if it differs from
                the grid of the layer.
        """
        table = ops.cast(self.embeddings, "float32")
        table = table[None] if self.num_layers is None else table
        if grid != self.grid:
            table = self._interpolated(table, grid)
        bias = look_up(ops.transpose(table, (1, 0, 2)), grid_index(grid))
        bias = ops.cast(ops.transpose(bias, (2, 3, 0, 1)), self.compute_dtype)
        return [bias[i : i + 1] for i in range(bias.shape[0])]

    def _interpolated(self, table, grid):
        layers, _, heads = table.shape
        sizes = [(2 * own - 1, 2 * other - 1) for own, other in zip(self.grid, grid, strict=True)]
        places = ops.reshape(table[:, :-3], (layers, sizes[0][0], sizes[1][0], heads))
        rows, columns = (linear_resampling(*each) for each in sizes)
        places = ops.einsum("ai,bj,lijh->labh", rows, columns, places)
        places = ops.reshape(places, (layers, -1, heads))
        return ops.concatenate([places, table[:, -3:]], axis=1)


@functools.lru_cache(maxsize=16)
def grid_index(grid: tuple[int, int]) -> np.ndarray:
    """Return the row of the table for each pair, int32 `(length, length)`."""
    count = grid_distances(grid)
    places = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij")).reshape(2, -1)
    down, right = places[:, :, None] - places[:, None, :] + np.array(grid)[:, None, None] - 1
    length = places.shape[1] + 1
    index = np.empty((length, length), "int32")
    index[1:, 1:] = down * (2 * grid[1] - 1) + right
    index[0], index[:, 0], index[0, 0] = count - 3, count - 2, count - 1
    return index


def window_index(size: int) -> np.ndarray:
    """Return the row of the table for each pair of places in a window, int32 `(places, places)`."""
    return grid_index((size, size))[1:, 1:]
