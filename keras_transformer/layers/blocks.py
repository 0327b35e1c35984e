"""Attention within a window at a cost that grows with the length, and not with its square."""

from typing import NamedTuple

from keras import ops

from keras_transformer.layers.masking import Visibility

# Smaller blocks compute fewer scores outside of the window, and more and smaller products.
_LEAST_SIZE = 64


class Blocks(NamedTuple):
    """How a sequence is cut into blocks of queries, each with the keys that its window reaches.

    A block stands in the batch as a row of its own. What attends to what is the same in all of
    them, but for the ends of the sequence, so the kernels and masks of short sequences do the rest.

    Fields:
        length: int or scalar tensor, of the sequence.
        size: int, the number of queries of a block.
        before: int, how many blocks of keys a block sees before its own.
        behind: int, how many behind it.

    Source: Beltagy et al. 2020, "Longformer", section 3.1; in one piece of memory.
    """

    length: int
    size: int
    before: int
    behind: int

    @classmethod
    def of(cls, visibility: Visibility, length) -> "Blocks | None":
        """For self-attention of sequences of a length, None where blocks would save nothing."""
        window = visibility.window
        if window is None or visibility.explicit is not None:
            return None
        size = max(_LEAST_SIZE, -(-(window - 1) // 2))
        before = -(-(window - 1) // size)
        behind = 0 if visibility.causal else before
        if isinstance(length, int) and length <= (before + 1 + behind) * size:
            return None
        return cls(length, size, before, behind)

    def queries(self, x):
        """`(batch, length, ...)` as `(batch * blocks, size, ...)`."""
        return self._blocks(_padded(x, 0, -self.length % self.size))

    def keys(self, x):
        """`(batch, length, ...)` as `(batch * blocks, keys of a block, ...)`."""
        missing = -self.length % self.size
        x = _padded(x, self.before * self.size, missing + self.behind * self.size)
        starts = range(0, (self.before + 1 + self.behind) * self.size, self.size)
        span = self.length + missing
        return ops.concatenate([self._blocks(x[:, i : i + span]) for i in starts], axis=1)

    def visibility(self, whole: Visibility, batch) -> Visibility:
        """Who attends to whom within the blocks."""
        padding = whole.padding
        if padding is None:
            padding = ops.ones((batch, self.length), "bool")
        packs = whole.query_pack
        return Visibility(
            causal=whole.causal,
            first_slot=self.before * self.size,
            padding=self.keys(ops.cast(padding, "bool")),
            window=whole.window,
            query_pack=None if packs is None else self.queries(packs),
            key_pack=None if packs is None else self.keys(packs),
        )

    def whole(self, x):
        """`(batch * blocks, size, ...)` as `(batch, length, ...)`."""
        span = self.length + -self.length % self.size
        return ops.reshape(x, (-1, span, *x.shape[2:]))[:, : self.length]

    def _blocks(self, x):
        return ops.reshape(x, (-1, self.size, *x.shape[2:]))


def _padded(x, before: int, behind):
    """With zeros around the second axis."""
    zeros = [ops.zeros((ops.shape(x)[0], n, *x.shape[2:]), x.dtype) for n in (before, behind)]
    return ops.concatenate([zeros[0], x, zeros[1]], axis=1)
