"""From states of an encoder to states of a decoder, as a config says."""

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.initializers import kernel_initializer
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import one_piece


class Projector(keras.layers.Layer):
    """One or two linear layers, at each state alone, by the config's `projector`.

    Args:
        config: `TransformerConfig` of kind `"seq2seq"` with a `placeholder_id`.
        initializer: of all kernels, in place of that of the config.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, width of the encoder)`.

    Returns:
        Float `(batch, length, width of the decoder)`.

    Source: Liu et al. 2023, "Improved Baselines with Visual Instruction Tuning", section 3.2; one
    layer: Liu et al. 2023, "Visual Instruction Tuning", section 4.1.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(**kwargs)
        encoder, decoder = config.sides[-2:]
        self._widths = encoder.hidden_dim, decoder.hidden_dim
        options = {
            "use_bias": config.projector_bias,
            "kernel_initializer": kernel_initializer(decoder, initializer),
            "dtype": self.dtype_policy,
        }
        self.norm = None
        with one_piece():
            if config.projector == "mlp":
                self.dense = FeedForward(
                    self._widths[1],
                    self._widths[1],
                    config.projector_activation,
                    name="mlp",
                    **options,
                )
            else:
                self.dense = Dense(self._widths[1], name="output", **options)
            if config.projector == "normalized":
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
        return layer_call  # Little beside the blocks.
