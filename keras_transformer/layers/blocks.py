"""Long sequences in blocks: a window's cost and memory, and the memory of full attention."""

from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.kernels import attention
from keras_transformer.kernels.indexing import overlapping
from keras_transformer.layers.masking import Visibility

# From this length on full attention is computed for so many queries at a time, where the kernel of
# the backend would keep the scores of all of them.
_LONG, _AT_A_TIME = 4096, 256
# Smaller blocks compute fewer scores outside of the window, and more and smaller products.
_LEAST_SIZE = 64


def goes_in_turns(visibility: Visibility, queries, by_kernel: bool) -> bool:
    """Whether the scores of all queries at once would be too many."""
    length = queries.shape[1]
    long = isinstance(length, int) and length >= _LONG and visibility.explicit is None
    return long and not (by_kernel and not attention.keeps_scores(queries))


def in_turns(
    attend: Callable, queries, shared: tuple, visibility: Visibility, draw: Callable | None = None
):
    """The sum that `attend(queries, *shared, visibility=, seed=)` gives, some queries at a time.

    The gradient computes each part again, so that no scores are kept for it.

    Args:
        attend: function of queries `(batch, some, heads, head_dim)`, what they see, and a seed,
            with which it draws the same when it computes again, to their sums and weights.
        queries: `(batch, length, heads, head_dim)`.
        shared: tensors, what each part is given whole: all keys and values, and what else has
            gradients.
        visibility: `Visibility` of all queries.
        draw: function of a number to as many seeds, None for no seeds.

    Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n^2) Memory".
    """
    visibility = visibility._replace(key_pack=visibility.packs[1])
    length = queries.shape[1]
    blocks = Blocks(length, _AT_A_TIME, 0, 0)
    names = ("query_pack", "query_positions", "prefix")
    names = [name for name in names if getattr(visibility, name) is not None]
    of_queries = [queries, *(getattr(visibility, name) for name in names)]
    firsts = ops.arange(0, length, _AT_A_TIME, dtype="int32") + visibility.first_slot
    seeds = None if draw is None else draw(firsts.shape[0])

    # TensorFlow's recomputation has gradients of arguments alone.
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
    return blocks.whole(attended)


def in_groups(
    attend: Callable,
    queries,
    keys,
    values,
    visibility: Visibility,
    bias,
    slots: int,
    draw: Callable | None = None,
):
    """What `attend(queries, keys, values, visibility=, bias=, seed=)` gives first, by some rows.

    On JAX, whose kernel keeps the scores, in a program that is compiled. The gradient computes
    each group again. On a CPU that takes half the time of all rows at once, since the scores of a
    group do not leave its caches.

    Args:
        attend: as that of `in_turns`, of rows `(batch, length, heads, head_dim)`.
        queries: `(batch, length, heads, head_dim)`.
        keys: for each row what it attends to.
        values: likewise.
        visibility: `Visibility` of all rows.
        bias: of rows, or of all alike, or None.
        slots: how many keys a row has.
        draw: as that of `in_turns`.
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
    """How many rows go through attention at a time, None for all."""
    limit = attention.scores_at_a_time(queries)
    if limit is None or not isinstance(slots, int):
        return None
    rows, length, heads, _ = queries.shape
    most = max(1, limit // max(1, 4 * length * heads * slots))
    return -(-rows // -(-rows // most)) if rows > most else None


class Blocks(NamedTuple):
    """How a sequence is cut into blocks of queries, each with the keys that its window reaches.

    A block stands in the batch as a row of its own. What attends to what is the same in all of
    them, but for the ends of the sequence, so the kernels and masks of short sequences do the rest.

    Fields:
        length: int or scalar tensor, of the sequence.
        size: int, the number of queries of a block.
        before: int, how many blocks of keys a block sees before its own.
        behind: int, how many behind it.

    Source: Beltagy et al. 2020, "Longformer", section 3.1.
    """

    length: int
    size: int
    before: int
    behind: int

    @classmethod
    def of(cls, visibility: Visibility, length, always: bool = False) -> "Blocks | None":
        """For self-attention of sequences of a length, None where blocks would save nothing."""
        whole = (visibility.explicit, visibility.prefix)  # are of all pairs
        if not visibility.has_pattern or any(part is not None for part in whole):
            return None
        if visibility.block_size is not None:
            short = not isinstance(length, int) or length <= visibility.full_length
            return None if short else cls(length, visibility.block_size, 1, 1)
        # Each class of places that a dilated window joins is a sequence of its own.
        length = -(-length // (visibility.dilation or 1))
        window = visibility.window
        size = max(_LEAST_SIZE, -(-(window - 1) // 2))
        before = -(-(window - 1) // size)
        behind = 0 if visibility.causal else before
        if not always and isinstance(length, int) and length <= (before + 1 + behind) * size:
            return None
        return cls(length, size, before, behind)

    def queries(self, x):
        """`(batch, length, ...)` as `(batch * blocks, size, ...)`."""
        return self._blocks(_padded(x, 0, -self.length % self.size))

    def keys(self, x):
        """`(batch, length, ...)` as `(batch * blocks, keys of a block, ...)`."""
        missing = -self.length % self.size
        x = _padded(x, self.before * self.size, missing + self.behind * self.size)
        return overlapping(x, self.span, self.size, self.length + missing)

    @property
    def span(self) -> int:
        """How many blocks of keys a block sees."""
        return self.before + 1 + self.behind

    def visibility(self, whole: Visibility) -> Visibility:
        """Who attends to whom within the blocks, of arrays of all rows."""
        return Visibility(
            causal=whole.causal,
            first_slot=self.before * self.size,
            padding=self.keys(whole.padding),
            window=whole.window,
            query_pack=None if whole.query_pack is None else self.queries(whole.query_pack),
            key_pack=None if whole.key_pack is None else self.keys(whole.key_pack),
        )

    def whole(self, x):
        """`(batch * blocks, size, heads, head_dim)` as `(batch, length, heads, head_dim)`."""
        span = self.length + -self.length % self.size
        return ops.reshape(x, (-1, span, *x.shape[-2:]))[:, : self.length]

    def _blocks(self, x):
        return ops.reshape(x, (-1, self.size, *ops.shape(x)[2:]))


def _padded(x, before: int, behind):
    """With zeros around the second axis."""
    if isinstance(behind, int) and before == behind == 0:
        return x
    rows, _, *rest = ops.shape(x)
    zeros = [ops.zeros((rows, n, *rest), x.dtype) for n in (before, behind)]
    return ops.concatenate([zeros[0], x, zeros[1]], axis=1)


def _padded_rows(x, missing: int):
    """With zeros behind the first axis."""
    return ops.concatenate([x, ops.zeros((missing, *x.shape[1:]), x.dtype)]) if missing else x
