"""Biases of pairs of places on a grid, such as that of the patches of an image."""

import functools

import numpy as np
from keras import ops

from keras_transformer.layers.embedding import look_up
from keras_transformer.weight import grid_distances


def grid_bias(table, usual: tuple[int, int], grid: tuple[int, int]):
    """A trained bias of each head for each distance of two places, rows and columns apart.

    Args:
        table: float `(layers, grid_distances(usual), num_heads)`. The last three are of the token
            before the places: of its scores with them, of theirs with it, and of its own.
        usual: the rows and columns of the grid that the table is of.
        grid: those of the grid that is wanted; the table is interpolated to its distances.

    Returns:
        Float32 `(layers, num_heads, length, length)`, for the token and the places, row by row.

    Source: Bao et al. 2021, "BEiT", appendix; other grids: Birkl et al. 2023, "MiDaS v3.1".
    """
    table = ops.cast(table, "float32")
    if grid != usual:
        layers, _, heads = table.shape
        sizes = [(2 * before - 1, 2 * after - 1) for before, after in zip(usual, grid, strict=True)]
        places = ops.reshape(table[:, :-3], (layers, sizes[0][0], sizes[1][0], heads))
        rows, columns = (linear_resampling(*each) for each in sizes)
        places = ops.einsum("ai,bj,lijh->labh", rows, columns, places)
        places = ops.reshape(places, (layers, -1, heads))
        table = ops.concatenate([places, table[:, -3:]], axis=1)
    bias = look_up(ops.transpose(table, (1, 0, 2)), _distances(grid))
    return ops.transpose(bias, (2, 3, 0, 1))


@functools.lru_cache(maxsize=16)
def _distances(grid: tuple[int, int]) -> np.ndarray:
    """The row of the table for each pair, int32 `(length, length)`."""
    count = grid_distances(grid)
    places = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij")).reshape(2, -1)
    down, right = places[:, :, None] - places[:, None, :] + np.array(grid)[:, None, None] - 1
    length = places.shape[1] + 1
    index = np.empty((length, length), "int32")
    index[1:, 1:] = down * (2 * grid[1] - 1) + right
    index[0], index[:, 0], index[0, 0] = count - 3, count - 2, count - 1
    return index


def linear_resampling(before: int, after: int) -> np.ndarray:
    """The linear interpolation of `before` values to `after`, float32 `(after, before)`."""
    matrix = np.zeros((after, before), "float32")
    for i in range(after):
        center = max((i + 0.5) * before / after - 0.5, 0)
        first = min(int(center), before - 1)
        second, part = min(first + 1, before - 1), center - first
        matrix[i, first] += 1 - part
        matrix[i, second] += part
    return matrix
