"""The stem of series of numbers."""

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.initializers import kernel_initializer
from keras_transformer.layers.products import Dense
from keras_transformer.layers.remat import one_piece
from keras_transformer.layers.stems.positioned import PositionedStem
from keras_transformer.layers.stems.stem import Embedded, Input


@keras.saving.register_keras_serializable(package="keras_transformer")
class SeriesStem(PositionedStem):
    """A series cut into pieces, each multiplied with a matrix.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `SeriesStemConfig`.
        initializer: of all weights, in place of those of the config.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `values`, float `(batch, length)`, one channel of a series a row, and
            optionally `observed`, bool likewise, False for what is missing and counts as 0.

    Returns:
        `Embedded`: a state for each piece, behind that of the token if the stem has one. The last
        piece ends where the values end; of what does not fill a piece the first values are left
        out.

    Source: Nie et al. 2023, "A Time Series is Worth 64 Words", section 3.1.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        with one_piece():
            self.patches = Dense(
                config.embedding_dim,
                use_bias=config.stem.use_bias,
                kernel_initializer=kernel_initializer(config, initializer),
                name="input_patches",
                dtype=self.dtype_policy,
            )
        self.make_rest(initializer)

    @property
    def inputs(self):
        return (
            Input("values", "float32", (None,), required=True),
            Input("observed", "bool", (None,)),
        )

    def build(self, input_shape=None):
        self.patches.build((None, None, self.config.stem.patch_length))
        self.token = None
        if self.config.stem.class_token:
            self.token = self.add_weight(
                (self.config.embedding_dim,), self._embeddings, name="input_class_token"
            )
        super().build(input_shape)

    def call(self, inputs, training=False):
        stem, x = self.config.stem, ops.cast(inputs["values"], self.compute_dtype)
        if inputs.get("observed") is not None:
            x = x * ops.cast(inputs["observed"], x.dtype)
        length = x.shape[1] or stem.context_length
        if stem.repeat_last:
            x = ops.concatenate([x, ops.repeat(x[:, -1:], stem.stride, axis=1)], axis=1)
        count = stem.pieces(length)
        first = length + stem.repeat_last * stem.stride - stem.patch_length
        first -= stem.stride * (count - 1)
        starts = first + stem.stride * np.arange(count)
        places = (starts[:, None] + np.arange(stem.patch_length)).astype("int32")
        pieces = ops.reshape(ops.take(x, places.ravel(), axis=1), (-1, *places.shape))
        states = self.patches(pieces)
        if self.token is not None:
            token = ops.cast(self.token, states.dtype)[None, None]
            token = ops.broadcast_to(token, (ops.shape(states)[0], 1, token.shape[-1]))
            states = ops.concatenate([token, states], axis=1)
        return Embedded(self.positioned(states, training=training))
