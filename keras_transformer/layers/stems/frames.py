"""The stem of frames, such as the frames of an audio spectrogram."""

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.arguments import kernel_initializer
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.stems.stem import Embedded, Input, PositionedStem


@keras.saving.register_keras_serializable(package="keras_transformer")
class FrameStem(PositionedStem):
    """Convolutions over frames, each with an activation; the outputs of the last are the states.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `FrameStemConfig`.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `frames`, float `(batch, length, num_bins)`, at most `num_frames` of them if
            positions are learned; with the stem's `masked` also `padding_mask`, bool `(batch,
            length)`, True for the frames of the recording; padding follows them.

    Returns:
        `Embedded`: one state per frame, their number divided by each stride and rounded up.

    Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision",
    section 2.2.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        stem = config.stem
        self.activation = get_activation(stem.activation)
        self.convolutions = [
            keras.layers.Conv1D(
                config.embedding_dim,
                stem.kernel_size,
                strides=step,
                data_format="channels_last",
                use_bias=stem.use_bias,
                kernel_initializer=kernel_initializer(config, initializer),
                name=f"input_convolution_{i}",
                dtype=self.dtype_policy,
            )
            for i, step in enumerate(stem.strides)
        ]
        self.make_rest(initializer)

    @property
    def inputs(self):
        frames = Input("frames", "float32", (None, self.config.stem.num_bins), required=True)
        mask = Input("padding_mask", "bool", (None,))
        return (frames, mask) if self.config.stem.masked else (frames,)

    def build(self, input_shape=None):
        width = self.config.stem.num_bins
        for layer in self.convolutions:
            layer.build((None, None, width))
            width = self.config.embedding_dim
        super().build(input_shape)

    def mask_of_states(self, padding_mask, length):
        """Return the mask of `length` states, bool `(batch, length)`, from the frames' mask."""
        if padding_mask is None:
            return None
        return first_places(self.config.stem.count_states(count_real(padding_mask)), length)

    def call(self, inputs, training=False):
        x = ops.cast(inputs["frames"], self.compute_dtype)
        mask = inputs.get("padding_mask")
        real = None if mask is None else count_real(mask)
        # Equal padding on both sides for any stride: "same" would differ for an even length.
        around = self.config.stem.kernel_size // 2
        for layer, step in zip(self.convolutions, self.config.stem.strides, strict=True):
            if real is not None:
                x = ops.where(first_places(real, ops.shape(x)[1])[..., None], x, ops.zeros_like(x))
                real = -(-real // step)
            x = self.activation(layer(ops.pad(x, ((0, 0), (around, around), (0, 0)))))
        mask = self.mask_of_states(mask, ops.shape(x)[1])
        return Embedded(self.positioned(x, training=training), padding_mask=mask)


def count_real(padding_mask):
    """Return the number of frames of each recording without padding, int `(batch, 1)`."""
    return ops.sum(ops.cast(padding_mask, "int32"), axis=1, keepdims=True)


def first_places(count, length):
    """Return a mask that is True for the first states: `count`, `(batch, 1)`, but at least one."""
    return ops.arange(length, dtype="int32")[None] < ops.maximum(count, 1)
