"""The stem of text, which turns token ids into states."""

from keras import ops

from keras_transformer.config import Learned, TransformerConfig
from keras_transformer.kernels.values import drop_trivial_mask
from keras_transformer.layers.arguments import refuse_unused
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.embedding import SegmentEmbedding, TokenEmbedding
from keras_transformer.layers.initializers import kernel_initializer
from keras_transformer.layers.parts import layer_of
from keras_transformer.layers.position import sequence_positions
from keras_transformer.layers.stems.positioned import PositionedStem
from keras_transformer.layers.stems.stem import Embedded, Input

# Share of the tokens that are not masked in training (Lin et al. 2022): 15% of them are predicted,
# of which 80% are masked.
_KEPT_IN_TRAINING = 1 - 0.15 * 0.8
_GLOBAL = Input("global_positions", "int32", (None,), of_tokens=False)
_SEEN_TOO = (Input("prefix", "int32", (None,)), Input("prefix_start", "int32", (None,)))


class TokenStem(PositionedStem):
    """Sum of token, segment and position embeddings, normalized and projected for the blocks.

    Args:
        config: `TransformerConfig` of a side.
        token_embedding: the `TokenEmbedding`, which the logits and another side may share.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `token_ids` int `(batch, length)`, and optionally `padding_mask` bool,
            `segment_ids`, `position_ids` and `pack_ids` int, all `(batch, length)`, and
            `token_embeddings` float `(batch, length, embedding_dim)`, which replace the embeddings
            of the ids. An encoder with a window takes `global_positions` int `(batch, count)`, see
            `Embedded`. A decoder with a `query_stream` takes `prefix` and `prefix_start`, int
            `(batch, length)`, tokens that a query sees beside those before it, see `AttentionMask`;
            its `position_ids` are those of the tokens that come next.
        cache_positions: int `(batch, length)`, positions counted by a cache.
        layer_inputs: bool, whether to make what each token has for each layer, if the config says
            so. False leaves it to the caller, who changes the states first.

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
        super().__init__(config, initializer, **kwargs)
        self.token_embedding = token_embedding
        side = config.only_side
        mixers = [block.mixer for block in side.every_block]
        self._has_positions = side.position is not None or any(x.uses_positions for x in mixers)
        learned = isinstance(side.position, Learned)
        self._num_learned = side.max_sequence_length if learned else None
        self._uncounted_id = side.position.padding_id if learned else None
        self._dropped_id = side.input.dropped_id
        self._has_query_stream = side.has_query_stream
        patterns = [getattr(mixer, "pattern", None) for mixer in mixers]
        if config.kind == "encoder" and any(x and x.takes_global_positions for x in patterns):
            self.inputs = (*self.inputs, _GLOBAL)
        if self._has_query_stream:
            self.inputs = (*self.inputs, *_SEEN_TOO)
        self.token_projection = self.segment_embedding = None
        if config.token_projection:
            self.token_projection = Dense(
                config.hidden_dim,
                use_bias=False,
                kernel_initializer=kernel_initializer(config, initializer),
                name="token_projection",
                dtype=self.dtype_policy,
            )
        self.compares_segments = side.input.segment_use == "compared"
        if side.input.has_segment_embedding:
            self.segment_embedding = SegmentEmbedding(
                config.segment_vocabulary_size,
                self._width,
                name="segment_embedding",
                embeddings_initializer=self._embeddings,
                dtype=self.dtype_policy,
            )
        self.layer_inputs = None
        if side.layer_inputs is not None:
            self.layer_inputs = layer_of(side.layer_inputs)(
                side.layer_inputs,
                side.num_layers,
                norm=side.block.norm,
                embeddings_initializer=self._embeddings,
                kernel_initializer=kernel_initializer(config, initializer),
                name="layer_inputs",
                dtype=self.dtype_policy,
            )
        self.make_rest(initializer)

    def build(self, input_shape=None):
        if self.token_projection is not None:
            self.token_projection.build((None, None, self.config.embedding_dim))
        if self.segment_embedding is not None:
            self.segment_embedding.build((None, None, self._width))
        if self.layer_inputs is not None:
            self.layer_inputs.build((None, None), (None, None, self.config.hidden_dim))
        super().build(input_shape)

    def call(self, inputs, cache_positions=None, layer_inputs: bool = True, training: bool = False):
        segment_ids, positions = inputs.get("segment_ids"), inputs.get("position_ids")
        if self.segment_embedding is None and not self.compares_segments:
            refuse_unused("the model has no segments.", segment_ids=segment_ids)
        if not self._has_positions and inputs.get("pack_ids") is None:
            # Packed rows have positions of their own with any model.
            refuse_unused("the model has no positions.", position_ids=positions)
        if cache_positions is not None:
            refuse_unused("the cache counts the positions.", position_ids=positions)
            positions = cache_positions
            if self._num_learned is not None:
                # Drafts and tokens of finished rows, which are discarded, may lie past the end.
                positions = ops.minimum(positions, self._num_learned - 1)
        elif positions is None:
            positions = self._counted_positions(inputs["token_ids"])
        x = inputs.get("token_embeddings")
        x = self.token_embedding(inputs["token_ids"]) if x is None else x
        if self._dropped_id is not None:
            x = x * ops.cast(self._dropout_factors(inputs), x.dtype)
        x = x if self.token_projection is None else self.token_projection(x)
        vectors = None
        if self.layer_inputs is not None and layer_inputs:
            vectors = self.layer_inputs(inputs["token_ids"], embedded=x)
        if self.segment_embedding is not None:
            if segment_ids is None:
                segment_ids = ops.zeros(ops.shape(x)[:2], dtype="int32")
            x = x + self.segment_embedding(segment_ids)
        queries = None
        if self._has_query_stream:
            queries = self.finished(self.position_embedding(x, positions=positions), training)
            x = self.finished(self._behind(x, positions, inputs), training)
        else:
            x = self.positioned(x, positions, training)
        further = (inputs.get(name) for name in ("pack_ids", "global_positions"))
        padding = drop_trivial_mask(inputs.get("padding_mask"))
        compared = segment_ids if self.compares_segments else None
        options = {"layer_inputs": vectors, "segment_ids": compared, "queries": queries}
        return Embedded(x, padding, positions, *further, **options)

    def _behind(self, x, positions, inputs):
        """Add to each token the position that the token before it asked for, to the first none."""
        if positions is None:
            positions = sequence_positions(x)
        if inputs.get("position_ids") is None:
            before = positions - 1
        else:
            positions = ops.cast(positions, "int32")
            before = ops.pad(positions[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
            packs = inputs.get("pack_ids")
            if packs is not None:
                packs = ops.cast(packs, "int32")
                same = ops.equal(packs[:, 1:], packs[:, :-1])
                same = ops.pad(same, ((0, 0), (1, 0)), constant_values=False)
                before = ops.where(same, before, -1)
        added = self.position_embedding(x, positions=ops.maximum(before, 0))
        return x + ops.where(before[..., None] < 0, ops.zeros((), added.dtype), added)

    def _dropout_factors(self, inputs):
        """Return the factor of each embedding if masks count as dropped, `(batch, length, 1)`.

        Source: Lin et al. 2022, "Language models of protein sequences at the scale of evolution
        enable accurate structure prediction", whose published code calls it token dropout.
        """
        ids, padding_mask, packs = map(inputs.get, ("token_ids", "padding_mask", "pack_ids"))
        kept = ops.not_equal(ids, self._dropped_id)
        real = ops.ones_like(kept) if padding_mask is None else ops.cast(padding_mask, "bool")
        tokens, counted = (ops.cast(each, "float32") for each in (real, real & kept))
        if packs is None:
            tokens, counted = (ops.sum(each, axis=1, keepdims=True) for each in (tokens, counted))
        else:
            same = ops.cast(ops.equal(packs[:, :, None], packs[:, None, :]), "float32")
            tokens, counted = (ops.einsum("bij,bj->bi", same, each) for each in (tokens, counted))
        factors = _KEPT_IN_TRAINING * tokens / ops.maximum(counted, 1.0)
        return ops.expand_dims(ops.where(kept, factors, 0.0), -1)

    def _counted_positions(self, token_ids):
        """Return positions that leave out padding, int `(batch, length)`; None means 0, 1, 2, ...

        Source: RoBERTa's published embeddings, which count from the token ids.
        """
        if self._uncounted_id is None:
            return None
        counted = ops.cast(ops.not_equal(token_ids, self._uncounted_id), "int32")
        return ops.cumsum(counted, axis=1) * counted - 1
