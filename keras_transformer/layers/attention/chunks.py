"""Attention computed for some queries or some rows at a time, which bounds its memory."""

from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.kernels import attention
from keras_transformer.kernels.indexing import overlapping
from keras_transformer.layers.attention.masking import AttentionMask

# Number of queries that attention to a long sequence computes at a time.
_AT_A_TIME = 256


class SequenceBlocks(NamedTuple):
    """Division of a sequence into blocks of queries, each with the keys that its window reaches.

    Each block becomes a row of the batch. The pattern is the same in all of them, except at the
    ends of the sequence, so the kernels and masks for short sequences apply.

    Fields:
        length: int or scalar tensor, length of the sequence.
        size: int, number of queries in a block.
        before: int, number of blocks of keys that a block sees before its own.
        behind: int, number of blocks of keys that a block sees after its own.

    Source: Beltagy et al. 2020, "Longformer", section 3.1.
    """

    length: int
    size: int
    before: int
    behind: int

    def queries(self, x):
        """Cut `(batch, length, ...)` into `(batch * blocks, size, ...)`."""
        return self._blocks(_padded(x, 0, -self.length % self.size))

    def keys(self, x):
        """Cut `(batch, length, ...)` into `(batch * blocks, keys of a block, ...)`."""
        missing = -self.length % self.size
        x = _padded(x, self.before * self.size, missing + self.behind * self.size)
        return overlapping(x, self.span, self.size, self.length + missing)

    @property
    def span(self) -> int:
        """Number of blocks of keys that a block sees."""
        return self.before + 1 + self.behind

    def join(self, x):
        """Join `(batch * blocks, size, heads, head_dim)` to `(batch, length, heads, head_dim)`."""
        span = self.length + -self.length % self.size
        return ops.reshape(x, (-1, span, *x.shape[-2:]))[:, : self.length]

    def _blocks(self, x):
        return ops.reshape(x, (-1, self.size, *ops.shape(x)[2:]))


def attend_in_chunks(
    attend: Callable,
    queries,
    shared: tuple,
    visibility: AttentionMask,
    draw: Callable | None = None,
):
    """Compute `attend(queries, *shared, visibility=, seed=)` for a few queries at a time.

    Returns the weighted sums of the values. The gradient recomputes each chunk of queries, so that
    no scores are kept for it.

    Args:
        attend: function of queries `(batch, some, heads, head_dim)`, the shared tensors, a
            `AttentionMask` and a seed, with which it repeats its random draws when it is
            recomputed. It returns the weighted sums of the values, and the weights.
        queries: `(batch, length, heads, head_dim)`.
        shared: tensors that each chunk gets whole: all keys and values, and any other tensor that
            needs gradients.
        visibility: `AttentionMask` of all queries.
        draw: function that takes a number and returns that many seeds. None draws no seeds.

    Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n^2) Memory".
    """
    visibility = visibility._replace(key_pack=visibility.packs[1])
    length = queries.shape[1]
    blocks = SequenceBlocks(length, _AT_A_TIME, 0, 0)
    names = ("query_pack", "query_positions", "prefix", "prefix_start")
    names = [name for name in names if getattr(visibility, name) is not None]
    of_queries = [queries, *(getattr(visibility, name) for name in names)]
    firsts = ops.arange(0, length, _AT_A_TIME, dtype="int32") + visibility.first_slot
    seeds = None if draw is None else draw(firsts.shape[0])

    # TensorFlow's recomputation gives gradients only for arguments.
    @keras.remat
    def turn(shared, first, part, *rest):
        *rest, seed = rest if seeds is not None else (*rest, None)
        seen = visibility._replace(first_slot=first, **dict(zip(names, rest, strict=True)))
        return attend(part, *shared, visibility=seen, seed=seed)[0]

    def apart(x):
        x = blocks.queries(x)
        x = ops.reshape(x, (-1, firsts.shape[0], *x.shape[1:]))
        return ops.swapaxes(x, 0, 1)

    parts = [firsts, *map(apart, of_queries), *([] if seeds is None else [seeds])]
    attended = ops.map(lambda some: turn(shared, *some), parts)
    attended = ops.swapaxes(attended, 0, 1)
    return blocks.join(attended)


def attend_in_row_groups(
    attend: Callable,
    queries,
    keys,
    values,
    visibility: AttentionMask,
    bias,
    slots: int,
    draw: Callable | None = None,
):
    """Compute `attend(queries, keys, values, visibility=, bias=, seed=)` for some rows at a time.

    Returns the weighted sums of the values. Rows are grouped in compiled programs of JAX, whose
    kernel keeps the scores. The gradient recomputes each group. On a CPU this takes half the time
    of all rows at once, since the scores of a group stay in the processor's caches.

    Args:
        attend: as in `attend_in_chunks`, for rows `(batch, length, heads, head_dim)`.
        queries: `(batch, length, heads, head_dim)`.
        keys: keys of each row.
        values: values of each row.
        visibility: `AttentionMask` of all rows.
        bias: bias for each row, or one for all rows, or None.
        slots: number of keys of a row.
        draw: as in `attend_in_chunks`.
    """
    count = _rows_at_a_time(queries, slots)
    if count is None:
        return attend(queries, keys, values, visibility=visibility, bias=bias)[0]
    rows = queries.shape[0]
    of_all = {"queries": queries, "keys": keys, "values": values}
    of_rows = {**of_all, "bias": bias, **visibility._asdict()}
    of_rows = {k: x for k, x in of_rows.items() if ops.is_tensor(x) and x.shape[:1] == (rows,)}

    @keras.remat
    def turn(parts):
        seen = {k: x for k, x in parts.items() if k in visibility._fields}
        given = [parts.get(name, x) for name, x in of_all.items()]
        options = {"bias": parts.get("bias", bias), "seed": parts.get("seed")}
        return attend(*given, visibility=visibility._replace(**seen), **options)[0]

    def apart(x):
        x = _padded_rows(x, -rows % count)
        return ops.reshape(x, (-1, count, *x.shape[1:]))

    parts = {k: apart(x) for k, x in of_rows.items()}
    if draw is not None:
        parts["seed"] = draw(-(-rows // count))
    attended = ops.map(turn, parts)
    return ops.reshape(attended, (-1, *attended.shape[2:]))[:rows]


def _rows_at_a_time(queries, slots) -> int | None:
    """Return the number of rows that attention processes at a time; None means all."""
    limit = attention.scores_at_a_time(queries)
    if limit is None or not isinstance(slots, int):
        return None
    rows, length, heads, _ = queries.shape
    most = max(1, limit // max(1, 4 * length * heads * slots))
    return -(-rows // -(-rows // most)) if rows > most else None


def _padded_rows(x, missing: int):
    """Pad the end of the first axis with zeros."""
    return ops.concatenate([x, ops.zeros((missing, *x.shape[1:]), x.dtype)]) if missing else x


def _padded(x, before: int, behind):
    """Pad the second axis with zeros on both sides."""
    if isinstance(behind, int) and before == behind == 0:
        return x
    rows, _, *rest = ops.shape(x)
    zeros = [ops.zeros((rows, n, *rest), x.dtype) for n in (before, behind)]
    return ops.concatenate([zeros[0], x, zeros[1]], axis=1)
