"""The stem of series of numbers."""

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.kernels.indexing import columns
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.feed_forward import ResidualFeedForward
from keras_transformer.layers.initializers import kernel_initializer
from keras_transformer.layers.remat import one_piece
from keras_transformer.layers.stems.positioned import PositionedStem
from keras_transformer.layers.stems.stem import Embedded, Input


@keras.saving.register_keras_serializable(package="keras_transformer")
class SeriesStem(PositionedStem):
    """A series cut into pieces, each multiplied with a matrix, or two with one beside them.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `SeriesStemConfig`.
        initializer: of all weights, in place of those of the config.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `values`, float `(batch, length)`, one channel of a series a row, and
            optionally `observed`, bool likewise, False for what is missing and counts as 0.

    Returns:
        `Embedded`: a state for each piece, between those of the tokens that the stem has. The last
        piece ends where the values end; of what does not fill a piece the first values are left
        out. With `reads_observed` it is filled with missing ones, and pieces of missing values
        alone are masked.

    Source: Nie et al. 2023, "A Time Series is Worth 64 Words", section 3.1; with what is known
    behind the values: Chronos-Bolt, `chronos_bolt.py` of the package chronos-forecasting 2.3.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        options = {
            "kernel_initializer": kernel_initializer(config, initializer),
            "name": "input_patches",
            "dtype": self.dtype_policy,
        }
        width = config.embedding_dim
        with one_piece():
            if config.stem.residual:
                self.patches = ResidualFeedForward(
                    config.intermediate_dim,
                    width,
                    config.activation,
                    dropout=config.dropout,
                    **options,
                )
            else:
                self.patches = Dense(width, use_bias=config.stem.use_bias, **options)
        self.make_rest(initializer)

    @property
    def inputs(self):
        return (
            Input("values", "float32", (None,), required=True),
            Input("observed", "bool", (None,)),
        )

    def build(self, input_shape=None):
        stem = self.config.stem
        self.patches.build((None, None, stem.sizes["piece_values"]))
        self.tokens = {  # those before the pieces, and those behind them
            place: self.add_weight(
                (self.config.embedding_dim,), self._embeddings, name=f"input_{place}_token"
            )
            for place, has in (("class", stem.class_token), ("end", stem.end_token))
            if has
        }
        super().build(input_shape)

    def call(self, inputs, training=False):
        stem, x = self.config.stem, ops.cast(inputs["values"], self.compute_dtype)
        observed = inputs.get("observed")
        if observed is not None:
            x = x * ops.cast(observed, x.dtype)
        pieces, mask = self._pieces(x), None
        if stem.reads_observed:
            observed = ops.ones_like(x) if observed is None else ops.cast(observed, x.dtype)
            known = self._pieces(observed)
            pieces = ops.concatenate([pieces, known], axis=-1)
            mask = ops.max(known, axis=-1)
        states = self.patches(pieces, training=training) if stem.residual else self.patches(pieces)
        states, mask = self._with_tokens(states, mask)
        states = self.positioned(states, training=training)
        return Embedded(states, None if mask is None else mask > 0)

    def _pieces(self, x):
        """The pieces `(batch, count, patch_length)` of `(batch, length)`."""
        stem, length = self.config.stem, x.shape[1]
        if stem.repeat_last:
            x = ops.concatenate([x, ops.repeat(x[:, -1:], stem.stride, axis=1)], axis=1)
        if stem.reads_observed:
            # A program of TensorFlow may be of several lengths.
            x = ops.pad(x, ((0, 0), (stem.patch_length - 1, 0)))
            count = ops.shape(x)[1] // stem.patch_length
            return ops.reshape(x[:, -count * stem.patch_length :], (-1, count, stem.patch_length))
        length = length or stem.context_length
        count = stem.pieces(length)
        first = length + stem.repeat_last * stem.stride - stem.patch_length
        first -= stem.stride * (count - 1)
        starts = first + stem.stride * np.arange(count)
        places = (starts[:, None] + np.arange(stem.patch_length)).astype("int32")
        taken = columns(x, ops.convert_to_tensor(places.ravel()))
        return ops.reshape(taken, (-1, *places.shape))

    def _with_tokens(self, states, mask):
        """States with those of the tokens around them, and the mask of all."""
        first, last = (
            [self._row_each(self.tokens[place], states)] if place in self.tokens else []
            for place in ("class", "end")
        )
        if not first and not last:
            return states, mask
        states = ops.concatenate([*first, states, *last], axis=1)
        if mask is not None:
            mask = ops.pad(mask, ((0, 0), (len(first), len(last))), constant_values=1)
        return states, mask

    def _row_each(self, token, states):
        """The state of a token for each row, `(batch, 1, width)`."""
        token = ops.cast(token, states.dtype)[None, None]
        return ops.broadcast_to(token, (ops.shape(states)[0], 1, token.shape[-1]))
