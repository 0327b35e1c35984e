"""The decoder of dense predictions on a vision transformer: states of four blocks become a map."""

import keras
import numpy as np
from keras import ops

from keras_transformer.config.fusion import SCALES, Fusion
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.layers.resampling import linear_resampling


def conv(units: int, size: int, name: str, dtype, bias: bool = True, strides: int = 1, **options):
    """Return a convolution without padding for a stride above 1, and with it otherwise."""
    with no_inner_remat():
        return keras.layers.Conv2D(
            units,
            size,
            strides,
            padding="same" if strides == 1 else "valid",
            data_format="channels_last",
            use_bias=bias,
            name=name,
            dtype=dtype,
            **options,
        )


def linear_weights(before: int, after: int, kept: str = "corners") -> np.ndarray:
    """Return the matrix of linear interpolation along an axis, float32 `(after, before)`.

    Args:
        before: int, the number of values.
        after: int, the number of interpolated values.
        kept: `"corners"`, the first and the last value stay in place; or `"edges"`, the outer
            edges of the first and the last pixel.
    """
    if kept == "edges":
        return linear_resampling(before, after)
    places = np.arange(after) * ((before - 1) / max(after - 1, 1))
    low = np.minimum(np.floor(places).astype(int), before - 1)
    high, share = np.minimum(low + 1, before - 1), places - low
    matrix = np.zeros((after, before))
    np.add.at(matrix, (np.arange(after), low), 1 - share)
    np.add.at(matrix, (np.arange(after), high), share)
    return matrix.astype("float32")


def interpolate(x, size: tuple[int, int], kept: str = "corners"):
    """Interpolate maps linearly, `(batch, height, width, features)`; `kept`: `linear_weights`."""
    given = x.shape[1:3]
    if tuple(given) == tuple(size):
        return x
    rows, columns = (linear_weights(*pair, kept) for pair in zip(given, size, strict=True))
    x = ops.einsum("ai,nijd->najd", ops.cast(rows, x.dtype), x)
    return ops.einsum("bj,najd->nabd", ops.cast(columns, x.dtype), x)


class _Residual(keras.layers.Layer):
    """Two convolutions, each behind a ReLU, and their sum with the input."""

    def __init__(self, values: Fusion, **kwargs):
        super().__init__(**kwargs)
        self.norms = [None, None]
        self.convolutions = []
        for i in (1, 2):
            self.convolutions.append(
                conv(
                    values.features,
                    3,
                    f"convolution_{i}",
                    self.dtype_policy,
                    bias=not values.batch_norm,
                )
            )
        if values.batch_norm:
            self.norms = [batch_norm_layer(f"norm_{i}", self.dtype_policy) for i in (1, 2)]

    def build(self, shape):
        for layer in (*self.convolutions, *self.norms):
            if layer is not None:
                layer.build(shape)

    def call(self, x, training: bool = False):
        states = x
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            states = convolution(ops.relu(states))
            states = states if norm is None else norm(states, training=training)
        return x + states


def batch_norm_layer(name: str, dtype) -> keras.layers.BatchNormalization:
    """Return a batch norm with PyTorch's momentum and epsilon."""
    with no_inner_remat():
        return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=name, dtype=dtype)


class _Fuse(keras.layers.Layer):
    """Sum of the map so far and the next one, interpolated to a size and projected."""

    def __init__(self, values: Fusion, first: bool, **kwargs):
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.skip = None if first else _Residual(values, name="skip", dtype=dtype)
        self.residual = _Residual(values, name="residual", dtype=dtype)
        self.output_convolution = conv(values.features, 1, "output", dtype)

    def build(self, shape):
        for layer in (self.skip, self.residual, self.output_convolution):
            if layer is not None:
                layer.build(shape)

    def call(self, x, size, skipped=None, training: bool = False):
        if skipped is not None:
            x = x + self.skip(skipped, training=training)
        x = interpolate(self.residual(x, training=training), size)
        return self.output_convolution(x)


@keras.saving.register_keras_serializable(package="keras_transformer")
class FusionDecoder(keras.layers.Layer):
    """Fuse the states of four blocks of a vision transformer to one map of features.

    The states of patches are laid out as a grid, brought to four sizes by convolutions, and summed
    from the smallest map to the largest. For a grid with an odd number of rows or columns each map
    is interpolated to the size of the next one.

    Args:
        values: `Fusion`.
        width: int, the features of the states.
        tokens: int, the number of states before those of the patches; the first is the readout.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        states: list of four float arrays `(batch, tokens + rows * columns, width)`.
        grid: tuple of ints, the rows and columns of patches.

    Returns:
        Float `(batch, 8 * rows, 8 * columns, features)`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import Fusion, FusionDecoder

    values = Fusion(layers=(1, 1, 2, 2), channels=(4, 4, 8, 8), features=6)
    decoder = FusionDecoder(values, width=12, tokens=1)
    states = [np.zeros((2, 1 + 4 * 6, 12), "float32")] * 4
    assert decoder(states, grid=(4, 6)).shape == (2, 32, 48, 6)
    ```

    Source: Ranftl et al. 2021, "Vision Transformers for Dense Prediction", section 3.
    """

    def __init__(self, values: Fusion, width: int, tokens: int, **kwargs):
        super().__init__(**kwargs)
        self.values, self.width, self.tokens = values, width, tokens
        if values.readout == "project" and not tokens:
            raise ValueError(
                "readout='project' reads the class token, which this backbone does not have: use "
                "readout='ignore'."
            )
        dtype = self.dtype_policy
        self.readouts = []
        if values.readout == "project":
            with no_inner_remat():
                self.readouts = [
                    keras.layers.Dense(width, name=f"readout_{i}", dtype=dtype)
                    for i in range(len(SCALES))
                ]
        self.projections = [
            conv(n, 1, f"project_{i}", dtype) for i, n in enumerate(values.channels)
        ]
        self.resizes = [
            self._resize(scale, n, f"resize_{i}")
            for i, (scale, n) in enumerate(zip(SCALES, values.channels, strict=True))
        ]
        self.convolutions = [
            conv(values.features, 3, f"feature_{i}", dtype, bias=False) for i in range(len(SCALES))
        ]
        self.fuses = [
            _Fuse(values, first=not i, name=f"fuse_{i}", dtype=dtype) for i in range(len(SCALES))
        ]

    def _resize(self, scale: float, units: int, name: str):
        if scale == 1:
            return None
        if scale < 1:
            return conv(units, 3, name, self.dtype_policy, strides=int(1 / scale))
        with no_inner_remat():
            return keras.layers.Conv2DTranspose(
                units,
                int(scale),
                int(scale),
                data_format="channels_last",
                name=name,
                dtype=self.dtype_policy,
            )

    def build(self, states_shape=None):
        for layer in self.readouts:
            layer.build((None, None, 2 * self.width))
        for i, channels in enumerate(self.values.channels):
            self.projections[i].build((None, None, None, self.width))
            if self.resizes[i] is not None:
                self.resizes[i].build((None, None, None, channels))
            self.convolutions[i].build((None, None, None, channels))
        for layer in self.fuses:
            layer.build((None, None, None, self.values.features))
        self.built = True

    def call(self, states, grid: tuple[int, int], training: bool = False):
        maps = [self._map(i, each, grid) for i, each in enumerate(states)]
        maps = maps[::-1]
        sizes = [each.shape[1:3] for each in maps[1:]]
        sizes.append(tuple(2 * n for n in maps[-1].shape[1:3]))
        x = None
        for fuse, each, size in zip(self.fuses, maps, sizes, strict=True):
            x, skipped = (each, None) if x is None else (x, each)
            x = fuse(x, size=size, skipped=skipped, training=training)
        return x

    def _map(self, i: int, states, grid: tuple[int, int]):
        patches = states[:, self.tokens :]
        if self.readouts:
            token = ops.broadcast_to(states[:, :1], ops.shape(patches))
            patches = self.readouts[i](ops.concatenate([patches, token], axis=-1))
            patches = ops.gelu(patches, approximate=False)
        x = self.projections[i](ops.reshape(patches, (-1, *grid, self.width)))
        if self.resizes[i] is not None:
            # Keras would pad even sizes on one side only.
            x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))) if SCALES[i] < 1 else x
            x = self.resizes[i](x)
        return self.convolutions[i](x)

    def compute_output_shape(self, states_shape, grid):
        return (states_shape[0][0], *(8 * n for n in grid), self.values.features)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call
