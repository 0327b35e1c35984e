"""Attention to a part of the keys: a window, blocks, tokens that see all, and random blocks."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.layers.arguments import refuse_unused
from keras_transformer.layers.blocks import Blocks
from keras_transformer.layers.masking import Visibility
from keras_transformer.layers.position_bias import PairBias


class Further(NamedTuple):
    """Keys that the queries of a block see beside those near it.

    Fields:
        keys, values: `(rows, count, heads, head_dim)`, of a row for each block.
        allowed: bool `(rows, heads or 1, size or 1, count)`.
        bias: float, broadcastable to such a shape, or None.
    """

    keys: Any
    values: Any
    allowed: Any
    bias: Any = None


class Sparse(NamedTuple):
    """How a sequence is cut up: `dilation` sequences of its own, each in blocks.

    Fields:
        blocks: `Blocks` of each of these sequences.
        step: int, the dilation.
        batch, length: of the whole sequences.
    """

    blocks: Blocks
    step: int
    batch: Any
    length: Any

    @classmethod
    def of(cls, visibility: Visibility, batch, length, always: bool = False) -> "Sparse | None":
        """For self-attention, None where nothing would be saved."""
        blocks = Blocks.of(visibility, length, always)
        return None if blocks is None else cls(blocks, visibility.dilation or 1, batch, length)

    def attend(
        self, attend: Callable, queries, keys, values, visibility: Visibility, bias, further: list
    ):
        """What `attend` gives of the keys near to each query, and of the `Further` ones."""
        near = self._near(visibility)
        parts = [Further(self.keys(keys), self.keys(values), None, self.bias(bias)), *further]
        if len(parts) > 1:
            size = self.blocks.size
            allowed = near.mask(size, parts[0].keys.shape[1])
            parts[0] = parts[0]._replace(allowed=allowed)
            near = Visibility(explicit=_joined([part.allowed for part in parts], size, parts))
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
        return self._together(self.blocks.whole(attended))

    def _near(self, visibility: Visibility) -> Visibility:
        """Who sees whom within the blocks; global keys are not near ones."""
        shape = (self.batch, self.length)
        padding = True if visibility.padding is None else ops.cast(visibility.padding, "bool")
        if visibility.global_positions is not None:
            places = ops.arange(self.length, dtype="int32")[None]
            padding = ops.logical_and(padding, ops.logical_not(visibility.is_global(places)))
        query_pack, key_pack = visibility.packs
        # One row may stand for all.
        arrays = (padding, query_pack, key_pack)
        padding, query_pack, key_pack = (
            None if x is None else self._apart(ops.broadcast_to(x, shape)) for x in arrays
        )
        whole = visibility._replace(padding=padding, query_pack=query_pack, key_pack=key_pack)
        return self.blocks.visibility(whole)

    def bias(self, bias: PairBias | None):
        """Of the pairs within blocks, `(rows or 1, heads, size, keys of a block)`."""
        if bias is None:
            return None
        if bias.positions is not None:
            positions = ops.broadcast_to(bias.positions, (self.batch, self.length))
            return bias.layer(self.queries(positions), self.keys(positions))
        size, before, span = self.blocks.size, self.blocks.before, self.blocks.span
        places = ops.arange(span * size, dtype="int32")[None] * self.step
        return bias.layer(places[:, before * size : (before + 1) * size], places)

    def queries(self, x):
        """`(batch, length, ...)` as `(rows, size, ...)`."""
        return self.blocks.queries(self._apart(x))

    def keys(self, x):
        """`(batch, length, ...)` as `(rows, keys of a block, ...)`."""
        return self.blocks.keys(self._apart(x))

    def of_rows(self, x):
        """`(batch, ...)` as `(rows, ...)`, the same for each block of a row."""
        count = -(-self.blocks.length // self.blocks.size) * self.step
        x = ops.broadcast_to(x[:, None], (self.batch, count, *x.shape[1:]))
        return ops.reshape(x, (self.batch * count, *x.shape[2:]))

    def _apart(self, x):
        """`(batch, length, ...)` as `(batch * step, length / step, ...)`."""
        if self.step == 1:
            return x
        missing = -self.length % self.step
        x = ops.concatenate([x, ops.zeros((self.batch, missing, *x.shape[2:]), x.dtype)], axis=1)
        x = ops.reshape(x, (self.batch, -1, self.step, *x.shape[2:]))
        return ops.reshape(ops.swapaxes(x, 1, 2), (self.batch * self.step, -1, *x.shape[3:]))

    def _together(self, x):
        """Back again."""
        if self.step == 1:
            return x
        x = ops.swapaxes(ops.reshape(x, (self.batch, self.step, -1, *x.shape[2:])), 1, 2)
        return ops.reshape(x, (self.batch, -1, *x.shape[3:]))[:, : self.length]


def attend_in_blocks(
    attend: Callable,
    queries,
    keys,
    values,
    visibility: Visibility,
    bias: PairBias | None,
    cut: Sparse,
    of_global: Callable | None,
    seed: int | None,
    further: tuple[Further, ...] = (),
):
    """What `attend(queries, keys, values, visibility, bias)` gives, of a pattern's pairs alone.

    Args:
        attend: function of states `(rows, length, heads, head_dim)`.
        queries: `(batch, length, heads, head_dim)`.
        keys: likewise.
        values: likewise.
        visibility: `Visibility` of the whole sequences.
        bias: of pairs of positions, or None.
        cut: `Sparse.of(visibility, batch, length)`.
        of_global: function of places to queries of these and keys and values of all, where global
            tokens have others than `queries`, `keys` and `values`.
        seed: int, of the random blocks that are drawn. None where the first stands for them.
        further: what is seen beside.
    """
    size, weight, further = visibility.block_size, None, [*further]
    if size is not None:
        refuse_unused(
            "`block_size` says which see all.", global_positions=visibility.global_positions
        )
        visibility = visibility._replace(global_positions=ends(cut.length, size))
        if seed is None and visibility.random_blocks:
            weight = weight_of_first(size, visibility.random_blocks)
        elif visibility.random_blocks:
            further.append(random_keys(cut, keys, values, visibility, seed, queries.shape[2]))
    if visibility.global_positions is not None:
        further.append(global_keys(cut, keys, values, visibility, bias, weight))
    attended = cut.attend(attend, queries, keys, values, visibility, bias, further)
    if visibility.global_positions is None:
        return attended
    places = visibility.global_positions
    given = (gathered(queries, places), keys, values) if of_global is None else of_global(places)
    rows = attend_from_global(attend, *given, visibility, bias)
    return put_at(places, rows, attended)


def _joined(arrays, size: int, parts):
    """Side by side: each `(rows or 1, heads or 1, size or 1, count or 1)`, a part's."""
    rows, heads = (
        next((n for x in arrays if not _is_one(n := ops.shape(x)[axis])), 1) for axis in (0, 1)
    )
    counts = [ops.shape(part.keys)[1] for part in parts]
    whole = [
        ops.broadcast_to(x, (rows, heads, size, count))
        for x, count in zip(arrays, counts, strict=True)
    ]
    return ops.concatenate(whole, axis=-1)


def _is_one(number) -> bool:
    return isinstance(number, int) and number == 1


def global_keys(sparse: Sparse, keys, values, visibility: Visibility, bias, weight=None) -> Further:
    """Those of the tokens that are seen by all; `weight` is added to their scores."""
    places = visibility.global_positions
    count = places.shape[1]
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
        added = ops.transpose(bias.layer(queries, positions), (0, 2, 1, 3))
        shape = (sparse.batch, sparse.length, *added.shape[2:])
        added = ops.transpose(sparse.queries(ops.broadcast_to(added, shape)), (0, 2, 1, 3))
    return Further(
        *(sparse.of_rows(gathered(x, places, sparse.batch)) for x in (keys, values)),
        allowed=sparse.queries(allowed)[:, None],
        bias=added,
    )


def attend_from_global(attend: Callable, queries, keys, values, visibility: Visibility, bias):
    """What `attend` gives for the queries of the global tokens, which see all keys."""
    places = visibility.global_positions
    slots = ops.arange(ops.shape(keys)[1], dtype="int32")[None]
    explicit = None
    if visibility.causal:
        explicit = slots[:, None] <= places[..., None]
    query_pack, key_pack = visibility.packs
    if query_pack is not None:
        query_pack = gathered(query_pack, places)
    if bias is not None:
        whole = slots if bias.positions is None else bias.positions
        bias = bias.layer(places if bias.positions is None else gathered(whole, places), whole)
    seen = Visibility(visibility.padding, query_pack, key_pack, explicit=explicit)
    return attend(queries, keys, values, seen, bias)


def gathered(x, places, batch=None):
    """Of `(batch or 1, length, ...)` what is at the places `(batch or 1, count)`, -1 for any."""
    rows = ops.shape(x)[0] if batch is None else batch
    if _is_one(rows) and not _is_one(places.shape[0]):
        rows = ops.shape(places)[0]
        x = ops.broadcast_to(x, (rows, *ops.shape(x)[1:]))
    places = ops.clip(places, 0, ops.shape(x)[1] - 1)
    places = ops.broadcast_to(places, (rows, places.shape[1]))
    places = ops.reshape(places, (*ops.shape(places), *[1] * (len(x.shape) - 2)))
    return ops.take_along_axis(x, ops.cast(places, "int32"), axis=1)


def put_at(places, new, states):
    """`states` `(batch, length, ...)` with `new` `(batch, count, ...)` at the places."""
    length = ops.shape(states)[1]
    slots = ops.arange(length, dtype="int32")[None]
    is_there = slots[..., None] == _once(places)[:, None]  # (batch or 1, length, count)
    there = ops.cast(is_there, new.dtype)
    there = ops.broadcast_to(there, (ops.shape(new)[0], length, new.shape[1]))
    spread = ops.matmul(there, ops.reshape(new, (*ops.shape(new)[:2], -1)))
    spread = ops.reshape(spread, ops.shape(states))
    replaced = ops.any(is_there, axis=-1)
    replaced = ops.reshape(replaced, (*ops.shape(replaced), *[1] * (len(states.shape) - 2)))
    return ops.where(replaced, spread, states)


def _once(places):
    """-1 for a place that is there before."""
    count = places.shape[1]
    before = np.tril(np.ones((count, count), bool), -1)[None]
    again = ops.any(ops.logical_and(places[:, :, None] == places[:, None], before), axis=-1)
    return ops.where(again, -1, places)


def _are_real(visibility: Visibility, length):
    """Bool `(batch or 1, count)`, which of the global tokens there are."""
    places = _once(visibility.global_positions)
    real = ops.logical_and(places >= 0, places < length)
    if visibility.padding is None:
        return real
    return ops.logical_and(real, gathered(ops.cast(visibility.padding, "bool"), places))


def ends(length: int, size: int) -> np.ndarray:
    """The places of the first and the last block, int32 `(1, 2 * size)`, -1 behind the end."""
    last = (length - 1) // size * size + np.arange(size)
    places = np.concatenate([np.arange(size), np.where(last < length, last, -1)])
    return places[None].astype("int32")


def weight_of_first(size: int, random_blocks: int) -> np.ndarray:
    """What is added to the scores of the first block, which stands for the random ones.

    Where nothing is drawn each random block is the first, so its keys count so many times more.

    Source: BigBird's evaluation in Transformers, https://github.com/huggingface/transformers,
    pull request 23056.
    """
    counts = np.repeat([1 + random_blocks, 1], size)
    return np.log(counts).astype("float32")[None, None, None]


def in_groups(states, size: int, padding=None) -> tuple:
    """The sums of the states of each `size` tokens, and to which of them each token belongs.

    What is left at the end of a row belongs to its last whole group.

    Args:
        states: `(batch, length, dim)`.
        size: int.
        padding: bool `(batch or 1, length)`, the real tokens. None if all are.

    Returns:
        The sums `(batch, length // size, dim)` and the groups int `(batch, length)`, -1 for none.

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


def group_keys(sparse: Sparse, keys, values, groups, bias: PairBias | None) -> Further:
    """Those of the sums of groups, `(batch, count, heads, head_dim)`."""
    count = ops.shape(keys)[1]
    numbers = ops.arange(count, dtype="int32")[None]
    allowed = numbers <= ops.max(groups, axis=1, keepdims=True)
    added = None
    if bias is not None:
        added = ops.transpose(bias.of_groups(groups, numbers), (0, 2, 1, 3))
        added = ops.transpose(sparse.queries(added), (0, 2, 1, 3))
    return Further(
        sparse.of_rows(keys), sparse.of_rows(values), sparse.of_rows(allowed)[:, None, None], added
    )


def random_keys(
    sparse: Sparse, keys, values, visibility: Visibility, seed: int, query_heads: int
) -> Further:
    """Those of random blocks, others for each block and head, the same in each call.

    Source: Zaheer et al. 2020, "Big Bird", section 2.
    """
    count = visibility.random_blocks
    size, heads = sparse.blocks.size, keys.shape[2]
    blocks = -(-sparse.length // size)
    drawn = drawn_blocks(blocks, heads, count, seed)  # (heads, blocks, count)
    flat = ops.convert_to_tensor((drawn + np.arange(heads)[:, None, None] * blocks).reshape(-1))

    def taken(x, of_heads: bool):
        """`(rows, count * size, heads, ...)` of `(batch, length, heads, ...)`."""
        x = sparse.queries(x)
        x = ops.reshape(x, (sparse.batch, blocks, size, heads if of_heads else 1, -1))
        x = ops.broadcast_to(x, (*ops.shape(x)[:3], heads, x.shape[4]))
        width = x.shape[4]
        x = ops.reshape(ops.transpose(x, (0, 3, 1, 2, 4)), (sparse.batch, heads * blocks, -1))
        x = ops.take(x, flat, axis=1)
        x = ops.reshape(x, (sparse.batch, heads, blocks, count * size, width))
        x = ops.transpose(x, (0, 2, 3, 1, 4))
        return ops.reshape(x, (sparse.batch * blocks, count * size, heads, width))

    def of_tokens(x):
        """`(rows, query_heads, 1, count * size)` of `(batch or 1, length)`."""
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
    return Further(taken(keys, True), taken(values, True), allowed)


def drawn_blocks(blocks: int, heads: int, count: int, seed: int) -> np.ndarray:
    """Int32 `(heads, blocks, count)`: blocks that are neither near, nor the first or the last."""
    rng = np.random.default_rng(seed)
    middle = np.arange(1, blocks - 1)

    def of(block):
        return rng.permutation(middle[np.abs(middle - block) > 1])[:count]

    return np.array([[of(i) for i in range(blocks)] for _ in range(heads)], "int32")


def bias_of_pairs(bias, visibility: Visibility, queries, keys):
    """`bias`, for all pairs, with what `weight_of_first` adds to those of the first block."""
    length, size = ops.shape(keys)[1], visibility.block_size
    if not visibility.random_blocks:
        return bias
    if isinstance(length, int) and length <= visibility.full_length:
        return bias
    blocks = ops.arange(length, dtype="int32") // size
    middle = ops.logical_and(blocks > 0, blocks < (length - 1) // size)
    middle = ops.logical_and(middle, length > visibility.full_length)
    first = ops.logical_and(middle[:, None], blocks[None] == 0)[: ops.shape(queries)[1]]
    added = ops.where(first, math.log(1 + visibility.random_blocks), 0.0)[None, None]
    return added if bias is None else bias + ops.cast(added, bias.dtype)
