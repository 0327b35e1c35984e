"""The stem of waveforms, the samples of sound as they are."""

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.initializers import kernel_initializer
from keras_transformer.layers.products import Dense
from keras_transformer.layers.stems.positioned import PositionedStem
from keras_transformer.layers.stems.stem import Embedded, Input

_EPSILON = 1e-5  # of the norms of convolutions, in all that is published


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeatureNormalization(keras.layers.Layer):
    """Each feature of a recording is given the mean 0 and the variance 1 over its states.

    A group normalization of as many groups as features; padding does not count.

    Args:
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        x: float `(batch, length, features)`.
        real: bool `(batch, length)`, False for padding. None if there is none.
    """

    def build(self, input_shape):
        self.gamma = self.add_weight((input_shape[-1],), "ones", name="gamma")
        self.beta = self.add_weight((input_shape[-1],), "zeros", name="beta")

    def call(self, x, real=None):
        # In float32: sums of many.
        x = ops.cast(x, "float32")
        if real is None:
            mean, variance = ops.moments(x, axes=1, keepdims=True)
        else:
            weights = ops.cast(real, "float32")[..., None]
            weights = weights / ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1.0)
            mean = ops.sum(x * weights, axis=1, keepdims=True)
            variance = ops.sum(ops.square(x - mean) * weights, axis=1, keepdims=True)
        scale = ops.cast(self.gamma, "float32") * ops.rsqrt(variance + _EPSILON)
        x = (x - mean) * scale + ops.cast(self.beta, "float32")
        return ops.cast(x, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class WaveformStem(PositionedStem):
    """Convolutions over samples, a projection, and a convolution whose outputs are the positions.

    With a mask a recording gives the states that it gives alone, however long its padding is.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `WaveformStemConfig`.
        initializer: of all weights, in place of those of the config.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `samples`, float `(batch, length)`, and optionally `padding_mask`, bool
            likewise, True for the samples of the recording, behind which the padding is.

    Returns:
        `Embedded`: as many states as `WaveformStemConfig.lengths` says, those of padding masked.

    Source: Baevski et al. 2020, "wav2vec 2.0: A Framework for Self-Supervised Learning of Speech
    Representations", section 2.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        stem = config.stem
        self.activation = get_activation(stem.activation)
        options = {"dtype": self.dtype_policy}
        kernels = {"kernel_initializer": kernel_initializer(config, initializer), **options}
        self.convolutions = [
            keras.layers.Conv1D(
                width,
                size,
                strides=step,
                data_format="channels_last",
                use_bias=stem.use_bias,
                name=f"input_convolution_{i}",
                **kernels,
            )
            for i, (width, size, step) in enumerate(
                zip(stem.filters, stem.kernel_sizes, stem.strides, strict=True)
            )
        ]
        self.norms = [FeatureNormalization(name="input_convolution_0_norm", **options)]
        if stem.norm == "layer":
            self.norms = [
                keras.layers.LayerNormalization(
                    epsilon=_EPSILON, name=f"input_convolution_{i}_norm", **options
                )
                for i in range(len(stem.filters))
            ]
        self.projection_norm = None
        if stem.projection_norm:
            self.projection_norm = keras.layers.LayerNormalization(
                epsilon=config.normalization_epsilon, name="input_projection_norm", **options
            )
        width = config.embedding_dim
        self.projection = Dense(width, name="input_projection", **kernels)
        self.positions = keras.layers.Conv1D(
            width,
            stem.position_size,
            groups=stem.position_groups,
            data_format="channels_last",
            name="input_positions",
            **kernels,
        )
        self.make_rest(initializer)

    @property
    def inputs(self):
        return (
            Input("samples", "float32", (None,), required=True),
            Input("padding_mask", "bool", (None,)),
        )

    def build(self, input_shape=None):
        width, norms = 1, iter(self.norms)
        for layer in self.convolutions:
            layer.build((None, None, width))
            width = layer.filters
            norm = next(norms, None)
            if norm is not None:
                norm.build((None, None, width))
        if self.projection_norm is not None:
            self.projection_norm.build((None, None, width))
        self.projection.build((None, None, width))
        self.positions.build((None, None, self.config.embedding_dim))
        super().build(input_shape)

    def states_shape(self, inputs):
        batch, length = inputs["samples"].shape
        if length is not None:
            length = max(self.config.stem.lengths(length)[-1], 1)
        return batch, length, self.config.embedding_dim

    def mask_of_states(self, padding_mask, length, convolution: int = -1):
        """The mask of what a convolution gives, of that of samples.

        Args:
            padding_mask: bool `(batch, samples)`, or None, which gives None.
            length: how many states the convolution gives.
            convolution: int, which one. Defaults to the last, whose mask is that of the states.

        Returns:
            Bool `(batch, length)`. One state at least is real: attention to nothing has no value.
        """
        if padding_mask is None:
            return None
        real = ops.sum(ops.cast(padding_mask, "int32"), axis=1, keepdims=True)
        count = ops.maximum(self.config.stem.lengths(real)[convolution], 1)
        return ops.arange(length, dtype="int32")[None] < count

    def call(self, inputs, training=False):
        x = ops.cast(inputs["samples"], self.compute_dtype)[..., None]
        padding_mask = inputs.get("padding_mask")
        missing = self.config.stem.fewest_samples - (x.shape[1] or 2**31)
        if missing > 0:
            x = ops.pad(x, ((0, 0), (0, missing), (0, 0)))
        for i, layer in enumerate(self.convolutions):
            x = layer(x)
            if self.config.stem.norm == "layer":
                x = self.norms[i](x)
            elif i == 0:
                x = self.norms[0](x, real=self.mask_of_states(padding_mask, ops.shape(x)[1], 0))
            x = self.activation(x)
        x = self.projection(x if self.projection_norm is None else self.projection_norm(x))
        mask = self.mask_of_states(padding_mask, ops.shape(x)[1])
        if mask is not None:
            x = ops.where(mask[..., None], x, ops.zeros_like(x))
        x = x + self.activation(self._neighbours(x))
        return Embedded(self.positioned(x, training=training), padding_mask=mask)

    def _neighbours(self, x):
        """The convolution of positions: each state stands behind the middle of what it sees."""
        layer, size = self.positions, self.config.stem.position_size
        x = ops.pad(x, ((0, 0), (size // 2, (size - 1) // 2), (0, 0)))
        if keras.backend.backend() != "tensorflow":
            return layer(x)
        # Its gradient of groups takes ten times as long as that of as many convolutions.
        kernels = ops.split(ops.cast(layer.kernel, x.dtype), layer.groups, axis=-1)
        parts = ops.split(x, layer.groups, axis=-1)
        made = [
            ops.conv(part, kernel, data_format="channels_last")
            for part, kernel in zip(parts, kernels, strict=True)
        ]
        return ops.concatenate(made, axis=-1) + ops.cast(layer.bias, x.dtype)
