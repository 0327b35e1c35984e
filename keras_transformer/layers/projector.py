"""Projection of encoder states to the width of a decoder."""

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.initializers import kernel_initializer
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat


class Projector(keras.layers.Layer):
    """One or two linear layers, applied to each state, as the config's `projector` says.

    Args:
        config: `TransformerConfig` of kind `"seq2seq"` with a `placeholder_id`.
        initializer: initializer of all kernels. Defaults to the config's.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, encoder width)`.

    Returns:
        Float `(batch, length, decoder width)`.

    Source: Liu et al. 2023, "Improved Baselines with Visual Instruction Tuning", section 3.2; one
    layer: Liu et al. 2023, "Visual Instruction Tuning", section 4.1.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(**kwargs)
        encoder, decoder = config.sides[-2:]
        self._widths = encoder.hidden_dim, decoder.hidden_dim
        options = {
            "use_bias": config.projector.bias,
            "kernel_initializer": kernel_initializer(decoder, initializer),
            "dtype": self.dtype_policy,
        }
        self.norm = None
        with no_inner_remat():
            if config.projector.type == "mlp":
                self.dense = FeedForward(
                    self._widths[1],
                    self._widths[1],
                    config.projector.activation,
                    name="mlp",
                    **options,
                )
            else:
                self.dense = Dense(self._widths[1], name="output", **options)
            if config.projector.type == "normalized":
                self.norm = make_normalization(
                    encoder.normalization,
                    encoder.normalization_epsilon,
                    name="norm",
                    dtype=self.dtype_policy,
                )

    def build(self, input_shape=None):
        self.dense.build((None, None, self._widths[0]))
        if self.norm is not None:
            self.norm.build((None, None, self._widths[1]))

    def call(self, inputs):
        x = self.dense(inputs)
        return x if self.norm is None else self.norm(x)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # Recomputing it would save little.
