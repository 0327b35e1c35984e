"""Blocks and final normalization, from embedded inputs to hidden states."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import block_order
from keras_transformer.distribution.spread import PARTS
from keras_transformer.layers.altup import CopiedStates, JoinedStates
from keras_transformer.layers.arguments import (
    call_unchecked,
    embedding_initializer,
    kernel_initializer,
    layer_of,
    pack_outputs,
)
from keras_transformer.layers.attention.masking import AttentionMask
from keras_transformer.layers.attention.score_bias import LazyBias
from keras_transformer.layers.block import DecoderBlock, EncoderBlock
from keras_transformer.layers.global_states import GlobalStates
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.position import sequence_positions
from keras_transformer.layers.remat import no_inner_remat, with_whole_weights

# Arguments of a block that attends to the states of another side.
_OF_SOURCE = ("encoder_states", "encoder_positions", "cross_visibility")
# The allowed values of a backbone's `collect`: intermediate results of a pass.
COLLECTED = ("states", "block_outputs", "attention", "queries", "keys", "maps")


@dataclasses.dataclass(frozen=True)
class OpaqueCache:
    """A cache wrapped in one object, as Keras refuses arguments with both tensors and numbers."""

    cache: Any


class ForwardContext:
    """One pass of tokens through the blocks of a decoder, with or without a cache.

    Use it in the `call` of a decoder of your own, see `DecoderBase`. Without a cache each block
    gets the padding mask, the positions and the documents of the inputs. With a cache, the tokens
    follow those in the cache, and each block gets its keys and values and writes new ones.

    Args:
        x: `(batch, length)` or `(batch, length, dim)`, tokens or their states, used for its shape.
        inputs: the inputs of the decoder, of which `padding_mask`, `position_ids`, `pack_ids` and
            `prefix` and `prefix_start` are read, see `AttentionMask`; with `prefix_in_windows` they
            are for blocks with a pattern alone. With a cache `position_ids`
            are positions of several axes, `(batch, length, axes)`; others are counted by it.
        cache: the argument of `call`, or None.
        collect: tuple of `"states"`, `"block_outputs"`, `"attention"`, `"queries"` and `"keys"`,
            what to collect from each block: its inputs (of several copies the first), and behind
            the last the normalized states; its outputs, none of them normalized; its attention
            weights; and for each head the normalized and rotated projections whose products are
            the attention scores. `"maps"` are the `maps` of the inputs.

    Attributes:
        visibility: `layers.AttentionMask`, which tokens see which. With a cache, `visibilities`
            holds one for each group of it, and this is the first of them.
        grid: ints, rows and columns of the grid that the states form, or None.
        positions: int `(batch, length)`, the position of each token in its row, for layers that
            are added to the embedding; None means 0, 1, 2, ...

    Example: see `DecoderBase`.
    """

    def __init__(self, x, inputs: Mapping[str, Any], cache=None, collect: tuple[str, ...] = ()):
        self.grid = inputs.get("grid")
        self.segment_ids = inputs.get("segment_ids")
        self._in_windows = inputs.get("prefix_in_windows", False)
        self.cache = cache = cache.cache if isinstance(cache, OpaqueCache) else cache
        self.collected: dict[str, list] = {name: [] for name in collect}
        if "maps" in self.collected:
            self.collected["maps"] += inputs.get("maps") or ()
        self._kept: list = []
        self._num_before = 0
        self._for_later: dict[int, Any] = {}
        names = ("padding_mask", "pack_ids", "position_ids", "global_positions")
        padding, packs, positions, of_all = map(inputs.get, names)
        prefix = {name: inputs.get(name) for name in ("prefix", "prefix_start")}
        self.visibility = AttentionMask(
            padding,
            query_pack=packs,
            query_positions=positions,
            global_positions=of_all,
            **prefix,
        )
        self.visibilities = {None: self.visibility}
        if cache is not None:
            # The cache itself counts positions of one axis.
            of_axes = positions is not None and len(positions.shape) == 3
            self.cache = cache.reserve(x, padding, ops.max(positions, axis=-1) if of_axes else None)
            self.visibilities = {
                key: visibility._replace(query_pack=packs, **prefix)
                for key, visibility in self.cache.visibilities(ops.shape(x)[1]).items()
            }
            if of_axes:
                self.visibilities = {
                    key: visibility._replace(query_positions=positions)
                    for key, visibility in self.visibilities.items()
                }
            self.visibility = next(iter(self.visibilities.values()))

    def put_before(self, count: int) -> None:
        """Take the first `count` states of the blocks as real ones, which are not collected.

        What is collected of the others leaves out their attention weights on these states.

        Raises ValueError if documents are packed, which would all see these states.
        """
        self._num_before, seen = count, self.visibility
        if seen.query_pack is not None:
            raise ValueError("The `global_states` of a model would be seen by packed documents.")
        padding = seen.padding
        if padding is not None:
            padding = ops.cast(padding, "int32")
            padding = ops.pad(padding, ((0, 0), (count, 0)), constant_values=1) > 0
        self.visibility = seen._replace(padding=padding, query_positions=None)
        self.visibilities = {None: self.visibility}

    @property
    def positions(self):
        return self.visibility.query_positions

    @property
    def group(self) -> int | None:
        """Key in `visibilities` of the next block."""
        return None if self.cache is None else self.cache.group_of(len(self._kept))

    @property
    def cache_positions(self):
        """Positions that the cache counts; None without a cache."""
        return None if self.cache is None else self.positions

    def __call__(
        self,
        block,
        x,
        checked: bool = False,
        source: int | None = None,
        for_later: int | None = None,
        again: bool = False,
        **options,
    ):
        """Call a block, an `EncoderBlock` or a `DecoderBlock`, and return its states.

        Args:
            block: the block. Blocks are called in the same order in every pass; a block that is
                called twice counts as two.
            x: float `(batch, length, dim)`.
            checked: bool, whether the states and options are known to fit the block, for example
                because an equal block has checked them. It then does not check them again.
            source: int, the earlier block whose results this one takes, if it takes any.
            for_later: int, the number by which later blocks find the results of this one.
            again: bool, whether the last block is called again for other states of its tokens:
                its keys and values are in the cache, and nothing is collected.
            **options: further arguments of the block, e.g. `training`.
        """
        if again:
            return self._again(block, x, options)
        visibility = self.visibilities[self.group]
        if self.cache is None and block.rotary is None:
            visibility = visibility._replace(query_positions=None)
        if block.pattern is None and self._in_windows:
            visibility = visibility._replace(prefix=None, prefix_start=None)
        if block.pattern is None or not block.pattern.takes_global_positions:
            visibility = visibility._replace(global_positions=None)
        options = {"visibility": visibility, **options}
        if "states" in self.collected:
            states = x if len(x.shape) == 3 else x[:, :, 0]
            self.collected["states"].append(states[:, self._num_before :])
        within = [name for name in ("queries", "keys") if name in self.collected]
        if "attention" in self.collected:
            options["return_attention_scores"] = True
        if within:
            options["return_projections"] = True
        if for_later is not None:
            options["return_for_later"] = True
        if source is not None:
            options["earlier"] = self._for_later[source]
        if self.cache is not None:
            shares = source is not None and not block.has_cache
            options["cache"] = self._cache_of(source if shares else None)
        call = functools.partial(call_unchecked, block) if checked else block
        if PARTS or keras.distribution.distribution():
            result = with_whole_weights(block, call, x, **options)
        else:
            result = call(x, **options)
        if self.cache is not None:
            *result, kept = result
            self._kept.append(kept)
        if for_later is not None:
            *result, found = result
            self._for_later[for_later] = found["self"]
        if within:
            *result, projections = result
            for side, given in projections.items():
                for name in within:
                    self._collect(side, name, given[name])
        if "attention" in self.collected:
            *result, weights = result
            for side, given in weights.items():
                self._collect(side, "attention", given)
        x = result[0] if isinstance(result, (tuple, list)) else result
        if "block_outputs" in self.collected:
            self.collected["block_outputs"].append(x[:, self._num_before :])
        return x

    def _again(self, block, x, options):
        """Return the states of a second call of the last block, without what it would keep."""
        kept = self.collected, self._kept, self.visibilities
        self.collected, self._kept = {}, self._kept[:-1]
        self.visibilities = {  # queries alone see tokens behind them
            group: visibility._replace(prefix=None, prefix_start=None)
            for group, visibility in self.visibilities.items()
        }
        x = self(block, x, checked=True, **options)
        self.collected, self._kept, self.visibilities = kept
        return x

    def _cache_of(self, source: int | None) -> dict:
        """Return the cache of the next block, or of the one whose keys and values it reads."""
        if source is None:
            return self.cache.layer(len(self._kept))
        before, after = self.cache.layer(source)["self"], self._kept[source]["self"]
        return {"self": dataclasses.replace(after, next=before.next), "cross": None}

    def _collect(self, side: str, name: str, given) -> None:
        """Append the results of one attention layer to those of earlier blocks."""
        before = self._num_before
        if before and side == "self":
            given = given[:, :, before:]
            given = given[..., before:] if name == "attention" else given
        elif before and name == "queries":
            given = given[:, :, before:]
        name = name if side == "self" else f"cross_{name}"
        self.collected.setdefault(name, []).append(given)

    def outputs(self, x, source=None):
        """Return the states, and the updated cache and the collected values, if there are any.

        Args:
            x: float `(batch, length, dim)`.
            source: bool `(batch, source_length)`, the mask of the given encoder states.
        """
        if "states" in self.collected:
            self.collected["states"].append(x)
        cache = None if self.cache is None else self.cache.with_layers(self._kept, source)
        return pack_outputs(x, cache, self.collected or None)


def positions_of(embedded) -> dict[str, Any]:
    """Return the positions of `layers.stems.Embedded`, as arguments of a stack of blocks."""
    return {"added": embedded.added, "attention_positions": embedded.attention_positions}


class Stack(keras.layers.Layer):
    """The blocks of an encoder or a decoder, and the normalization after them.

    Args:
        config: `TransformerConfig` of a side, whose kind decides the type of the blocks.
        cross_dim: int, the width of the encoder states that its blocks attend to. None omits
            cross-attention.
        initializer: initializer of all kernels, in place of the config's.
        **kwargs: see `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`, the states of a stem.
        run: `ForwardContext`, the pass that they belong to.
        encoder_states, encoder_padding_mask, encoder_pack_ids: inputs of cross-attention.
        layer_inputs: float `(batch, length, num_layers, dim)`, for blocks with a `layer_input`.
        queries: float `(batch, length, hidden_dim)`, for blocks with a `query_stream`, whose states
            are the result.
        added: tensors `(batch, length, hidden_dim)`, each of which is added to the states behind
            one of the first blocks.
        attention_positions, encoder_positions: float `(batch or 1, length, dim)`, added to the
            states, and to the encoder states, for the queries and keys of each attention.
        first_only: bool, return the state of the first token alone, `(batch, 1, hidden_dim)`: the
            last block is computed for that token only. Encoder blocks only.

    Returns:
        The result of `run.outputs`: float `(batch, length, hidden_dim)`, then the updated cache
        and the collected values, if the run has them.
    """

    def __init__(
        self, config: TransformerConfig, cross_dim: int | None = None, initializer=None, **kwargs
    ):
        # A cache may have a smaller dtype, and must not be cast to the compute dtype.
        super().__init__(autocast=False, **kwargs)
        self.config = config
        self.cross_dim = cross_dim
        self.supports_masking = True
        self.side = side = config.only_side
        ordered = not (side.bidirectional or side.input.is_set)
        causal = side.causal or (config.kind == "decoder" and ordered)
        self.position_bias = self.group_bias = self.relative_embedding = self.final_norm = None
        self.grid_bias = self.altup_copies = self.altup_mean = None
        kernel = kernel_initializer(config, initializer)
        if side.score_bias is not None and side.score_bias.in_stack:
            make = functools.partial(
                layer_of(side.score_bias).from_part,
                side.score_bias,
                side,
                causal,
                dtype=self.dtype_policy,
            )
            with no_inner_remat():
                setattr(self, side.score_bias.slot, make(embeddings_initializer=kernel))
                if getattr(side.attention.pattern, "group_size", None) is not None:
                    self.group_bias = make(name="group_relative_bias")
        if side.altup is not None:
            for name, copies in (("altup_copies", CopiedStates), ("altup_mean", JoinedStates)):
                own = kernel_initializer(config, initializer)
                options = {"kernel_initializer": own, "name": name, "dtype": self.dtype_policy}
                with no_inner_remat():
                    setattr(self, name, copies(side.altup, **options))
        self.global_states = None
        if side.global_states:
            with no_inner_remat():
                self.global_states = GlobalStates(
                    side.global_states,
                    embeddings_initializer=embedding_initializer(config, initializer),
                    name="global_states",
                    dtype=self.dtype_policy,
                )
        self.order = block_order(config)
        self.sources = side.sources()
        # Files name the blocks by their class.
        kind, options = EncoderBlock, {}
        if causal or cross_dim is not None:
            kind, options = DecoderBlock, {"causal": causal}
        self.blocks = []
        for i in range(max(self.order, default=-1) + 1):
            part = side.layer(i)
            if kind is DecoderBlock:
                attends = cross_dim is not None and part.attends_to_source
                options = {**options, "cross_attention": attends}
            block = kind(
                part,
                kernel_initializer=kernel_initializer(config, initializer),
                name=f"layer_{i}",
                dtype=self.dtype_policy,
                **options,
            )
            self.blocks.append(block)
        self._some_attend = len({block.cross_attention_enabled for block in self.blocks}) > 1
        if side.final_norm:
            self.final_norm = make_normalization(
                side.block.norm.type,
                side.block.norm.epsilon,
                name="final_norm",
                dtype=self.dtype_policy,
            )

    def build(self, input_shape):
        if self.global_states is not None:
            self.global_states.build(input_shape)
        source = () if self.cross_dim is None else ((*input_shape[:-1], self.cross_dim),)
        of_block = input_shape
        if self.altup_copies is not None:
            self.altup_copies.build(input_shape)
            of_block = self.altup_copies.compute_output_shape(input_shape)
            self.altup_mean.build(of_block)
        for i, block in enumerate(self.blocks):
            block.build(of_block, *(source if block.cross_attention_enabled else ()))
            if self.side.merges:
                of_block = (*input_shape[:-1], self.side.width(i))
        biases = (self.position_bias, self.group_bias, self.grid_bias, self.relative_embedding)
        for layer in (*biases, self.final_norm):
            if layer is not None:
                layer.build((*input_shape[:-1], self.config.hidden_dim))

    def call(
        self,
        inputs,
        run: ForwardContext,
        encoder_states=None,
        encoder_padding_mask=None,
        encoder_pack_ids=None,
        layer_inputs=None,
        added=(),
        attention_positions=None,
        encoder_positions=None,
        queries=None,
        first_only: bool = False,
        training: bool = False,
    ):
        options = {"training": training}
        if attention_positions is not None:
            options["attention_positions"] = attention_positions
        if encoder_positions is not None:
            options["encoder_positions"] = encoder_positions
        if encoder_states is not None:
            packs = None if encoder_pack_ids is None else run.visibility.query_pack
            options["encoder_states"] = encoder_states
            options["cross_visibility"] = AttentionMask(
                encoder_padding_mask, packs, encoder_pack_ids
            )
            if run.cache is not None and encoder_padding_mask is None:
                encoder_padding_mask = ops.ones(ops.shape(encoder_states)[:2], "bool")
        elif run.cache is not None and run.cache.source.shape[1] != 0:
            options["cross_visibility"] = AttentionMask(run.cache.source)
        x = inputs if self.altup_copies is None else self.altup_copies(inputs)
        before = self.side.global_states
        if before:
            x = self.global_states(x)
            run.put_before(before)
        bias_of = self._biases(x, run)
        if self.relative_embedding is not None:
            places = sequence_positions(x) if run.positions is None else run.positions
            compared = {} if run.segment_ids is None else {"segment_ids": run.segment_ids}
            options["relative"] = self.relative_embedding(places, places, **compared)
        if first_only and self.side.on_grid:
            raise ValueError("Blocks on a grid of patches compute all states: first_only=False.")
        grid = run.grid
        on_grid = None if self.grid_bias is None else self.grid_bias.of_layers(run.grid)
        for i, block in enumerate(self.order):
            if first_only and not before and i == len(self.order) - 1:
                options["first_only"] = True
            block = self.blocks[block]
            bias = bias_of(block, i) if on_grid is None else on_grid[i % len(on_grid)]
            if layer_inputs is not None:
                options["layer_input"] = layer_inputs[:, :, i]
            if block.on_grid:
                options["grid"] = grid
            given = options
            if self._some_attend and not block.cross_attention_enabled:
                given = {n: value for n, value in options.items() if n not in _OF_SOURCE}
            taken = {"source": self.sources[i], "for_later": i if i in self.sources else None}
            # The first block checks what the stem made; the others get the same.
            if queries is None:
                x = run(block, x, checked=i > 0, bias=bias, **taken, **given)
            else:
                queries = run(block, x, checked=i > 0, queries=queries, **given)
                last = i == len(self.order) - 1
                x = queries if last else run(block, x, again=True, **given)
            merging = block.config.merging
            grid = grid if merging is None else merging.grid(grid)
            x = x + added[i] if i < len(added) else x
        x = x if self.altup_mean is None else self.altup_mean(x)
        if before:
            x = x[:, before : before + 1] if first_only else x[:, before:]
        x = x if self.final_norm is None else self.final_norm(x)
        return run.outputs(x, encoder_padding_mask)

    def stage_norms(self) -> list[keras.layers.Layer | None]:
        """Return the norm behind each stage: the one in the next merging, and the final norm."""
        ends = self.side.stage_ends[:-1]
        return [*(self.blocks[self.order[end]].merging.input_norm for end in ends), self.final_norm]

    def _biases(self, x, run: ForwardContext):
        """Return a function from a block and its number to the position bias of its scores.

        It is the bias of all pairs, or in windowed blocks one that is computed for their pairs.
        """
        if self.position_bias is None:
            return lambda block, number: None
        in_parts = run.cache is None and "attention" not in run.collected
        own = getattr(self.position_bias, "num_layers", None) is not None
        queries = sequence_positions(x) if run.positions is None else run.positions

        @functools.cache
        def lazy(table: int | None) -> LazyBias:
            return LazyBias(self.position_bias, run.positions, self.group_bias, table)

        @functools.cache
        def whole(group: int | None, table: int | None):
            keys = run.visibilities[group].key_positions
            return lazy(table).of(queries, queries if keys is None else keys)

        def bias_of(block, number: int):
            table = number if own else None
            return (
                lazy(table) if in_parts and block.pattern is not None else whole(run.group, table)
            )

        return bias_of

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # Recomputing all blocks at once saves nothing: each does it itself.
