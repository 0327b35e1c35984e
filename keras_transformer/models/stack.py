"""From embedded tokens to hidden states: positions, blocks, final normalization."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.distribution.layout import spread_batch
from keras_transformer.layers.arguments import refuse_unused
from keras_transformer.layers.decoder import DecoderBlock
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import SegmentEmbedding
from keras_transformer.layers.encoder import EncoderBlock
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.position import (
    LearnedPosition,
    SinusoidalPosition,
    sequence_positions,
)
from keras_transformer.layers.position_bias import ALiBi, RelativePositionBias
from keras_transformer.layers.remat import one_piece
from keras_transformer.models.block_run import BlockRun

_loading = contextvars.ContextVar("loading", default=False)
_change = contextvars.ContextVar("change", default=None)


@contextlib.contextmanager
def weights_to_be_loaded() -> Iterator[None]:
    """Within, models are made with zeros: drawing random numbers to overwrite takes seconds."""
    token = _loading.set(True)
    try:
        yield
    finally:
        _loading.reset(token)


@contextlib.contextmanager
def changed_embeddings(change: Callable) -> Iterator[None]:
    """Within, blocks see `change(embedded tokens)`, `(batch, length, embedding_dim)` both."""
    token = _change.set(change)
    try:
        yield
    finally:
        _change.reset(token)


def kernel_initializer(config: TransformerConfig) -> keras.initializers.Initializer:
    """The initializer of every projection."""
    if _loading.get():
        return keras.initializers.Zeros()
    if config.initializer_range is None:
        return keras.initializers.GlorotUniform()
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)


def embedding_initializer(config: TransformerConfig) -> keras.initializers.Initializer:
    """The initializer of every embedding."""
    if _loading.get():
        return keras.initializers.Zeros()
    stddev = config.initializer_range or config.hidden_dim**-0.5
    return keras.initializers.RandomNormal(stddev=stddev)


def rotary_options(config: TransformerConfig) -> dict | None:
    """The options of `RotaryEmbedding`, None for a model without rotary positions."""
    if config.position != "rotary":
        return None
    return {
        "base": config.rotary_base,
        "dim": config.rotary_dim,
        "scaling": config.rotary_scaling,
        "factor": config.rotary_factor,
        "min_turns": config.rotary_min_turns,
        "max_turns": config.rotary_max_turns,
        "original_length": config.rotary_original_length,
    }


class Stack(keras.layers.Layer):
    """The blocks of an encoder or of a decoder, and what stands before and after them.

    Args:
        config: `TransformerConfig`.
        causal: bool, decoder blocks instead of encoder blocks.
        cross_attention: bool, decoder blocks that attend to encoder states.
        num_layers: int, number of blocks.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, embedding_dim)`, embedded tokens.
        padding_mask: bool `(batch, length)`.
        segment_ids, position_ids, pack_ids: int `(batch, length)`, optional.
        encoder_states, encoder_padding_mask, encoder_pack_ids: for cross-attention.
        cache: optional decode cache, see `generation.Cache`. The new tokens stand in its next
            slots, at each row's next positions.
        first_only: bool, the state of the first token alone, `(batch, 1, hidden_dim)`: the last
            block is computed for that token and no other. Encoder blocks only.

    Returns:
        Float `(batch, length, hidden_dim)`, and the updated cache when one was given.
    """

    def __init__(
        self,
        config: TransformerConfig,
        causal: bool,
        cross_attention: bool,
        num_layers: int,
        **kwargs,
    ):
        # What a cache keeps in fewer bytes is not to be cast to the compute dtype.
        super().__init__(autocast=False, **kwargs)
        self.config = config
        self.supports_masking = True
        embedding = {
            "embeddings_initializer": embedding_initializer(config),
            "dtype": self.dtype_policy,
        }
        self.segment_embedding = self.position_embedding = self.position_bias = None
        if config.segment_vocabulary_size:
            self.segment_embedding = SegmentEmbedding(
                config.segment_vocabulary_size,
                config.embedding_dim,
                name="segment_embedding",
                **embedding,
            )
        if config.position == "learned":
            self.position_embedding = LearnedPosition(
                config.max_sequence_length,
                config.embedding_dim,
                offset=config.position_offset,
                name="position_embedding",
                **embedding,
            )
        elif config.position == "sinusoidal":
            self.position_embedding = SinusoidalPosition(
                interleaved=config.sinusoidal_interleaved, dtype=self.dtype_policy
            )
        elif config.position == "relative":
            self.position_bias = RelativePositionBias(
                config.num_heads,
                num_buckets=config.relative_num_buckets,
                max_distance=config.relative_max_distance,
                bidirectional=not causal,
                name="relative_bias",
                dtype=self.dtype_policy,
            )
        elif config.position == "alibi":
            self.position_bias = ALiBi(config.num_heads, dtype=self.dtype_policy)
        self.embedding_norm = self._norm("embedding_norm", config.embedding_normalization)
        with one_piece():
            self.dropout_layer = Dropout(config.dropout, dtype=self.dtype_policy)
        self.embedding_projection = None
        if config.embedding_projection:
            self.embedding_projection = keras.layers.Dense(
                config.hidden_dim,
                kernel_initializer=kernel_initializer(config),
                name="embedding_projection",
                dtype=self.dtype_policy,
            )
        kind = DecoderBlock if causal else EncoderBlock
        extra = {"cross_attention": cross_attention} if causal else {}
        self.blocks = [
            kind(
                config.num_heads,
                config.intermediate_dim,
                num_key_value_heads=config.num_key_value_heads,
                head_dim=config.head_dim,
                activation=config.activation,
                gated=config.gated,
                use_bias=config.use_bias,
                attention_bias=config.attention_bias,
                attention_output_bias=config.attention_output_bias,
                query_key_norm=config.query_key_norm,
                normalization=config.normalization,
                normalization_epsilon=config.normalization_epsilon,
                normalize_first=config.normalize_first,
                parallel_residual=config.parallel_residual,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                score=config.score,
                window=config.window,
                rotary=rotary_options(config),
                max_sequence_length=config.max_sequence_length,
                kernel_initializer=kernel_initializer(config),
                name=f"layer_{i}",
                dtype=self.dtype_policy,
                **extra,
            )
            for i in range(num_layers if cross_attention else config.num_layer_groups)
        ]
        # Layers of a group are one block, in turn.
        self.order = [i * len(self.blocks) // num_layers for i in range(num_layers)]
        self.final_norm = self._norm("final_norm", config.final_normalization)

    def _norm(self, name: str, present: bool) -> keras.layers.Layer | None:
        if not present:
            return None
        return make_normalization(
            self.config.normalization,
            self.config.normalization_epsilon,
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, input_shape):
        embedded = (*input_shape[:-1], self.config.embedding_dim)
        hidden = (*input_shape[:-1], self.config.hidden_dim)
        for layer in (self.segment_embedding, self.position_embedding, self.position_bias):
            if layer is not None:
                layer.build(embedded)
        for layer in (self.embedding_norm, self.embedding_projection):
            if layer is not None:
                layer.build(embedded)
        for layer in (*self.blocks, self.final_norm):
            if layer is not None:
                layer.build(hidden)

    def call(
        self,
        inputs,
        padding_mask=None,
        segment_ids=None,
        position_ids=None,
        pack_ids=None,
        encoder_states=None,
        encoder_padding_mask=None,
        encoder_pack_ids=None,
        cache=None,
        first_only: bool = False,
        training: bool = False,
    ):
        self._check_used(segment_ids, position_ids, pack_ids, cache)
        given = {"padding_mask": padding_mask, "position_ids": position_ids, "pack_ids": pack_ids}
        run = BlockRun(inputs, given, cache)
        if cache is not None and self.config.position == "learned":
            # Tokens that will not count may lie beyond: drafts, and those of finished rows.
            run.positions = ops.minimum(run.positions, self.config.max_sequence_length - 1)
        block_options = {"training": training}
        if encoder_states is not None:
            block_options["encoder_states"] = encoder_states
            block_options["encoder_states_mask"] = encoder_padding_mask
            block_options["encoder_states_pack_ids"] = encoder_pack_ids
            if cache is not None and encoder_padding_mask is None:
                encoder_padding_mask = ops.ones(ops.shape(encoder_states)[:2], "bool")
        elif cache is not None and cache.source.shape[1]:
            block_options["encoder_states_mask"] = cache.source
        x = self._embed(inputs, segment_ids, run.positions, training)
        if self.position_bias is None:
            block_options["bias"] = None
        else:
            queries = sequence_positions(x) if run.positions is None else run.positions
            keys = queries if run.key_positions is None else run.key_positions
            block_options["bias"] = self.position_bias(queries, keys)
        for i, block in enumerate(self.order):
            if first_only and i == len(self.order) - 1:
                block_options["first_only"] = True
            x = run(self.blocks[block], x, **block_options)
        x = x if self.final_norm is None else self.final_norm(x)
        return run.outputs(x, encoder_padding_mask)

    def _check_used(self, segment_ids, position_ids, pack_ids, cache):
        """ValueError for what would be ignored, and was meant to change the result."""
        if self.segment_embedding is None:
            refuse_unused("the model has no segments.", segment_ids=segment_ids)
        if cache is not None:
            refuse_unused("the cache counts the positions.", position_ids=position_ids)
        # Packed rows have positions of their own, whatever the model.
        if self.config.position == "none" and self.config.window is None and pack_ids is None:
            refuse_unused("the model has no positions.", position_ids=position_ids)

    def _embed(self, x, segment_ids, position_ids, training):
        """The sum of the embeddings, normalized, dropped out, in the width of the blocks."""
        change = _change.get()
        x = x if change is None else change(x)
        if self.segment_embedding is not None:
            if segment_ids is None:
                segment_ids = ops.zeros(ops.shape(x)[:2], dtype="int32")
            x = x + self.segment_embedding(segment_ids)
        if self.position_embedding is not None:
            x = x + self.position_embedding(x, positions=position_ids)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = self.dropout_layer(spread_batch(x), training=training)
        return x if self.embedding_projection is None else self.embedding_projection(x)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # All blocks recomputed at once save nothing: each one is by itself.

    def compute_output_spec(self, inputs, first_only=False, **kwargs):
        length = 1 if first_only else inputs.shape[1]
        shape = (inputs.shape[0], length, self.config.hidden_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)
