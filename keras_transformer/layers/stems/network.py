"""Base of the stems of images that are convolutional networks with frozen batch norms."""

import math

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.kernels.convolution import centered_convolution
from keras_transformer.layers.arguments import kernel_initializer
from keras_transformer.layers.fusion import batch_norm_layer
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.layers.stems.images import ImageStem
from keras_transformer.layers.stems.stem import Embedded, Input

# The published model's epsilon of the norms, and the base of its sinusoids' wavelengths.
_EPSILON, _BASE = 1e-5, 10000.0


@keras.saving.register_keras_serializable(package="keras_transformer")
class FrozenBatchNormalization(keras.layers.Layer):
    """A batch norm whose averages, factors and offsets are never trained.

    Args:
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, height, width, features)`.

    Returns:
        Float of the same shape.

    Source: Ioffe and Szegedy 2015, "Batch Normalization", algorithm 2; frozen: Carion et al. 2020,
    section 4.
    """

    def build(self, input_shape):
        for name, initial in (
            ("gamma", "ones"),
            ("beta", "zeros"),
            ("moving_mean", "zeros"),
            ("moving_variance", "ones"),
        ):
            weight = self.add_weight(input_shape[-1:], initial, name=name, trainable=False)
            setattr(self, name, weight)

    def call(self, inputs):
        names = ("gamma", "beta", "moving_mean", "moving_variance")
        gamma, beta, mean, variance = (ops.cast(getattr(self, n), "float32") for n in names)
        factor = gamma * ops.rsqrt(variance + _EPSILON)
        offset = beta - mean * factor
        return inputs * ops.cast(factor, inputs.dtype) + ops.cast(offset, inputs.dtype)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call


@keras.saving.register_keras_serializable(package="keras_transformer")
class AffineLayer(keras.layers.Layer):
    """A trained number by which all features are multiplied, and one that is added to them.

    Args:
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float array of any shape.

    Returns:
        Float of the same shape.
    """

    def build(self, input_shape=None):
        self.scale = self.add_weight((1,), "ones", name="scale")
        self.bias = self.add_weight((1,), "zeros", name="bias")
        self.built = True

    def call(self, inputs):
        scale, bias = (ops.cast(each, inputs.dtype) for each in (self.scale, self.bias))
        return inputs * scale + bias

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call


class NetworkStem(ImageStem):
    """Base class of convolutional networks, whose last map is projected to the states.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `NetworkStemConfig`.
        initializer: initializer of all weights. Defaults to He's normal initializer, and for the
            projection to the config's.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `images`, float `(batch, height, width, channels)`, and optionally
            `padding_mask`, bool `(batch, height, width)`, True for the pixels of an image; padding
            is below it and to its right. Not with positions of `"counts"`.

    Returns:
        `Embedded`: a state for each place of the last map, row by row, with its position for each
        attention: sines and cosines of its row in the first half of the features, of its column in
        the second; and the config's `num_maps`.

    Raises:
        ValueError: if the mask is not that of the images.

    Source: positions: Carion et al. 2020, "End-to-End Object Detection with Transformers", appendix
    A.4.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        self.convolutions, self.norms, self.affines = {}, {}, {}
        options = {"data_format": "channels_last", "dtype": self.dtype_policy}
        with no_inner_remat():
            for each in config.stem.convolutions:
                self.convolutions[each.name] = keras.layers.Conv2D(
                    each.outputs,
                    each.size,
                    strides=each.step,
                    groups=each.groups,
                    use_bias=False,
                    kernel_initializer=initializer or "he_normal",
                    name=each.name,
                    **options,
                )
                self.norms[each.name] = FrozenBatchNormalization(
                    name=f"{each.name}_frozen_norm", dtype=self.dtype_policy
                )
                if each.affine:
                    self.affines[each.name] = AffineLayer(
                        name=f"{each.name}_affine", dtype=self.dtype_policy
                    )
            self.projection = keras.layers.Dense(
                config.embedding_dim,
                use_bias=not config.stem.projection_norm,
                kernel_initializer=kernel_initializer(config, initializer),
                name="input_projection",
                dtype=self.dtype_policy,
            )
        self.projection_norm = None
        if config.stem.projection_norm:
            self.projection_norm = batch_norm_layer("input_projection_norm", self.dtype_policy)
        self.make_rest(initializer)

    @property
    def inputs(self):
        if self.config.stem.positions == "counts":
            return super().inputs
        mask = Input("padding_mask", "bool", (None, None), of_tokens=False)
        return (*super().inputs, mask)

    def build(self, input_shape=None):
        stem = self.config.stem
        for each in stem.convolutions:
            self.convolutions[each.name].build((None, None, None, each.inputs))
            self.norms[each.name].build((None, None, None, each.outputs))
            if each.affine:
                self.affines[each.name].build()
        self.projection.build((None, None, stem.widths[-1]))
        if self.projection_norm is not None:
            self.projection_norm.build((None, None, self.config.embedding_dim))
        super().build(input_shape)

    def states_shape(self, inputs):
        batch, *size = inputs["images"].shape[:3]
        length = None if None in size else math.prod(self.config.stem.grid(tuple(size)))
        return batch, length, self.config.embedding_dim

    def mask_of_states(self, padding_mask, length=None):
        """Return the mask of the states, bool `(batch, rows * columns)`, from that of the pixels.

        A state is real if the pixel at its upper left corner is.
        """
        if padding_mask is None:
            return None
        real = self._mask_on_grid(padding_mask, self.image_size(padding_mask[..., None]))
        return ops.reshape(real, (-1, real.shape[1] * real.shape[2]))

    def call(self, inputs, training=False):
        images = ops.cast(inputs["images"], self.compute_dtype)
        size, mask = self.image_size(images), inputs.get("padding_mask")
        if mask is not None and tuple(mask.shape[1:3]) != tuple(images.shape[1:3]):
            raise ValueError(
                "`padding_mask` must be of shape (batch, height, width) like the images, "
                f"{tuple(images.shape)}, received {tuple(mask.shape)}."
            )
        *maps, x = self._maps(images)
        rows, columns = self.config.stem.grid(size)
        x = self.projection(ops.reshape(x, (-1, rows * columns, x.shape[-1])))
        x = x if self.projection_norm is None else self.projection_norm(x, training=training)
        states = self.finished(x, training)
        real = None if mask is None else self._mask_on_grid(mask, size)
        positions = ops.cast(self._positions(real, (rows, columns)), states.dtype)
        seen = None if real is None else ops.reshape(real, (-1, rows * columns))
        read = tuple(maps[len(maps) - self.config.stem.num_maps :])
        return Embedded(states, padding_mask=seen, attention_positions=positions, maps=read)

    def _maps(self, images):
        """Return the map of each stage, `(batch, rows, columns, features)`."""
        raise NotImplementedError

    def _convolved(self, name: str, x):
        """Apply a convolution, centred at each place, and its norm."""
        return self.norms[name](centered_convolution(self.convolutions[name], x))

    def _activated(self, name: str, x):
        """Apply a convolution, its norm, ReLU, and the trained factor and offset, if it has any."""
        x = ops.relu(self._convolved(name, x))
        return self.affines[name](x) if name in self.affines else x

    def _mask_on_grid(self, mask, size: tuple[int, int]):
        """Return the mask of pixels at the upper left corners of the states."""
        mask = ops.cast(mask, "bool")
        for axis, pair in enumerate(zip(size, self.config.stem.grid(size), strict=True), 1):
            before, after = pair
            step = np.float32(before / after)
            places = np.floor(np.arange(after, dtype="float32") * step).astype("int32")
            mask = ops.take(mask, np.minimum(places, before - 1), axis=axis)
        return mask

    def _positions(self, real, grid: tuple[int, int]):
        """Return the positions of the states, float32 `(batch or 1, rows * columns, width)`."""
        if self.config.stem.positions == "counts":
            return ops.convert_to_tensor(self._counted(grid), "float32")
        real = ops.ones((1, *grid)) if real is None else ops.cast(real, "float32")
        half = self.config.embedding_dim // 2
        waves = _BASE ** (2 * (np.arange(half) // 2) / half)
        halves = []
        for axis, last in ((1, real.shape[1] - 1), (2, real.shape[2] - 1)):
            counts = ops.cumsum(real, axis=axis)
            counts = counts / (ops.take(counts, [last], axis=axis) + 1e-6) * (2 * math.pi)
            angles = counts[..., None] / ops.convert_to_tensor(waves, "float32")
            pairs = ops.stack([ops.sin(angles[..., 0::2]), ops.cos(angles[..., 1::2])], axis=-1)
            halves.append(ops.reshape(pairs, (-1, grid[0] * grid[1], half)))
        return ops.concatenate(halves, axis=-1)

    def _counted(self, grid: tuple[int, int]) -> np.ndarray:
        """Return the positions of places whose rows and columns are counted, float32."""
        quarter = self.config.embedding_dim // 4
        waves = _BASE ** -(np.arange(quarter) / quarter)
        angles = [places[..., None] * waves for places in np.indices(grid).astype("float64")]
        found = [function(each) for each in angles for function in (np.sin, np.cos)]
        found = np.concatenate(found, axis=-1).astype("float32")
        return found.reshape(1, grid[0] * grid[1], -1)
