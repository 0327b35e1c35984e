"""Keys that a query sees beside those near it: global tokens, random blocks, sums of groups."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.layers.masking import Visibility
from keras_transformer.layers.position_bias import PairBias

if TYPE_CHECKING:
    from keras_transformer.layers.sparse import Sparse


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


def is_one(number) -> bool:
    """Whether it is the int 1, and no tensor."""
    return isinstance(number, int) and number == 1


def global_keys(
    sparse: "Sparse", keys, values, visibility: Visibility, bias, weight=None
) -> Further:
    """Those of the tokens that are seen by all; `weight` is added to their scores."""
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
        added = ops.transpose(bias.layer(queries, positions), (0, 2, 1, 3))
        shape = (sparse.batch, sparse.length, *added.shape[2:])
        added = ops.transpose(sparse.queries(ops.broadcast_to(added, shape)), (0, 2, 1, 3))
    return Further(
        *(sparse.of_rows(gathered(x, places, sparse.batch)) for x in (keys, values)),
        allowed=sparse.queries(allowed)[:, None],
        bias=added,
    )


def gathered(x, places, batch=None):
    """Of `(batch or 1, length, ...)` what is at the places `(batch or 1, count)`, -1 for any."""
    rows = ops.shape(x)[0] if batch is None else batch
    if is_one(rows) and not is_one(places.shape[0]):
        rows = ops.shape(places)[0]
        x = ops.broadcast_to(x, (rows, *ops.shape(x)[1:]))
    places = ops.clip(places, 0, ops.shape(x)[1] - 1)
    places = ops.broadcast_to(places, (rows, ops.shape(places)[1]))
    places = ops.reshape(places, (*ops.shape(places), *[1] * (len(x.shape) - 2)))
    return ops.take_along_axis(x, ops.cast(places, "int32"), axis=1)


def once(places):
    """-1 for a place that is there before."""
    numbers = ops.arange(ops.shape(places)[1], dtype="int32")
    before = numbers[None] < numbers[:, None]
    again = ops.any(ops.logical_and(places[:, :, None] == places[:, None], before), axis=-1)
    return ops.where(again, -1, places)


def _are_real(visibility: Visibility, length):
    """Bool `(batch or 1, count)`, which of the global tokens there are."""
    places = once(visibility.global_positions)
    real = ops.logical_and(places >= 0, places < length)
    if visibility.padding is None:
        return real
    return ops.logical_and(real, gathered(ops.cast(visibility.padding, "bool"), places))


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


def group_keys(sparse: "Sparse", keys, values, groups, bias: PairBias | None) -> Further:
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
    sparse: "Sparse", keys, values, visibility: Visibility, seed: int, query_heads: int
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
        width = keys.shape[3] if of_heads else 1
        x = ops.reshape(x, (sparse.batch, blocks, size, heads if of_heads else 1, width))
        x = ops.broadcast_to(x, (sparse.batch, blocks, size, heads, width))
        x = ops.reshape(ops.transpose(x, (0, 3, 1, 2, 4)), (sparse.batch, -1, size * width))
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
