"""Who may attend to whom: padding, causality, window and packed documents, composed here only."""

import functools
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.checking import check_int
from keras_transformer.layers.arguments import check_shapes, refuse_unused


class Visibility(NamedTuple):
    """Which tokens may attend to which, as a description. It becomes a tensor only where needed.

    As the call argument of a layer it holds tensors alone, as Keras asks of structures; the layer
    adds `causal`, `window` and `first_slot` itself.

    Fields:
        padding: bool `(batch, key_length)`, True for real keys.
        query_pack: int `(batch, query_length)`, the packed document of each query. Only tokens of
            the same document see each other.
        key_pack: int `(batch, key_length)`, the document of each key. Defaults to `query_pack`.
        query_positions: int `(batch, query_length)`, for rotary embeddings and, with a cache, for
            `window`. Defaults to the slots.
        key_positions: int `(batch, key_length)`, likewise. Defaults to `query_positions` where the
            keys are those of the queries. For keys in a cache, which are rotated already, they are
            for `window` alone.
        explicit: bool `(batch, query_length, key_length)` or with a heads axis,
            `(batch, heads, query_length, key_length)`, True where allowed. With a cache it says
            all, causality too.
        global_positions: int `(batch or 1, count)`, the places of tokens that see all others and
            are seen by all, whatever the window; -1 for none.
        prefix: int `(batch, query_length)`, a query sees the first so many keys, whatever causality
            and the window; 0 for none.
        causal: bool, query `i`, which is in slot `first_slot + i`, sees the keys of the slots up
            to its own.
        window: int, a query sees the keys at most `window - 1` places away.
        dilation: int, the step between these places; the last are `(window - 1) * dilation` away.
        global_tokens: int, the first tokens of a row are global, in place of `global_positions`.
        block_size: int, a query sees the keys of its own block of so many places, of the one
            before and the one behind, of the first and of the last, and those two see all.
        random_blocks: int, with `block_size`: how many further blocks count. Sequences of no more
            than `(5 + 2 * random_blocks) * block_size` places see all.
        first_slot: int or int scalar tensor, the slot of the first query in a cache. Defaults to 0.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import MultiHeadAttention, Visibility

    packs = Visibility(query_pack=np.array([[0, 0, 1, 1]]))
    x = np.random.rand(1, 4, 8).astype("float32")
    _, weights = MultiHeadAttention(2, 4)(x, visibility=packs, return_attention_scores=True)
    assert weights.shape == (1, 2, 4, 4) and float(weights[0, 0, 0, 2]) == 0.0
    ```
    """

    padding: Any = None
    query_pack: Any = None
    key_pack: Any = None
    query_positions: Any = None
    key_positions: Any = None
    explicit: Any = None
    global_positions: Any = None
    prefix: Any = None
    causal: bool | None = None
    window: int | None = None
    dilation: int | None = None
    global_tokens: int | None = None
    block_size: int | None = None
    random_blocks: int | None = None
    first_slot: Any = None

    @classmethod
    def given(cls, visibility, padding=None) -> "Visibility":
        """The `Visibility` of a call argument: None, or in a loaded model a plain tuple."""
        made = cls(*(visibility or ()))
        return made._replace(padding=padding) if made.padding is None else made

    def check_used(self, layer, own_keys: bool, cached: bool = False) -> None:
        """ValueError for what would change nothing.

        Args:
            layer: what has the options `rotary` and `window`.
            own_keys: bool, whether the keys are the queries, and rotated as such.
            cached: bool, whether there is a cache: who keeps one gives its positions to any layer.
        """
        reason = "they are options of the layer, or known to its cache."
        refuse_unused(reason, **dict(zip(self._fields[8:], self[8:], strict=True)))
        if self.query_pack is None:
            reason = "`query_pack`, the documents of the queries, is not given."
            refuse_unused(reason, key_pack=self.key_pack)
        if not layer.causal and layer.window is None:
            refuse_unused("all keys are seen without it.", prefix=self.prefix)
        positions = {"query_positions": self.query_positions, "key_positions": self.key_positions}
        if cached:
            return
        if layer.rotary is None:
            reason = "they are for attention with `rotary`, or with a `window` and a cache."
            refuse_unused(reason, **positions)
        elif own_keys:
            reason = "in self-attention they are for a cache. Give `query_positions`."
            refuse_unused(reason, key_positions=self.key_positions)

    @property
    def packs(self) -> tuple:
        """The documents of queries and keys."""
        return self.query_pack, self.query_pack if self.key_pack is None else self.key_pack

    def tensors(self) -> dict[str, Any]:
        """What a caller may give, by name."""
        return dict(zip(self._fields[:8], self[:8], strict=True))

    def of_first_query(self) -> "Visibility":
        """What the first query sees, of keys that are those of the queries."""

        def first(x):
            return None if x is None else x[:, :1]

        return self._replace(
            query_pack=first(self.query_pack),
            key_pack=self.packs[1],
            query_positions=first(self.query_positions),
            key_positions=self.query_positions
            if self.key_positions is None
            else self.key_positions,
            explicit=None if self.explicit is None else self.explicit[..., :1, :],
        )

    @property
    def is_causality_alone(self) -> bool:
        """Whether it is all said by the causality that the kernels of the backends know."""
        further = (self.padding, self.window, self.block_size, self.query_pack)
        further = (*further, self.explicit, self.prefix)
        return (
            bool(self.causal)
            and (self.first_slot is None or is_zero(self.first_slot))
            and all(part is None for part in further)
        )

    def mask(self, query_length, key_length):
        """Bool, broadcastable to `(batch, heads, query_length, key_length)`, or None."""
        parts = []
        if self.padding is not None:
            parts.append(_by_key(ops.cast(self.padding, "bool")))
        if self.causal or self.has_pattern:
            first = 0 if self.first_slot is None else self.first_slot
            query_slots = (first + ops.arange(query_length, dtype="int32"))[None]
            key_slots = ops.arange(key_length, dtype="int32")[None]
            seen = []
            if self.causal:
                seen.append(_pairs(query_slots, key_slots, ops.greater_equal))
            if self.has_pattern:
                seen.append(self._pattern(query_slots, key_slots, key_length))
            near = functools.reduce(ops.logical_and, seen)
            if self.prefix is not None:
                first = _pairs(ops.cast(self.prefix, "int32"), key_slots, ops.greater)
                near = ops.logical_or(near, first)
            parts.append(near)
        if self.query_pack is not None:
            parts.append(_pairs(*self.packs, ops.equal))
        if self.explicit is not None:
            explicit = ops.cast(self.explicit, "bool")
            parts.append(explicit if len(explicit.shape) == 4 else explicit[:, None])
        return functools.reduce(ops.logical_and, parts) if parts else None

    @property
    def full_length(self) -> int:
        """With `block_size`, the longest sequence in which all see all."""
        return (5 + 2 * (self.random_blocks or 0)) * self.block_size

    @property
    def has_pattern(self) -> bool:
        """Whether a query sees less than all keys, by their places."""
        return self.window is not None or self.block_size is not None

    def _pattern(self, query_slots, key_slots, key_length):
        if self.block_size is not None:
            last = (key_length - 1) // self.block_size
            queries, keys = query_slots // self.block_size, key_slots // self.block_size
            near = _pairs(queries, keys, lambda q, k: ops.abs(q - k) <= 1)
            ends = _pairs(
                queries, keys, lambda q, k: (q == 0) | (q == last) | (k == 0) | (k == last)
            )
            return near | ends | (key_length <= self.full_length)
        queries = query_slots if self.query_positions is None else self.query_positions
        keys = key_slots if self.key_positions is None else self.key_positions
        step = self.dilation or 1
        near = _pairs(queries, keys, lambda q, k: ops.abs(q - k) < self.window * step)
        if step > 1:
            near &= _pairs(queries, keys, lambda q, k: (q - k) % step == 0)
        if self.global_positions is not None:
            queries, keys = self.is_global(query_slots), self.is_global(key_slots)
        elif self.global_tokens:
            queries, keys = queries < self.global_tokens, keys < self.global_tokens
        else:
            return near
        return near | _by_query(queries) | _by_key(keys)

    def is_global(self, slots):
        """Bool `(batch or 1, length)` for slots `(1, length)`."""
        return ops.any(slots[..., None] == self.global_positions[:, None], axis=-1)

    def with_global_positions(self) -> "Visibility":
        """With the places of the first `global_tokens` real tokens, unless others are given."""
        if self.global_positions is not None:
            return self._replace(global_positions=ops.cast(self.global_positions, "int32"))
        if not self.global_tokens:
            return self
        places = ops.arange(self.global_tokens, dtype="int32")[None]
        if self.padding is not None:
            first = ops.argmax(ops.cast(self.padding, "int32"), axis=1)
            places = places + ops.cast(first, "int32")[:, None]
        return self._replace(global_positions=places)


# The least of the numbers of a description.
_NUMBERS = {
    "window": 1, "dilation": 1, "global_tokens": 0, "block_size": 1, "random_blocks": 0,
}  # fmt: skip


class _Sized(NamedTuple):
    """States of which the shape alone is known."""

    shape: tuple


def combine_masks(query_length, key_length, **descriptions):
    """One boolean tensor from the descriptions that apply, or None if every key is visible.

    Args:
        query_length: number of queries.
        key_length: number of keys.
        **descriptions: `padding`, `causal`, ...: the fields of `Visibility`.

    Returns:
        Bool, broadcastable to `(batch, heads, query_length, key_length)`, or None.

    Raises:
        ValueError: for `key_pack` without `query_pack`, arrays that do not fit the numbers of
            queries and keys, or a number that is out of range.

    Example:
    ```python
    from keras_transformer.layers import combine_masks

    assert combine_masks(3, 3) is None
    mask = combine_masks(3, 3, causal=True)
    assert mask.shape == (1, 1, 3, 3) and not bool(mask[0, 0, 0, 1])
    ```
    """
    for name, least in _NUMBERS.items():
        if descriptions.get(name) is not None:
            check_int(name, descriptions[name], at_least=least)
    for name, length in (("query_length", query_length), ("key_length", key_length)):
        if isinstance(length, (int, float)):
            check_int(name, length, at_least=0)
    visibility = Visibility(**descriptions)
    if visibility.query_pack is None:
        reason = "the documents of the queries are not given."
        refuse_unused(reason, key_pack=visibility.key_pack)
    queries, keys = (_Sized((None, length)) for length in (query_length, key_length))
    check_shapes(queries, keys, **visibility.tensors())
    return visibility.mask(query_length, key_length)


def is_zero(number) -> bool:
    """Whether it is the int 0, and no tensor, whose value is not to be known to a compiler."""
    return isinstance(number, int) and number == 0


# Not `x[:, None, None]`, which LiteRT has no operation for.
def _by_query(x):
    """`(rows, length)` as `(rows, 1, length, 1)`."""
    return ops.expand_dims(x, (1, 3))


def _by_key(x):
    """`(rows, length)` as `(rows, 1, 1, length)`."""
    return ops.expand_dims(x, (1, 2))


def _pairs(queries, keys, relation):
    return relation(_by_query(queries), _by_key(keys))
