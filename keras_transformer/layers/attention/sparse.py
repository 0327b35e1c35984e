"""Attention to some of the keys: windows, blocks, global tokens, random blocks, summed groups.

Each pattern of a config, such as `config.Window`, has a class here. It masks the places that a
query does not see, and where that is cheaper computes only the scores of the visible places.
"""

import functools
import math
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer import config
from keras_transformer.config.structure import block_of
from keras_transformer.kernels.values import constant
from keras_transformer.layers.arguments import refuse_unused
from keras_transformer.layers.attention.chunks import SequenceBlocks
from keras_transformer.layers.attention.masking import AttentionMask, by_key, by_query, pairs
from keras_transformer.layers.attention.score_bias import LazyBias
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat

# Smaller blocks compute fewer scores outside the window, but need more and smaller products.
_LEAST_SIZE = 64


class AttentionPattern:
    """Base class of patterns: which places a query sees, and attention to them.

    Args:
        part: the pattern of a config.
    """

    def __init__(self, part: config.Pattern):
        self.part = part

    def make_layers(self, attention) -> None:
        """Make the layers that the pattern adds to an attention, as attributes of the attention."""

    def placed(self, visibility: AttentionMask) -> AttentionMask:
        """Return the `AttentionMask` with the places that the pattern itself determines."""
        return visibility

    def mask(self, visibility: AttentionMask, query_slots, key_slots, key_length):
        """Return which places are seen, bool, broadcastable to `(batch, heads, queries, keys)`.

        Args:
            visibility: `AttentionMask` of the queries. With a cache, positions replace the slots.
            query_slots: int `(1, queries)`, places of the queries in the sequence.
            key_slots: int `(1, keys)`, places of the keys.
            key_length: number of keys.
        """
        raise NotImplementedError

    def attend(self, attention, attend: Callable, states, projected, visibility, bias, **options):
        """Return the weighted sum of the values, and the weights.

        Args:
            attention: the `MultiHeadAttention`.
            attend: function of queries, keys, values, an `AttentionMask` and a bias, which returns
                both.
            states: `(batch, length, dim)`, the states that the queries are computed from.
            projected: queries, keys and values, `(batch, length, heads, head_dim)`.
            visibility: `AttentionMask` of the whole sequences.
            bias: `LazyBias`, the bias of all pairs, or None.
            **options: `may_cut`, bool, whether keys may be left out; `training`, bool; and `grid`,
                ints, rows and columns of the patches, or None.
        """
        bias = bias.materialize(states) if isinstance(bias, LazyBias) else bias
        return attend(*projected, visibility, bias)


class WindowPattern(AttentionPattern):
    """Window around each query, with global tokens and summed groups, see `config.Window`."""

    part: config.Window

    def make_layers(self, attention):
        part = self.part
        if part.global_projection:
            attention.global_denses = [
                attention._projection(dense.units, f"{dense.name}_global", attention.attention.bias)
                for dense in (attention.query_dense, attention.key_dense, attention.value_dense)
            ]
        if part.group_size is not None:
            with no_inner_remat():
                attention.group_norm = make_normalization(
                    "rms_norm",
                    attention.norm.epsilon,
                    name="group_norm",
                    dtype=attention.dtype_policy,
                )

    @property
    def near(self) -> "WindowPattern":
        """Pattern within the blocks of a cut sequence."""
        return WindowPattern(config.Window(size=self.part.size, behind=self.part.behind))

    def placed(self, visibility):
        """Set `global_positions`, unless given, to the first `global_tokens` real tokens."""
        if visibility.global_positions is not None:
            return visibility._replace(
                global_positions=ops.cast(visibility.global_positions, "int32")
            )
        if not self.part.global_tokens:
            return visibility
        places = ops.arange(self.part.global_tokens, dtype="int32")[None]
        if visibility.padding is not None:
            first = ops.argmax(ops.cast(visibility.padding, "int32"), axis=1)
            places = places + ops.cast(first, "int32")[:, None]
        return visibility._replace(global_positions=places)

    def mask(self, visibility, query_slots, key_slots, key_length):
        queries = query_slots if visibility.query_positions is None else visibility.query_positions
        keys = key_slots if visibility.key_positions is None else visibility.key_positions
        size, step, count = self.part.size, self.part.dilation, self.part.global_tokens
        near = pairs(queries, keys, lambda q, k: ops.abs(q - k) < size * step)
        if self.part.behind is not None:
            last = self.part.behind
            near = pairs(queries, keys, lambda q, k: (q - k < size) & (k - q <= last))
        if step > 1:
            near &= pairs(queries, keys, lambda q, k: (q - k) % step == 0)
        if visibility.global_positions is not None:
            queries, keys = visibility.is_global(query_slots), visibility.is_global(key_slots)
        elif count:
            queries, keys = queries < count, keys < count
        else:
            return near
        return near | by_query(queries) | by_key(keys)

    def _cut(self, visibility, batch, length) -> "Sparse | None":
        """Return the division of sequences of a length, or None if it would save nothing."""
        if visibility.explicit is not None or visibility.prefix is not None:
            return None  # these apply to all pairs of tokens
        whole, part = length, self.part
        # The places that a dilated window connects form a sequence of their own.
        length = -(-length // part.dilation)
        size = max(_LEAST_SIZE, -(-(part.size - 1) // 2))
        before = behind = -(-(part.size - 1) // size)
        if part.behind is not None:
            behind = -(-part.behind // size)
        behind = 0 if visibility.causal else behind
        short = isinstance(length, int) and length <= (before + 1 + behind) * size
        if short and part.group_size is None:
            return None
        return Sparse(SequenceBlocks(length, size, before, behind), part.dilation, batch, whole)

    def attend(self, attention, attend, states, projected, visibility, bias, **options):
        own = visibility.global_positions is not None and self.part.global_projection
        of_global = functools.partial(_of_global, attention, states) if own else None
        cut = None
        if options["may_cut"] and isinstance(bias, LazyBias | None):
            cut = self._cut(visibility, *ops.shape(projected[0])[:2])
        if cut is not None:
            groups = ()
            if self.part.group_size is not None:
                groups = _of_groups(attention, self.part.group_size, states, visibility, bias, cut)
            given = (_first_of(attend), *projected, visibility, bias, cut, groups, of_global)
            return attend_in_blocks(*given), None
        if self.part.group_size is not None:
            raise ValueError(
                "Attention with `global_block_size` needs whole sequences and returns no weights: "
                "call it without a cache, an explicit mask and `return_attention_scores`."
            )
        bias = bias.materialize(states) if isinstance(bias, LazyBias) else bias
        attended, weights = attend(*projected, visibility, bias)
        if own:
            places = visibility.global_positions
            rows, seen = attend_from_global(attend, *of_global(places), visibility, bias)
            attended = put_at(places, rows, attended)
            if weights is not None:
                first = (ops.swapaxes(x, 1, 2) for x in (seen, weights))
                weights = ops.swapaxes(put_at(places, *first), 1, 2)
        return attended, weights


class BlocksPattern(AttentionPattern):
    """Neighbouring, first, last and random blocks of places, see `config.Blocks`."""

    part: config.Blocks
    near = None  # within the blocks of a cut sequence all places are seen

    def mask(self, visibility, query_slots, key_slots, key_length):
        size = self.part.size
        last = (key_length - 1) // size
        queries, keys = query_slots // size, key_slots // size
        near = pairs(queries, keys, lambda q, k: ops.abs(q - k) <= 1)
        ends_ = pairs(queries, keys, lambda q, k: (q == 0) | (q == last) | (k == 0) | (k == last))
        return near | ends_ | (key_length <= self.part.full_length)

    def attend(self, attention, attend, states, projected, visibility, bias, **options):
        queries, keys, values = projected
        batch, length = ops.shape(states)[:2]
        whole = (visibility.explicit, visibility.prefix)  # these apply to all pairs of tokens
        fits = isinstance(length, int) and length > self.part.full_length
        fits = fits and isinstance(bias, LazyBias | None) and all(x is None for x in whole)
        if not (options["may_cut"] and fits):
            bias = bias.materialize(states) if isinstance(bias, LazyBias) else bias
            bias = self._bias_of_pairs(bias, queries, keys)
            return attend(queries, keys, values, visibility, bias)
        refuse_unused(
            "with `block_size` the first and the last block see all.",
            global_positions=visibility.global_positions,
        )
        size, random = self.part.size, self.part.random
        cut = Sparse(SequenceBlocks(length, size, 1, 1), 1, batch, length)
        visibility = visibility._replace(global_positions=constant(ends(length, size)))
        weight, extra_keys = None, ()
        if random and options["training"]:
            seed = zlib.crc32(_place(attention.path).encode())
            drawn = (cut, keys, values, visibility, random, seed, queries.shape[2])
            extra_keys = (random_keys(*drawn),)
        elif random:
            weight = weight_of_first(size, random)
        given = (_first_of(attend), queries, keys, values, visibility, bias, cut, extra_keys)
        return attend_in_blocks(*given, weight=weight), None

    def _bias_of_pairs(self, bias, queries, keys):
        """Add `weight_of_first` to the bias of all pairs whose key is in the first block."""
        length, size, random = ops.shape(keys)[1], self.part.size, self.part.random
        if not random or (isinstance(length, int) and length <= self.part.full_length):
            return bias
        blocks = ops.arange(length, dtype="int32") // size
        middle = ops.logical_and(blocks > 0, blocks < (length - 1) // size)
        middle = ops.logical_and(middle, length > self.part.full_length)
        first = ops.logical_and(middle[:, None], blocks[None] == 0)[: ops.shape(queries)[1]]
        added = ops.where(first, math.log(1 + random), 0.0)[None, None]
        return added if bias is None else bias + ops.cast(added, bias.dtype)


class ChunksPattern(AttentionPattern):
    """Chunks, in which tokens see only each other, see `config.Chunks`."""

    part: config.Chunks
    near = None  # within a chunk all places are seen

    def mask(self, visibility, query_slots, key_slots, key_length):
        queries = query_slots if visibility.query_positions is None else visibility.query_positions
        keys = key_slots if visibility.key_positions is None else visibility.key_positions
        size, count = self.part.size, self.part.global_tokens
        moved = self.part.shift - count
        near = pairs((queries + moved) // size, (keys + moved) // size, ops.equal)
        if count:
            near = near | by_query(query_slots < count) | by_key(key_slots < count)
        return near

    def attend(self, attention, attend, states, projected, visibility, bias, **options):
        batch, length = ops.shape(states)[:2]
        size, count = self.part.size, self.part.global_tokens
        # Chunks begin at multiples of their size if this many places are added before the first.
        before = (self.part.shift - count) % size
        whole = (visibility.explicit, visibility.prefix)  # these apply to all pairs of tokens
        if before or count:
            whole += (bias, *visibility.packs)
        fits = isinstance(length, int) and length > size + count
        fits = fits and isinstance(bias, LazyBias | None) and all(x is None for x in whole)
        if not (options["may_cut"] and fits):
            return super().attend(attention, attend, states, projected, visibility, bias)
        if before:
            real = ops.ones((1, length)) if visibility.padding is None else visibility.padding
            real = ops.pad(ops.cast(real, "int32"), ((0, 0), (before, 0))) > 0
            visibility = visibility._replace(padding=real)
            projected = [ops.pad(x, ((0, 0), (before, 0), (0, 0), (0, 0))) for x in projected]
        if count:
            places = np.arange(before, before + count, dtype="int32")[None]
            visibility = visibility._replace(global_positions=constant(places))
        cut = Sparse(SequenceBlocks(before + length, size, 0, 0), 1, batch, before + length)
        attended = attend_in_blocks(_first_of(attend), *projected, visibility, bias, cut)
        return attended[:, before:], None


def _first_of(attend: Callable) -> Callable:
    """Return a function that returns the weighted sum of `attend` without the weights."""
    return lambda *given: attend(*given)[0]


def _of_global(attention, states, places):
    """Project the global tokens to queries, all tokens to keys and values, by `global_denses`."""
    given = (gathered(states, places), states, states)
    heads = (attention.num_heads, attention.num_key_value_heads, attention.num_key_value_heads)
    norms = (attention.query_norm, attention.key_norm, None)
    parts = zip(attention.global_denses, given, heads, norms, strict=True)
    return [attention._normalized(dense(x), n, norm) for dense, x, n, norm in parts]


def _of_groups(attention, size: int, states, visibility, bias, cut) -> tuple["ExtraKeys", ...]:
    """Return keys and values of the summed states of each group of `size` tokens.

    Empty if the sequence is shorter than a group.
    """
    if isinstance(cut.length, int) and cut.length < size:
        return ()
    sums, groups = group_sums(states, size, visibility.padding)
    sums = attention.group_norm(sums)
    heads = attention.num_key_value_heads
    denses = (attention.key_dense, attention.value_dense)
    keys, values = (attention._split(dense(sums), heads) for dense in denses)
    return (group_keys(cut, keys, values, groups, bias),)


def _place(path: str) -> str:
    """Return a unique text for the place of a layer in its stack, the same in every process."""
    stack, number = block_of(path) or (path, "")
    return f"{stack.rpartition('/')[2]}/layer_{number}" if number != "" else path


class ExtraKeys(NamedTuple):
    """Keys that the queries of a block see in addition to nearby keys.

    Fields:
        keys, values: `(rows, count, heads, head_dim)`, with a row for each block.
        allowed: bool `(rows, heads or 1, size or 1, count)`.
        bias: float, broadcastable to the shape of `allowed`, or None.
    """

    keys: Any
    values: Any
    allowed: Any
    bias: Any = None


def is_one(number) -> bool:
    """Return True for the Python int 1; False for tensors."""
    return isinstance(number, int) and number == 1


class Sparse(NamedTuple):
    """Division of a sequence into `dilation` interleaved sequences, each cut into blocks.

    Fields:
        blocks: `SequenceBlocks` of each interleaved sequence.
        step: int, the dilation.
        batch, length: size of the whole sequences.
    """

    blocks: SequenceBlocks
    step: int
    batch: Any
    length: Any

    def attend(
        self,
        attend: Callable,
        queries,
        keys,
        values,
        visibility: AttentionMask,
        bias,
        extra_keys: list,
    ):
        """Return the result of `attend` for the nearby and the `ExtraKeys` keys of each query."""
        near = self._near(visibility)
        parts = [ExtraKeys(self.keys(keys), self.keys(values), None, self.bias(bias)), *extra_keys]
        if len(parts) > 1:
            size = self.blocks.size
            allowed = near.mask(size, parts[0].keys.shape[1])
            parts[0] = parts[0]._replace(allowed=allowed)
            near = AttentionMask(explicit=_joined([part.allowed for part in parts], size, parts))
        keys, values = (
            parts[0][i] if len(parts) == 1 else ops.concatenate([part[i] for part in parts], axis=1)
            for i in (0, 1)
        )
        bias = None
        if any(part.bias is not None for part in parts):
            biases = [
                ops.zeros((1, 1, 1, 1), "float32") if part.bias is None else part.bias
                for part in parts
            ]
            bias = _joined(biases, self.blocks.size, parts)
        attended = attend(self.queries(queries), keys, values, near, bias)
        return self._together(self.blocks.join(attended))

    def _near(self, visibility: AttentionMask) -> AttentionMask:
        """Return the `AttentionMask` within the blocks, without global keys, added apart."""
        shape = (self.batch, self.length)
        padding = True if visibility.padding is None else ops.cast(visibility.padding, "bool")
        if visibility.global_positions is not None:
            places = ops.arange(self.length, dtype="int32")[None]
            padding = ops.logical_and(padding, ops.logical_not(visibility.is_global(places)))
        query_pack, key_pack = visibility.packs
        # The batch axis may have size 1.
        arrays = (padding, query_pack, key_pack)
        padding, query_pack, key_pack = (
            None if x is None else self._apart(ops.broadcast_to(x, shape)) for x in arrays
        )
        blocks = self.blocks
        return AttentionMask(
            causal=visibility.causal,
            first_slot=blocks.before * blocks.size,
            padding=blocks.keys(padding),
            pattern=visibility.pattern.near,
            query_pack=None if query_pack is None else blocks.queries(query_pack),
            key_pack=None if key_pack is None else blocks.keys(key_pack),
        )

    def bias(self, bias: LazyBias | None):
        """Return the bias of pairs within blocks, `(rows or 1, heads, size, keys of a block)`."""
        if bias is None:
            return None
        if bias.positions is not None:
            positions = ops.broadcast_to(bias.positions, (self.batch, self.length))
            return bias.of(self.queries(positions), self.keys(positions))
        size, before, span = self.blocks.size, self.blocks.before, self.blocks.span
        places = ops.arange(span * size, dtype="int32")[None] * self.step
        return bias.of(places[:, before * size : (before + 1) * size], places)

    def queries(self, x):
        """Cut `(batch, length, ...)` into `(rows, size, ...)`."""
        return self.blocks.queries(self._apart(x))

    def keys(self, x):
        """Cut `(batch, length, ...)` into `(rows, keys of a block, ...)`."""
        return self.blocks.keys(self._apart(x))

    def of_rows(self, x):
        """Repeat `(batch, ...)` to `(rows, ...)`, the same for each block of a row."""
        count = -(-self.blocks.length // self.blocks.size) * self.step
        shape = ops.shape(x)[1:]
        x = ops.broadcast_to(x[:, None], (self.batch, count, *shape))
        return ops.reshape(x, (self.batch * count, *shape))

    def _apart(self, x):
        """Separate `(batch, length, ...)` into `(batch * step, length / step, ...)`."""
        if self.step == 1:
            return x
        missing, rest = -self.length % self.step, ops.shape(x)[2:]
        x = ops.concatenate([x, ops.zeros((self.batch, missing, *rest), x.dtype)], axis=1)
        x = ops.reshape(x, (self.batch, -1, self.step, *rest))
        return ops.reshape(ops.swapaxes(x, 1, 2), (self.batch * self.step, -1, *rest))

    def _together(self, x):
        """Invert `_apart`."""
        if self.step == 1:
            return x
        x = ops.swapaxes(ops.reshape(x, (self.batch, self.step, -1, *x.shape[2:])), 1, 2)
        return ops.reshape(x, (self.batch, -1, *x.shape[3:]))[:, : self.length]


def attend_in_blocks(
    attend: Callable,
    queries,
    keys,
    values,
    visibility: AttentionMask,
    bias: LazyBias | None,
    cut: Sparse,
    extra_keys: tuple[ExtraKeys, ...] = (),
    of_global: Callable | None = None,
    weight=None,
):
    """Return `attend(queries, keys, values, visibility, bias)`, computed only for the pattern.

    Args:
        attend: function of states `(rows, length, heads, head_dim)`.
        queries: `(batch, length, heads, head_dim)`.
        keys: keys of the same shape.
        values: values of the same shape.
        visibility: `AttentionMask` of the whole sequences.
        bias: `LazyBias`, or None.
        cut: the division of the sequences.
        extra_keys: `ExtraKeys`, keys that queries see besides the nearby ones.
        of_global: function of places to the queries at these places and the keys and values of all
            tokens, if global tokens use projections of their own.
        weight: added to the scores of global keys.
    """
    extra_keys = [*extra_keys]
    if visibility.global_positions is not None:
        extra_keys.append(global_keys(cut, keys, values, visibility, bias, weight))
    attended = cut.attend(attend, queries, keys, values, visibility, bias, extra_keys)
    if visibility.global_positions is None:
        return attended
    places = visibility.global_positions
    given = (gathered(queries, places), keys, values) if of_global is None else of_global(places)
    rows = attend_from_global(attend, *given, visibility, bias)
    return put_at(places, rows, attended)


def _joined(arrays, size: int, parts):
    """Concatenate parts `(rows or 1, heads or 1, size or 1, count or 1)` along the last axis."""
    rows, heads = (
        next((n for x in arrays if not is_one(n := ops.shape(x)[axis])), 1) for axis in (0, 1)
    )
    counts = [ops.shape(part.keys)[1] for part in parts]
    whole = [
        ops.broadcast_to(x, (rows, heads, size, count))
        for x, count in zip(arrays, counts, strict=True)
    ]
    return ops.concatenate(whole, axis=-1)


def attend_from_global(attend: Callable, queries, keys, values, visibility: AttentionMask, bias):
    """Return the result of `attend` for the queries of the global tokens, which see all keys.

    `bias` is a `LazyBias`, the bias of all pairs, or None.
    """
    places = visibility.global_positions
    slots = ops.arange(ops.shape(keys)[1], dtype="int32")[None]
    explicit = None
    if visibility.causal:
        explicit = slots[:, None] <= places[..., None]
    query_pack, key_pack = visibility.packs
    if query_pack is not None:
        query_pack = gathered(query_pack, places)
    if isinstance(bias, LazyBias):
        whole = slots if bias.positions is None else bias.positions
        bias = bias.of(places if bias.positions is None else gathered(whole, places), whole)
    elif bias is not None:
        bias = ops.swapaxes(gathered(ops.swapaxes(bias, 1, 2), places), 1, 2)
    seen = AttentionMask(visibility.padding, query_pack, key_pack, explicit=explicit)
    return attend(queries, keys, values, seen, bias)


def put_at(places, new, states):
    """Replace `states` `(batch, length, ...)` at the places by `new` `(batch, count, ...)`."""
    length = ops.shape(states)[1]
    slots = ops.arange(length, dtype="int32")[None]
    is_there = slots[..., None] == once(places)[:, None]  # (batch or 1, length, count)
    there = ops.cast(is_there, new.dtype)
    there = ops.broadcast_to(there, (ops.shape(new)[0], length, ops.shape(new)[1]))
    spread = ops.matmul(there, ops.reshape(new, (*ops.shape(new)[:2], -1)))
    spread = ops.reshape(spread, ops.shape(states))
    replaced = ops.any(is_there, axis=-1)
    replaced = ops.reshape(replaced, (*ops.shape(replaced), *[1] * (len(states.shape) - 2)))
    return ops.where(replaced, spread, states)


def ends(length: int, size: int) -> np.ndarray:
    """Return the places of the first and the last block, int32 `(1, 2 * size)`, -1 past the end."""
    last = (length - 1) // size * size + np.arange(size)
    places = np.concatenate([np.arange(size), np.where(last < length, last, -1)])
    return places[None].astype("int32")


def global_keys(
    sparse: Sparse, keys, values, visibility: AttentionMask, bias, weight=None
) -> ExtraKeys:
    """Return keys and values of the global tokens; `weight` is added to their scores."""
    places = visibility.global_positions
    count = ops.shape(places)[1]
    allowed = _are_real(visibility, sparse.length)[:, None]  # (batch or 1, 1, count)
    slots = ops.arange(sparse.length, dtype="int32")[None]
    if visibility.causal:
        allowed = ops.logical_and(allowed, places[:, None] <= slots[..., None])
    query_pack, key_pack = visibility.packs
    if query_pack is not None:
        same = query_pack[..., None] == gathered(key_pack, places)[:, None]
        allowed = ops.logical_and(allowed, same)
    allowed = ops.broadcast_to(allowed, (sparse.batch, sparse.length, count))
    added = weight
    if bias is not None:
        queries = slots if bias.positions is None else bias.positions
        positions = places if bias.positions is None else gathered(bias.positions, places)
        added = ops.transpose(bias.of(queries, positions), (0, 2, 1, 3))
        shape = (sparse.batch, sparse.length, *added.shape[2:])
        added = ops.transpose(sparse.queries(ops.broadcast_to(added, shape)), (0, 2, 1, 3))
    return ExtraKeys(
        *(sparse.of_rows(gathered(x, places, sparse.batch)) for x in (keys, values)),
        allowed=sparse.queries(allowed)[:, None],
        bias=added,
    )


def gathered(x, places, batch=None):
    """Gather entries of `(batch or 1, length, ...)` at the places `(batch or 1, count)`.

    The entry at a place of -1 is arbitrary.
    """
    rows = ops.shape(x)[0] if batch is None else batch
    if is_one(rows) and not is_one(places.shape[0]):
        rows = ops.shape(places)[0]
        x = ops.broadcast_to(x, (rows, *ops.shape(x)[1:]))
    places = ops.clip(places, 0, ops.shape(x)[1] - 1)
    places = ops.broadcast_to(places, (rows, ops.shape(places)[1]))
    places = ops.reshape(places, (*ops.shape(places), *[1] * (len(x.shape) - 2)))
    return ops.take_along_axis(x, ops.cast(places, "int32"), axis=1)


def once(places):
    """Replace repeated places of a row by -1."""
    numbers = ops.arange(ops.shape(places)[1], dtype="int32")
    before = numbers[None] < numbers[:, None]
    again = ops.any(ops.logical_and(places[:, :, None] == places[:, None], before), axis=-1)
    return ops.where(again, -1, places)


def _are_real(visibility: AttentionMask, length):
    """Return bool `(batch or 1, count)`, True for global tokens that are real tokens."""
    places = once(visibility.global_positions)
    real = ops.logical_and(places >= 0, places < length)
    if visibility.padding is None:
        return real
    return ops.logical_and(real, gathered(ops.cast(visibility.padding, "bool"), places))


def weight_of_first(size: int, random_blocks: int) -> np.ndarray:
    """Return the addend to the scores of the first block when it stands for the random blocks.

    If no blocks are drawn, each random block is the first one, so its keys count that often.

    Source: BigBird's evaluation in Transformers, https://github.com/huggingface/transformers,
    pull request 23056.
    """
    counts = np.repeat([1 + random_blocks, 1], size)
    return np.log(counts).astype("float32")[None, None, None]


def group_sums(states, size: int, padding=None) -> tuple:
    """Sum the states of each group of `size` tokens, and return the group of each token.

    An incomplete group at the end of a row is merged into the last complete one.

    Args:
        states: `(batch, length, dim)`.
        size: int, number of tokens in a group.
        padding: bool `(batch or 1, length)`, True for real tokens. None if all are.

    Returns:
        The sums `(batch, length // size, dim)` and the group of each token, int `(batch, length)`,
        -1 for padding.

    Source: Guo et al. 2022, "LongT5", section 3.1.2.
    """
    batch, length = ops.shape(states)[:2]
    places = ops.arange(length, dtype="int32")[None]
    real = ops.ones((1, length), "bool") if padding is None else ops.cast(padding, "bool")
    is_last = ops.logical_and(places % size == size - 1, real)
    whole = ops.sum(ops.cast(is_last, "int32"), axis=1, keepdims=True)
    groups = ops.where(real, ops.minimum(places // size, whole - 1), -1)
    groups = ops.broadcast_to(groups, (batch, length))
    numbers = ops.arange(length // size, dtype="int32")
    members = ops.cast(groups[..., None] == numbers, states.dtype)
    return ops.matmul(ops.swapaxes(members, 1, 2), states), groups


def group_keys(sparse: Sparse, keys, values, groups, bias: LazyBias | None) -> ExtraKeys:
    """Return the summed groups as `ExtraKeys`, from `(batch, count, heads, head_dim)`."""
    count = ops.shape(keys)[1]
    numbers = ops.arange(count, dtype="int32")[None]
    allowed = numbers <= ops.max(groups, axis=1, keepdims=True)
    added = None
    if bias is not None:
        added = ops.transpose(bias.of_groups(groups, numbers), (0, 2, 1, 3))
        added = ops.transpose(sparse.queries(added), (0, 2, 1, 3))
    return ExtraKeys(
        sparse.of_rows(keys), sparse.of_rows(values), sparse.of_rows(allowed)[:, None, None], added
    )


def random_keys(
    sparse: Sparse, keys, values, visibility: AttentionMask, count: int, seed: int, query_heads: int
) -> ExtraKeys:
    """Return keys of random blocks, drawn for each block and head, the same in each call.

    Source: Zaheer et al. 2020, "Big Bird", section 2.
    """
    size, heads = sparse.blocks.size, keys.shape[2]
    blocks = -(-sparse.length // size)
    drawn = drawn_blocks(blocks, heads, count, seed)  # (heads, blocks, count)
    flat = ops.convert_to_tensor((drawn + np.arange(heads)[:, None, None] * blocks).reshape(-1))

    def taken(x, of_heads: bool):
        """Gather `(rows, count * size, heads, ...)` from `(batch, length, heads, ...)`."""
        x = sparse.queries(x)
        width = keys.shape[3] if of_heads else 1
        x = ops.reshape(x, (sparse.batch, blocks, size, heads if of_heads else 1, width))
        x = ops.broadcast_to(x, (sparse.batch, blocks, size, heads, width))
        x = ops.reshape(ops.transpose(x, (0, 3, 1, 2, 4)), (sparse.batch, -1, size * width))
        x = ops.take(x, flat, axis=1)
        x = ops.reshape(x, (sparse.batch, heads, blocks, count * size, width))
        x = ops.transpose(x, (0, 2, 3, 1, 4))
        return ops.reshape(x, (sparse.batch * blocks, count * size, heads, width))

    def of_tokens(x):
        """Gather `(rows, query_heads, 1, count * size)` from `(batch or 1, length)`."""
        x = ops.broadcast_to(ops.cast(x, "int32"), (sparse.batch, sparse.length))
        x = ops.transpose(taken(x, False)[..., 0], (0, 2, 1))[:, :, None]
        return ops.repeat(x, query_heads // heads, axis=1)

    padding = ops.ones((1, sparse.length)) if visibility.padding is None else visibility.padding
    allowed = of_tokens(padding) > 0
    query_pack, key_pack = visibility.packs
    if query_pack is not None:
        query_pack = ops.broadcast_to(query_pack, (sparse.batch, sparse.length))
        same = sparse.queries(query_pack)[:, None, :, None] == of_tokens(key_pack)
        allowed = ops.logical_and(allowed, same)
    return ExtraKeys(taken(keys, True), taken(values, True), allowed)


def drawn_blocks(blocks: int, heads: int, count: int, seed: int) -> np.ndarray:
    """Draw random blocks that are neither nearby nor at an end, int32 `(heads, blocks, count)`."""
    rng = np.random.default_rng(seed)
    middle = np.arange(1, blocks - 1)

    def of(block):
        return rng.permutation(middle[np.abs(middle - block) > 1])[:count]

    return np.array([[of(i) for i in range(blocks)] for _ in range(heads)], "int32")
