"""The stem of text: token ids to states."""

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.distribution.layout import spread_batch
from keras_transformer.layers.arguments import refuse_unused
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import SegmentEmbedding, TokenEmbedding
from keras_transformer.layers.initializers import embedding_initializer, kernel_initializer
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.position import LearnedPosition, SinusoidalPosition
from keras_transformer.layers.remat import one_piece
from keras_transformer.layers.stems.stem import Embedded, Input, Stem

_GLOBAL = Input("global_positions", "int32", (None,), of_tokens=False)


class TokenStem(Stem):
    """The sum of token, segment and position embeddings, normalized, in the width of the blocks.

    Args:
        config: `TransformerConfig` of a side.
        token_embedding: the `TokenEmbedding`, which the logits and another side may share.
        initializer: of all weights, in place of those of the config.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `token_ids` int `(batch, length)`, and optionally `padding_mask` bool,
            `segment_ids`, `position_ids` and `pack_ids` int, all `(batch, length)`, and
            `token_embeddings` float `(batch, length, embedding_dim)` in place of those of the ids.
            An encoder with a window takes `global_positions` int `(batch, count)`, see `Embedded`.
        cache_positions: int `(batch, length)`, the positions that a cache counts.

    Returns:
        `Embedded`.

    Source: Vaswani et al. 2017, section 3.4; segments and normalization: Devlin et al. 2018,
    "BERT", section 3.
    """

    inputs = (
        Input("token_ids", "int32", (None,), required=True),
        Input("padding_mask", "bool", (None,)),
        Input("segment_ids", "int32", (None,)),
        Input("position_ids", "int32", (None,)),
        Input("pack_ids", "int32", (None,)),
        Input("token_embeddings", "float32", (None, None)),
    )

    def __init__(
        self, config: TransformerConfig, token_embedding: TokenEmbedding, initializer=None, **kwargs
    ):
        super().__init__(**kwargs)
        self.config = config
        self.token_embedding = token_embedding
        layers = [config, *(config.layer(i) for i in range(len(config.layer_pattern or ())))]
        self._has_positions = any(
            x.position != "none" or x.relative_bias or x.disentangled for x in layers
        )
        if config.kind == "encoder" and any(layer.window is not None for layer in layers):
            self.inputs = (*self.inputs, _GLOBAL)
        embeddings = embedding_initializer(config, initializer)
        options = {"embeddings_initializer": embeddings, "dtype": self.dtype_policy}
        self._width = width = config.hidden_dim if config.token_projection else config.embedding_dim
        self.token_projection = None
        self.segment_embedding = self.position_embedding = None
        self.embedding_norm = self.embedding_projection = None
        if config.token_projection:
            self.token_projection = keras.layers.Dense(
                config.hidden_dim,
                use_bias=False,
                kernel_initializer=kernel_initializer(config, initializer),
                name="token_projection",
                dtype=self.dtype_policy,
            )
        if config.segment_vocabulary_size:
            self.segment_embedding = SegmentEmbedding(
                config.segment_vocabulary_size, width, name="segment_embedding", **options
            )
        if config.position == "learned":
            self.position_embedding = LearnedPosition(
                config.max_sequence_length,
                width,
                offset=config.position_offset,
                name="position_embedding",
                **options,
            )
        elif config.position == "sinusoidal":
            self.position_embedding = SinusoidalPosition(
                interleaved=config.sinusoidal_interleaved, dtype=self.dtype_policy
            )
        if config.embedding_normalization:
            self.embedding_norm = make_normalization(
                config.normalization,
                config.normalization_epsilon,
                name="embedding_norm",
                dtype=self.dtype_policy,
            )
        with one_piece():
            self.dropout_layer = Dropout(config.dropout, dtype=self.dtype_policy)
        if config.embedding_projection:
            self.embedding_projection = keras.layers.Dense(
                config.hidden_dim,
                kernel_initializer=kernel_initializer(config, initializer),
                name="embedding_projection",
                dtype=self.dtype_policy,
            )

    def build(self, input_shape=None):
        embedded = (None, None, self._width)
        if self.token_projection is not None:
            self.token_projection.build((None, None, self.config.embedding_dim))
        layers = (
            self.segment_embedding,
            self.position_embedding,
            self.embedding_norm,
            self.embedding_projection,
        )
        for layer in layers:
            if layer is not None:
                layer.build(embedded)

    def call(self, inputs, cache_positions=None, training: bool = False):
        segment_ids, positions = inputs.get("segment_ids"), inputs.get("position_ids")
        if self.segment_embedding is None:
            refuse_unused("the model has no segments.", segment_ids=segment_ids)
        if not self._has_positions and inputs.get("pack_ids") is None:
            # Packed rows have positions of their own, whatever the model.
            refuse_unused("the model has no positions.", position_ids=positions)
        if cache_positions is not None:
            refuse_unused("the cache counts the positions.", position_ids=positions)
            positions = cache_positions
            if self.config.position == "learned":
                # Tokens that will not count may lie beyond: drafts, and those of finished rows.
                positions = ops.minimum(positions, self.config.max_sequence_length - 1)
        elif positions is None:
            positions = self._counted_positions(inputs["token_ids"])
        x = inputs.get("token_embeddings")
        x = self.token_embedding(inputs["token_ids"]) if x is None else x
        x = x if self.token_projection is None else self.token_projection(x)
        if self.segment_embedding is not None:
            if segment_ids is None:
                segment_ids = ops.zeros(ops.shape(x)[:2], dtype="int32")
            x = x + self.segment_embedding(segment_ids)
        if self.position_embedding is not None:
            x = x + self.position_embedding(x, positions=positions)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = self.dropout_layer(spread_batch(x), training=training)
        x = x if self.embedding_projection is None else self.embedding_projection(x)
        further = (inputs.get(name) for name in ("pack_ids", "global_positions"))
        return Embedded(x, inputs.get("padding_mask"), positions, *further)

    def _counted_positions(self, token_ids):
        """Positions that leave out padding, int `(batch, length)`; None for 0, 1, 2, ...

        Source: RoBERTa's embeddings as published, which count from the token ids.
        """
        padding_id = self.config.position_padding_id
        if padding_id is None:
            return None
        counted = ops.cast(ops.not_equal(token_ids, padding_id), "int32")
        return ops.cumsum(counted, axis=1) * counted - 1
