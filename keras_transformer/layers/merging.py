"""States of patches on a grid: merged to fewer and wider ones, and as maps of an image."""

import keras
from keras import ops

from keras_transformer.config import ConcatenatedMerging, Norm, OverlappingMerging, TimePositions
from keras_transformer.kernels.values import constant
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.layers.resampling import linear_resampling


def as_map(states, grid: tuple[int, int]):
    """Return states `(batch, rows * columns, dim)` as a map `(batch, rows, columns, dim)`.

    Raises ValueError if they are not as many as the grid has places.
    """
    length, (rows, columns) = states.shape[1], grid
    if isinstance(length, int) and length != rows * columns:
        raise ValueError(
            f"A grid of {rows} x {columns} patches has {rows * columns:,} states, received "
            f"{length:,}."
        )
    return ops.reshape(states, (-1, rows, columns, states.shape[-1]))


def as_states(x):
    """Return a map `(batch, rows, columns, dim)` as states `(batch, rows * columns, dim)`."""
    return ops.reshape(x, (-1, x.shape[1] * x.shape[2], x.shape[3]))


class OverlappingPatchMerging(keras.layers.Layer):
    """Merge neighbouring patches of a grid, see `config.OverlappingMerging`.

    Args:
        part: `config.OverlappingMerging`.
        norm: `config.Norm`, the kind of both norms.
        kernel_initializer: initializer of the kernel.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, rows * columns, dim)`.
        grid: ints, rows and columns of the patches.

    Returns:
        Float `(batch, merged rows * merged columns, hidden_dim)`.

    Source: Xie et al. 2021, "SegFormer", section 3.1.
    """

    def __init__(
        self,
        part: OverlappingMerging,
        norm: Norm,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part
        dtype = self.dtype_policy
        with no_inner_remat():
            self.input_norm, self.norm = (
                make_normalization(norm.type, norm.epsilon, name=name, dtype=dtype)
                for name in ("input_norm", "norm")
            )
            self.convolution = keras.layers.Conv2D(
                part.hidden_dim,
                part.kernel_size,
                part.stride,
                data_format="channels_last",
                kernel_initializer=kernel_initializer,
                name="convolution",
                dtype=dtype,
            )

    def build(self, inputs_shape):
        self.input_norm.build(inputs_shape)
        self.convolution.build((None, None, None, inputs_shape[-1]))
        self.norm.build((None, None, self.part.hidden_dim))

    def call(self, inputs, grid: tuple[int, int]):
        x = as_map(self.input_norm(inputs), grid)
        padding = self.part.kernel_size // 2
        # Keras would pad even sizes on one side only.
        x = ops.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        return self.norm(as_states(self.convolution(x)))


class ConcatenatedPatchMerging(keras.layers.Layer):
    """Merge two by two patches of a grid, see `config.ConcatenatedMerging`.

    Args:
        part: `config.ConcatenatedMerging`.
        norm: `config.Norm`, the kind of the norm.
        kernel_initializer: initializer of the kernel.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, rows * columns, dim)`.
        grid: ints, rows and columns of the patches.

    Returns:
        Float `(batch, merged rows * merged columns, hidden_dim)`.

    Source: Liu et al. 2021, "Swin Transformer", section 3.1; the norm behind the projection: Liu et
    al. 2021, "Swin Transformer V2", as in its code.
    """

    input_norm = None  # The states of the stage before have no norm of their own.

    def __init__(
        self,
        part: ConcatenatedMerging,
        norm: Norm,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part
        with no_inner_remat():
            self.norm = make_normalization(
                norm.type, norm.epsilon, name="norm", dtype=self.dtype_policy
            )
            self.projection = Dense(
                part.hidden_dim,
                use_bias=False,
                kernel_initializer=kernel_initializer,
                name="projection",
                dtype=self.dtype_policy,
            )

    def build(self, inputs_shape):
        before = self.part.norm_place == "before"
        width = 4 * inputs_shape[-1] if before else self.part.hidden_dim
        self.norm.build((None, None, width))
        self.projection.build((None, None, 4 * inputs_shape[-1]))

    def call(self, inputs, grid: tuple[int, int]):
        (rows, columns), (down, right) = grid, self.part.grid(grid)
        x, dim = as_map(inputs, grid), inputs.shape[-1]
        if grid != (2 * down, 2 * right):
            x = ops.pad(x, ((0, 0), (0, 2 * down - rows), (0, 2 * right - columns), (0, 0)))
        x = ops.reshape(x, (-1, down, 2, right, 2, dim))
        x = ops.reshape(ops.transpose(x, (0, 1, 3, 4, 2, 5)), (-1, down * right, 4 * dim))
        if self.part.norm_place == "behind":
            return self.norm(self.projection(x))
        return self.projection(self.norm(x))


class AddedTimePositions(keras.layers.Layer):
    """Normalize states of a video and add positions in time, see `config.TimePositions`.

    Args:
        part: `config.TimePositions`.
        norm: `config.Norm`, the kind of the norm.
        kernel_initializer: initializer of the positions.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, steps * rows * columns, dim)`.
        grid: ints, steps in time, rows and columns.

    Returns:
        Float, of the same shape.

    Source: Zhao et al. 2024, "VideoPrism", section 3.3.
    """

    def __init__(
        self, part: TimePositions, norm: Norm, kernel_initializer="glorot_uniform", **kwargs
    ):
        super().__init__(**kwargs)
        self.part = part
        self._initializer = keras.initializers.get(kernel_initializer)
        with no_inner_remat():
            self.input_norm = make_normalization(
                norm.type, norm.epsilon, name="input_norm", dtype=self.dtype_policy
            )

    def build(self, inputs_shape):
        self.input_norm.build(inputs_shape)
        if self.part.steps:
            shape = (self.part.steps, inputs_shape[-1])
            self.positions = self.add_weight(shape, self._initializer, name="positions")

    def call(self, inputs, grid: tuple[int, int, int]):
        x, usual, (steps, *places) = self.input_norm(inputs), self.part.steps, grid
        if not usual:
            return x
        added = ops.cast(self.positions, "float32")
        if steps != usual:
            added = ops.matmul(constant(linear_resampling(usual, steps, antialiased=True)), added)
        added = ops.repeat(ops.cast(added, x.dtype), places[0] * places[1], axis=0)
        return x + added[None]


class SequenceReduction(keras.layers.Layer):
    """Merge each square of a grid to one state, which keys and values are computed from.

    Args:
        size: int, rows and columns of a square. Rows and columns left over are dropped.
        norm: `config.Norm`, the kind of the norm of the merged states.
        kernel_initializer: initializer of the kernel.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, rows * columns, dim)`.
        grid: ints, rows and columns of the patches.

    Returns:
        Float `(batch, rows // size * columns // size, dim)`.

    Source: Wang et al. 2021, "Pyramid Vision Transformer", section 3.3.
    """

    def __init__(self, size: int, norm: Norm, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.size = size
        self.kernel_initializer = kernel_initializer
        with no_inner_remat():
            self.norm = make_normalization(
                norm.type, norm.epsilon, name="norm", dtype=self.dtype_policy
            )

    def build(self, inputs_shape):
        with no_inner_remat():
            self.convolution = keras.layers.Conv2D(
                inputs_shape[-1],
                self.size,
                self.size,
                data_format="channels_last",
                kernel_initializer=self.kernel_initializer,
                name="convolution",
                dtype=self.dtype_policy,
            )
        self.convolution.build((None, None, None, inputs_shape[-1]))
        self.norm.build(inputs_shape)

    def call(self, inputs, grid: tuple[int, int]):
        if min(grid) < self.size:
            raise ValueError(
                f"Attention with sequence_reduction={self.size} received a grid of {grid[0]} x "
                f"{grid[1]} patches: give larger images."
            )
        return self.norm(as_states(self.convolution(as_map(inputs, grid))))
