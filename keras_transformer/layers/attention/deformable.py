"""Attention to few places of maps of several scales, which the queries themselves choose."""

import math
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.dense import Dense
from keras_transformer.layers.remat import no_inner_remat


class DeformableAttention(keras.layers.Layer):
    """Multi-scale deformable attention: each head reads a few places around the box of its query.

    A linear layer of a query gives the distances of the places from the center of its box, as
    shares of half its width and height, another one their weights. Between the centers of a map's
    places values are interpolated linearly, and beside the map they are 0; or the nearest place is
    read.

    Args:
        width: int, features of queries and states, a multiple of `num_heads`.
        num_heads: int.
        levels: int, number of maps.
        num_points: int, places that a head reads in each map, or ints, one for each map.
        offset_scale: float, the share of a box's width and height that a distance of 1 is.
        sampling: str, `"linear"`, or `"nearest"`, which has no gradient of the distances.
        value_projection: bool, whether there are linear layers of the states, and of what the heads
            have read.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        queries: float `(batch, queries, width)`.
        states: float `(batch, places, width)`, those of all maps, row by row.
        boxes: float32 `(batch, queries, 4)`, center x, center y, width and height of a box as
            shares of the image.
        grids: rows and columns of each map.

    Returns:
        Float `(batch, queries, width)`.

    Raises:
        ValueError: if the grids are not those of the states, or there are not as many
            `num_points` as `levels`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers.attention.deformable import DeformableAttention

    layer = DeformableAttention(width=8, num_heads=2, levels=2, num_points=3)
    queries, states = np.zeros((1, 5, 8), "float32"), np.ones((1, 4 * 6 + 2 * 3, 8), "float32")
    boxes = np.full((1, 5, 4), 0.5, "float32")
    layer.build()
    assert layer(queries, states, boxes, grids=((4, 6), (2, 3))).shape == (1, 5, 8)
    ```

    Source: Zhu et al. 2020, "Deformable DETR: Deformable Transformers for End-to-End Object
    Detection", section 4.1 and appendix A.3; the nearest place: Lv et al. 2024, "RT-DETRv2",
    section 3, https://arxiv.org/abs/2407.17140; without projections: Peng et al. 2024, "D-FINE",
    appendix A.1, https://arxiv.org/abs/2410.13842.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        levels: int,
        num_points: int | Sequence[int],
        offset_scale: float = 0.5,
        sampling: str = "linear",
        value_projection: bool = True,
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)  # boxes stay float32
        self.offset_scale, self.sampling = offset_scale, sampling
        self.width, self.num_heads = width, num_heads
        self.levels = levels
        alike = isinstance(num_points, int)
        self.num_points = (num_points,) * levels if alike else tuple(num_points)
        if len(self.num_points) != levels:
            raise ValueError(
                f"`num_points` must be an integer, or one for each of {levels} maps, received "
                f"{num_points}."
            )
        count, options = num_heads * sum(self.num_points), {"dtype": self.dtype_policy}
        self.value_dense = self.output_dense = None
        with no_inner_remat():
            self.offsets = Dense(
                2 * count,
                kernel_initializer="zeros",
                bias_initializer=lambda shape, dtype: ops.convert_to_tensor(self._around(), dtype),
                name="offsets",
                **options,
            )
            self.weights_dense = Dense(count, kernel_initializer="zeros", name="weights", **options)
            if value_projection:
                self.value_dense = Dense(width, name="value", **options)
                self.output_dense = Dense(width, name="output", **options)

    def _around(self) -> np.ndarray:
        """Return the first distances: each head looks in a direction, each point further."""
        angles = np.arange(self.num_heads) * (2 * math.pi / self.num_heads)
        directions = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        directions /= np.abs(directions).max(axis=-1, keepdims=True)
        steps = np.concatenate([np.arange(1, count + 1) for count in self.num_points])
        return (directions[:, None] * steps[:, None]).reshape(-1).astype("float32")

    def build(self, *shapes, **named):
        for layer in (self.offsets, self.weights_dense, self.value_dense, self.output_dense):
            if layer is not None:
                layer.build((None, None, self.width))
        self.built = True

    def call(self, queries, states, boxes, grids: Sequence[tuple[int, int]]):
        places = sum(math.prod(grid) for grid in grids)
        if len(grids) != self.levels or states.shape[1] not in (None, places):
            raise ValueError(
                f"Deformable attention to {self.levels} maps needs the rows and columns of each, "
                f"received {[*grids]} for {states.shape[1]} states."
            )
        heads, head_dim = self.num_heads, self.width // self.num_heads
        count, points = queries.shape[1], sum(self.num_points)
        shape = (-1, count, heads, points)
        offsets = ops.reshape(ops.cast(self.offsets(queries), "float32"), (*shape, 2))
        weights = ops.reshape(self.weights_dense(queries), shape)
        weights = ops.softmax(ops.cast(weights, "float32"), axis=-1)
        boxes = ops.cast(boxes, "float32")[:, :, None, None]
        share = self.offset_scale / np.repeat(self.num_points, self.num_points)[:, None]
        share = ops.convert_to_tensor(share.astype("float32"))
        located = boxes[..., :2] + offsets * boxes[..., 2:] * share
        read_at = _corners if self.sampling == "linear" else _nearest
        numbers, shares = read_at(located, *_sizes(grids, self.num_points))

        rows = ops.arange(ops.shape(states)[0], dtype="int32")[:, None, None, None, None]
        own = ops.arange(heads, dtype="int32")[:, None, None]
        numbers = (numbers + rows * places) * heads + own
        values = states if self.value_dense is None else self.value_dense(states)
        values = ops.reshape(values, (-1, head_dim))
        read = (-1, count, heads, points * shares.shape[-1])
        taken = ops.take(values, ops.reshape(numbers, (-1,)), axis=0)
        taken = ops.reshape(taken, (*read, head_dim))
        shares = ops.reshape(shares * weights[..., None], read)
        mixed = ops.einsum("nqhk,nqhkd->nqhd", ops.cast(shares, taken.dtype), taken)
        mixed = ops.reshape(mixed, (-1, count, self.width))
        return mixed if self.output_dense is None else self.output_dense(mixed)

    def compute_output_shape(self, queries_shape, *shapes, **named):
        return queries_shape

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call


def _corners(located, starts, rows, columns) -> tuple:
    """Return the four places of maps around each point, and their shares in its value.

    Args:
        located: float32 `(..., points, 2)`, x and y as shares of the image.
        starts: int32 `(points,)`, see `_sizes`.
        rows: int32 `(points,)`.
        columns: int32 `(points,)`.

    Returns:
        Numbers of places, int32 `(..., points, 4)`, counted over all maps, and their shares,
        float32 of the same shape, which are 0 beside the map.
    """
    numbers, shares = [], []
    height, width = ops.cast(rows, "float32"), ops.cast(columns, "float32")
    x, y = located[..., 0] * width - 0.5, located[..., 1] * height - 0.5
    left, top = ops.floor(x), ops.floor(y)
    for down in (0, 1):
        for right in (0, 1):
            column, row = left + right, top + down
            of_x = x - left if right else 1 - (x - left)
            of_y = y - top if down else 1 - (y - top)
            within = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            shares.append(of_x * of_y * ops.cast(within, "float32"))
            column, row = ops.cast(column, "int32"), ops.cast(row, "int32")
            column = ops.minimum(ops.maximum(column, 0), columns - 1)
            row = ops.minimum(ops.maximum(row, 0), rows - 1)
            numbers.append(starts + row * columns + column)
    return ops.stack(numbers, axis=-1), ops.stack(shares, axis=-1)


def _nearest(located, starts, rows, columns) -> tuple:
    """Return the nearest place to each point, as `_corners` does for four of them."""
    # Half a place further than the center, as the published code has it.
    column = ops.cast(located[..., 0] * ops.cast(columns, "float32") + 0.5, "int32")
    row = ops.cast(located[..., 1] * ops.cast(rows, "float32") + 0.5, "int32")
    column = ops.minimum(ops.maximum(column, 0), columns - 1)
    row = ops.minimum(ops.maximum(row, 0), rows - 1)
    numbers = (starts + row * columns + column)[..., None]
    return numbers, ops.ones_like(numbers, dtype="float32")


def _sizes(grids: Sequence[tuple[int, int]], points: Sequence[int]) -> tuple:
    """Return of the map of each point the first place, rows and columns, int32 `(points,)` each.

    Args:
        grids: rows and columns of each map.
        points: ints, how many points there are in each map.
    """
    sizes = [math.prod(grid) for grid in grids]
    starts = np.cumsum([0, *sizes[:-1]])
    return tuple(
        ops.convert_to_tensor(np.repeat(np.array(each, "int32"), points))
        for each in (starts, *zip(*grids, strict=True))
    )
