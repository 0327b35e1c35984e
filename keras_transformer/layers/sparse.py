"""Attention to a part of the keys: a window, blocks, tokens that see all, and random blocks."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.layers.arguments import refuse_unused
from keras_transformer.layers.blocks import Blocks
from keras_transformer.layers.further_keys import (
    Further,
    gathered,
    global_keys,
    is_one,
    once,
    random_keys,
    weight_of_first,
)
from keras_transformer.layers.masking import Visibility
from keras_transformer.layers.position_bias import PairBias


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
        shape = ops.shape(x)[1:]
        x = ops.broadcast_to(x[:, None], (self.batch, count, *shape))
        return ops.reshape(x, (self.batch * count, *shape))

    def _apart(self, x):
        """`(batch, length, ...)` as `(batch * step, length / step, ...)`."""
        if self.step == 1:
            return x
        missing, rest = -self.length % self.step, ops.shape(x)[2:]
        x = ops.concatenate([x, ops.zeros((self.batch, missing, *rest), x.dtype)], axis=1)
        x = ops.reshape(x, (self.batch, -1, self.step, *rest))
        return ops.reshape(ops.swapaxes(x, 1, 2), (self.batch * self.step, -1, *rest))

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
        next((n for x in arrays if not is_one(n := ops.shape(x)[axis])), 1) for axis in (0, 1)
    )
    counts = [ops.shape(part.keys)[1] for part in parts]
    whole = [
        ops.broadcast_to(x, (rows, heads, size, count))
        for x, count in zip(arrays, counts, strict=True)
    ]
    return ops.concatenate(whole, axis=-1)


def attend_from_global(attend: Callable, queries, keys, values, visibility: Visibility, bias):
    """What `attend` gives for the queries of the global tokens, which see all keys.

    `bias` is a `PairBias`, that of all pairs, or None.
    """
    places = visibility.global_positions
    slots = ops.arange(ops.shape(keys)[1], dtype="int32")[None]
    explicit = None
    if visibility.causal:
        explicit = slots[:, None] <= places[..., None]
    query_pack, key_pack = visibility.packs
    if query_pack is not None:
        query_pack = gathered(query_pack, places)
    if isinstance(bias, PairBias):
        whole = slots if bias.positions is None else bias.positions
        bias = bias.layer(places if bias.positions is None else gathered(whole, places), whole)
    elif bias is not None:
        bias = ops.swapaxes(gathered(ops.swapaxes(bias, 1, 2), places), 1, 2)
    seen = Visibility(visibility.padding, query_pack, key_pack, explicit=explicit)
    return attend(queries, keys, values, seen, bias)


def put_at(places, new, states):
    """`states` `(batch, length, ...)` with `new` `(batch, count, ...)` at the places."""
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
    """The places of the first and the last block, int32 `(1, 2 * size)`, -1 behind the end."""
    last = (length - 1) // size * size + np.arange(size)
    places = np.concatenate([np.arange(size), np.where(last < length, last, -1)])
    return places[None].astype("int32")


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
