"""The stem of series of numbers."""

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.kernels.indexing import columns
from keras_transformer.layers.arguments import kernel_initializer
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.feed_forward import ResidualFeedForward
from keras_transformer.layers.position import sequence_positions
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.layers.stems.stem import Embedded, Input, PositionedStem


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
                With `joint_channels` both are `(batch, num_channels, length)`.

    Returns:
        `Embedded`: a state for each patch, between the states of the stem's tokens. The last patch
            ends where the values end; if they do not fill all patches, the first values are left
            out. With `reads_observed` the first patch is filled up with missing values, and patches
            with only missing values are masked.

    Source: Nie et al. 2023, "A Time Series is Worth 64 Words", section 3.1; with `reads_observed`:
    Chronos-Bolt, `chronos_bolt.py` of the package chronos-forecasting 2.3; with `running_scale`:
    TimesFM 2.5, https://github.com/google-research/timesfm.
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

    known_sizes_from = 2

    @property
    def inputs(self):
        stem = self.config.stem
        shape = (stem.num_channels, None) if stem.joint_channels else (None,)
        return (
            Input("values", "float32", shape, required=True),
            Input("observed", "bool", shape),
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
        if stem.joint_channels:  # each a row of its own until its patches have their positions
            x = ops.reshape(x, (-1, x.shape[2] or stem.context_length))
        pieces, mask, positions = self._pieces(x), None, None
        if stem.reads_observed:
            observed = ops.ones_like(x) if observed is None else ops.cast(observed, x.dtype)
            known = self._pieces(observed)
            marks = known
            if stem.running_scale:
                pieces, marks = standardized_so_far(pieces, known), 1 - known
            pieces = ops.concatenate([pieces, marks], axis=-1)
            mask = ops.max(known, axis=-1)
            if stem.running_scale:
                first = ops.argmax(ops.cast(mask > 0, "int32"), axis=1, keepdims=True)
                places = sequence_positions(pieces)
                positions = ops.maximum(places - ops.cast(first, places.dtype), 0)
        states = self.patches(pieces, training=training) if stem.residual else self.patches(pieces)
        states, mask = self._with_tokens(states, mask)
        states = self.positioned(states, training=training)
        if stem.joint_channels:
            states = ops.reshape(states, (-1, stem.num_channels * states.shape[1], states.shape[2]))
        return Embedded(states, None if mask is None else mask > 0, positions)

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


def standardized_so_far(pieces, known):
    """Standardize each piece by the mean and deviation of all known values up to its end.

    A deviation below 1e-6 is taken as 1.

    Args:
        pieces: float `(batch, count, length)`.
        known: float `(batch, count, length)`, 1 for known values and 0 for missing ones.

    Returns:
        Float `(batch, count, length)` of the dtype of `pieces`, 0 where values are missing.

    Source: Chan et al. 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances".
    """
    x, mask = ops.cast(pieces, "float32"), ops.cast(known, "float32")
    count = ops.sum(mask, axis=-1)
    mean = ops.sum(x * mask, axis=-1) / ops.maximum(count, 1.0)
    squares = ops.sum(ops.square((x - mean[..., None]) * mask), axis=-1)
    total = ops.cumsum(count, axis=1)
    running = ops.cumsum(mean * count, axis=1) / ops.maximum(total, 1.0)
    # What a piece adds to the sum of squares: its own, and what its mean differs from the mean
    # before it. No term is negative, so a small deviation far from 0 is not lost.
    before = ops.pad(running[:, :-1], ((0, 0), (1, 0)))
    share = (total - count) * count / ops.maximum(total, 1.0)
    squares = ops.cumsum(squares + share * ops.square(mean - before), axis=1)
    variance = squares / ops.maximum(total, 1.0)
    # A square root of 0 would have no gradient.
    deviation = ops.sqrt(ops.where(variance < 1e-12, 1.0, variance))
    scaled = (x - running[..., None]) / deviation[..., None] * mask
    return ops.cast(scaled, pieces.dtype)
