"""From embedded inputs to hidden states: the blocks and the final normalization."""

import functools
from typing import Any

import keras
from keras import ops

from keras_transformer.config import OPTIONS, TransformerConfig
from keras_transformer.layers.decoder import DecoderBlock
from keras_transformer.layers.disentangled import RelativeEmbedding
from keras_transformer.layers.encoder import EncoderBlock
from keras_transformer.layers.grid import GridBias
from keras_transformer.layers.initializers import kernel_initializer
from keras_transformer.layers.masking import Visibility
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.position import sequence_positions
from keras_transformer.layers.position_bias import ALiBi, PairBias, RelativePositionBias
from keras_transformer.layers.remat import one_piece
from keras_transformer.models.block_run import BlockRun
from keras_transformer.structure import block_order


def block_options(config: TransformerConfig) -> dict[str, Any]:
    """The arguments of a block for the flat config of a layer: the values of the same names."""
    options = {name: getattr(config, name) for name in EncoderBlock.options if name in OPTIONS}
    if config.position == "rotary":
        rotary = [name for name in OPTIONS if name.startswith("rotary_")]
        options["rotary"] = {n.removeprefix("rotary_"): getattr(config, n) for n in rotary}
    return options


class Stack(keras.layers.Layer):
    """The blocks of an encoder or of a decoder, and the normalization behind them.

    Args:
        config: `TransformerConfig` of a side, whose kind says which blocks they are.
        cross_dim: int, the width of the encoder states that its blocks attend to. None for blocks
            without cross-attention.
        initializer: of all kernels, in place of that of the config.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`, the states of a stem.
        run: `BlockRun`, the pass that they are of.
        encoder_states, encoder_padding_mask, encoder_pack_ids: for cross-attention.
        first_only: bool, the state of the first token alone, `(batch, 1, hidden_dim)`: the last
            block is computed for that token and no other. Encoder blocks only.

    Returns:
        What `run.outputs` gives: float `(batch, length, hidden_dim)`, then the updated cache and
        what was collected, where the run has them.
    """

    def __init__(
        self, config: TransformerConfig, cross_dim: int | None = None, initializer=None, **kwargs
    ):
        # What a cache keeps in fewer bytes is not to be cast to the compute dtype.
        super().__init__(autocast=False, **kwargs)
        self.config = config
        self.cross_dim = cross_dim
        self.supports_masking = True
        causal = config.kind == "decoder" and not config.bidirectional
        self.position_bias = self.group_bias = self.relative_embedding = self.final_norm = None
        self.grid_bias = None
        if config.grid_bias:
            own = config.grid_bias == "own"
            self.grid_bias = GridBias(
                config.num_heads,
                config.stem.grid(config.stem.image_size),
                config.num_layers if own else None,
                name="grid_bias",
                dtype=self.dtype_policy,
            )
        if config.relative_bias:
            make_bias = functools.partial(
                RelativePositionBias,
                config.num_heads,
                num_buckets=config.relative_num_buckets,
                max_distance=config.relative_max_distance,
                bidirectional=not causal,
                dtype=self.dtype_policy,
            )
            with one_piece():
                self.position_bias = make_bias(name="relative_bias")
                if config.global_block_size is not None:
                    self.group_bias = make_bias(name="group_relative_bias")
        elif config.position == "alibi":
            self.position_bias = ALiBi(
                config.num_heads,
                scale=config.alibi_scale,
                rounded=config.alibi_rounded,
                dtype=self.dtype_policy,
            )
        if config.disentangled:
            self.relative_embedding = RelativeEmbedding(
                config.hidden_dim,
                num_buckets=config.relative_num_buckets,
                max_distance=config.relative_max_distance,
                normalization=config.normalization,
                normalization_epsilon=config.normalization_epsilon,
                embeddings_initializer=kernel_initializer(config, initializer),
                name="relative_embedding",
                dtype=self.dtype_policy,
            )
        kind, further = EncoderBlock, {}
        if causal or cross_dim is not None:
            kind = DecoderBlock
            further = {"cross_attention": cross_dim is not None, "causal": causal}
        self.order = block_order(config)
        self.blocks = [
            kind(
                **block_options(config.layer(i)),
                **further,
                kernel_initializer=kernel_initializer(config, initializer),
                name=f"layer_{i}",
                dtype=self.dtype_policy,
            )
            for i in range(max(self.order) + 1)
        ]
        if config.final_normalization:
            self.final_norm = make_normalization(
                config.normalization,
                config.normalization_epsilon,
                name="final_norm",
                dtype=self.dtype_policy,
            )

    def build(self, input_shape):
        source = () if self.cross_dim is None else ((*input_shape[:-1], self.cross_dim),)
        for block in self.blocks:
            block.build(input_shape, *source)
        biases = (self.position_bias, self.group_bias, self.grid_bias, self.relative_embedding)
        for layer in (*biases, self.final_norm):
            if layer is not None:
                layer.build(input_shape)

    def call(
        self,
        inputs,
        run: BlockRun,
        encoder_states=None,
        encoder_padding_mask=None,
        encoder_pack_ids=None,
        first_only: bool = False,
        training: bool = False,
    ):
        options = {"training": training}
        if encoder_states is not None:
            packs = None if encoder_pack_ids is None else run.visibility.query_pack
            options["encoder_states"] = encoder_states
            options["cross_visibility"] = Visibility(encoder_padding_mask, packs, encoder_pack_ids)
            if run.cache is not None and encoder_padding_mask is None:
                encoder_padding_mask = ops.ones(ops.shape(encoder_states)[:2], "bool")
        elif run.cache is not None and run.cache.source.shape[1] != 0:
            options["cross_visibility"] = Visibility(run.cache.source)
        x = inputs
        biases, of_parts = self._biases(x, run)
        if self.relative_embedding is not None:
            queries = sequence_positions(x) if run.positions is None else run.positions
            options["relative"] = self.relative_embedding(queries, queries)
        on_grid = None if self.grid_bias is None else self.grid_bias.of_layers(run.grid)
        for i, block in enumerate(self.order):
            if first_only and i == len(self.order) - 1:
                options["first_only"] = True
            block = self.blocks[block]
            in_part = block.window is not None and of_parts is not None
            bias = of_parts if in_part else biases[run.space]
            bias = bias if on_grid is None else on_grid[i % len(on_grid)]
            x = run(block, x, bias=bias, **options)
        x = x if self.final_norm is None else self.final_norm(x)
        return run.outputs(x, encoder_padding_mask)

    def _biases(self, x, run: BlockRun):
        """The bias of all pairs in each space of a cache, and that for blocks with a window."""
        biases, of_parts = dict.fromkeys(run.visibilities), None
        if self.position_bias is None:
            return biases, None
        if run.cache is None and "attention" not in run.collected:
            of_parts = PairBias(self.position_bias, run.positions, self.group_bias)
            if all(block.window is not None for block in self.blocks):
                return biases, of_parts
        queries = sequence_positions(x) if run.positions is None else run.positions
        for space, visibility in run.visibilities.items():
            keys = visibility.key_positions
            biases[space] = self.position_bias(queries, queries if keys is None else keys)
        return biases, of_parts

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # All blocks recomputed at once save nothing: each one is by itself.
