"""The stem of waveforms, which are raw audio samples."""

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.kernels.convolution import grouped_convolution
from keras_transformer.layers.arguments import SavesArguments, kernel_initializer
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.stems.stem import Embedded, Input, PositionedStem

_EPSILON = 1e-5  # epsilon of the norms of convolutions in all published models


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeatureNormalization(SavesArguments, keras.layers.Layer):
    """Norm that gives each feature of a recording mean 0 and variance 1 over its states.

    It is a group norm with as many groups as features; padding does not count.

    Args:
        together: bool, whether to also normalize over all features, as a group norm with one group.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        x: float `(batch, length, features)`.
        real: bool `(batch, length)`, False for padding. None if there is no padding.
    """

    def __init__(self, together: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.together = together

    def build(self, input_shape):
        self.gamma = self.add_weight((input_shape[-1],), "ones", name="gamma")
        self.beta = self.add_weight((input_shape[-1],), "zeros", name="beta")

    def call(self, x, real=None):
        # In float32 since many numbers are added.
        x = ops.cast(x, "float32")
        weights = None
        if real is not None:
            weights = ops.cast(real, "float32")[..., None]
            weights = weights / ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1.0)
        x = x - self._mean(x, weights)
        variance = self._mean(ops.square(x), weights)
        scale = ops.cast(self.gamma, "float32") * ops.rsqrt(variance + _EPSILON)
        return ops.cast(x * scale + ops.cast(self.beta, "float32"), self.compute_dtype)

    def _mean(self, x, weights):
        """Return the mean over the states of each recording, and over features if `together`."""
        if weights is None:
            return ops.mean(x, axis=(1, 2) if self.together else 1, keepdims=True)
        mean = ops.sum(x * weights, axis=1, keepdims=True)
        return ops.mean(mean, axis=2, keepdims=True) if self.together else mean


@keras.saving.register_keras_serializable(package="keras_transformer")
class WaveformStem(PositionedStem):
    """Convolutions over samples, a projection, and a convolution that computes the positions.

    The last two may be missing (Moonshine). With a mask, the states of a recording do not depend on
    its padding.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `WaveformStemConfig`.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `samples`, float `(batch, length)`, and optionally `padding_mask`, bool
            `(batch, length)`, True for the samples of the recording; padding follows them.

    Returns:
        `Embedded`: as many states as `WaveformStemConfig.lengths` gives, with padding masked.

    Source: Baevski et al. 2020, "wav2vec 2.0: A Framework for Self-Supervised Learning of Speech
    Representations", section 2; `norm="recording"`: Jeffries et al. 2024, "Moonshine", section 3.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        stem = config.stem
        self.activation = get_activation(stem.activation)
        self.first_activation = get_activation(stem.first_activation)
        options = {"dtype": self.dtype_policy}
        kernels = {"kernel_initializer": kernel_initializer(config, initializer), **options}
        self.convolutions = [
            keras.layers.Conv1D(
                width,
                size,
                strides=step,
                data_format="channels_last",
                use_bias=stem.use_bias if i else stem.first_bias,
                name=f"input_convolution_{i}",
                **kernels,
            )
            for i, (width, size, step) in enumerate(
                zip(stem.filters, stem.kernel_sizes, stem.strides, strict=True)
            )
        ]
        self.norms = [self._norm(i, options) for i in range(len(stem.filters))]
        self.projection_norm = self.projection = self.positions = None
        if stem.projection_norm:
            self.projection_norm = keras.layers.LayerNormalization(
                epsilon=config.normalization_epsilon, name="input_projection_norm", **options
            )
        width = config.embedding_dim
        if stem.projection:
            self.projection = Dense(width, name="input_projection", **kernels)
        if stem.position_size:
            self.positions = keras.layers.Conv1D(
                width,
                stem.position_size,
                groups=stem.position_groups,
                data_format="channels_last",
                name="input_positions",
                **kernels,
            )
        self.make_rest(initializer)

    def _norm(self, i: int, options: dict) -> keras.layers.Layer | None:
        """Make the norm of convolution `i`, or None if it has no norm."""
        kind, name = self.config.stem.norm, f"input_convolution_{i}_norm"
        if kind == "layer":
            return keras.layers.LayerNormalization(epsilon=_EPSILON, name=name, **options)
        together = kind == "recording"
        return None if i else FeatureNormalization(together, name=name, **options)

    @property
    def inputs(self):
        return (
            Input("samples", "float32", (None,), required=True),
            Input("padding_mask", "bool", (None,)),
        )

    def build(self, input_shape=None):
        width = 1
        for layer, norm in zip(self.convolutions, self.norms, strict=True):
            layer.build((None, None, width))
            width = layer.filters
            if norm is not None:
                norm.build((None, None, width))
        for layer in (self.projection_norm, self.projection):
            if layer is not None:
                layer.build((None, None, width))
        if self.positions is not None:
            self.positions.build((None, None, self.config.embedding_dim))
        super().build(input_shape)

    def states_shape(self, inputs):
        batch, length = inputs["samples"].shape
        if length is not None:
            length = max(self.config.stem.lengths(length)[-1], 1)
        return batch, length, self.config.embedding_dim

    def mask_of_states(self, padding_mask, length, convolution: int = -1):
        """Return the mask of a convolution's outputs, from the mask of the samples.

        Args:
            padding_mask: bool `(batch, samples)`, or None, for which the result is None.
            length: number of outputs of the convolution.
            convolution: int, index of the convolution. Defaults to the last: the states.

        Returns:
            Bool `(batch, length)`. At least one state is real: softmax over no keys is undefined.
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
        for i in range(len(self.convolutions)):
            x = self._convolved(i, x, padding_mask)
        for layer in (self.projection_norm, self.projection):
            x = x if layer is None else layer(x)
        mask = self.mask_of_states(padding_mask, ops.shape(x)[1])
        if self.positions is not None:
            if mask is not None:
                x = ops.where(mask[..., None], x, ops.zeros_like(x))
            x = x + self.activation(self._neighbours(x))
        return Embedded(self.positioned(x, training=training), padding_mask=mask)

    def _convolved(self, i: int, x, padding_mask):
        """Apply convolution `i` with its norm and activation."""
        stem, norm, x = self.config.stem, self.norms[i], self.convolutions[i](x)
        activation = self.activation if i else self.first_activation
        if norm is None or stem.norm == "layer":
            return activation(x if norm is None else norm(x))
        real = self.mask_of_states(padding_mask, ops.shape(x)[1], i)
        if stem.norm == "recording":
            return norm(activation(x), real=real)
        return activation(norm(x, real=real))

    def _neighbours(self, x):
        """Apply the convolution of positions, cut so that each state is centred in its window."""
        layer, size = self.positions, self.config.stem.position_size
        x = ops.pad(x, ((0, 0), (size // 2, (size - 1) // 2), (0, 0)))
        return grouped_convolution(layer, x)
