"""The stem of series of numbers."""

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.kernels.indexing import columns
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.feed_forward import ResidualFeedForward
from keras_transformer.layers.initializers import kernel_initializer
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.layers.stems.positioned import PositionedStem
from keras_transformer.layers.stems.stem import Embedded, Input


@keras.saving.register_keras_serializable(package="keras_transformer")
class SeriesStem(PositionedStem):
    """Series cut into patches, each projected linearly or by a residual feed-forward layer.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `SeriesStemConfig`.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `values`, float `(batch, length)`, one channel of a series per row, and
                optionally `observed`, bool `(batch, length)`, False for missing values, used as 0.

    Returns:
        `Embedded`: a state for each patch, between the states of the stem's tokens. The last patch
            ends where the values end; if they do not fill all patches, the first values are left
            out. With `reads_observed` the first patch is filled up with missing values, and patches
            with only missing values are masked.

    Source: Nie et al. 2023, "A Time Series is Worth 64 Words", section 3.1; with `reads_observed`:
    Chronos-Bolt, `chronos_bolt.py` of the package chronos-forecasting 2.3.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        options = {
            "kernel_initializer": kernel_initializer(config, initializer),
            "name": "input_patches",
            "dtype": self.dtype_policy,
        }
        width = config.embedding_dim
        with no_inner_remat():
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
        sizes = stem.sizes(self.config.embedding_dim)
        self.patches.build((None, None, sizes["piece_values"]))
        self.tokens = {  # tokens before the patches, and tokens after them
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
        """Cut `(batch, length)` into patches `(batch, count, patch_length)`."""
        stem, length = self.config.stem, x.shape[1]
        if stem.repeat_last:
            x = ops.concatenate([x, ops.repeat(x[:, -1:], stem.stride, axis=1)], axis=1)
        if stem.reads_observed:
            # A TensorFlow program may serve several lengths.
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
        """Add the tokens before and after the states, and extend the mask to them."""
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
        """Repeat the state of a token for each row, `(batch, 1, width)`."""
        token = ops.cast(token, states.dtype)[None, None]
        return ops.broadcast_to(token, (ops.shape(states)[0], 1, token.shape[-1]))
