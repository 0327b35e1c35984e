"""Attention masks as descriptions: padding, causality, windows and packed documents."""

import functools
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.config import Mixer, flat
from keras_transformer.layers.arguments import check_shapes, layer_of, refuse_unused
from keras_transformer.support.checking import check_int


class AttentionMask(NamedTuple):
    """Description of an attention mask, turned into a tensor only where needed.

    As a call argument it holds only tensors, as Keras requires of nested arguments; the layer adds
    `causal`, `pattern` and `first_slot` itself.

    Fields:
        padding: bool `(batch, key_length)`, True for real keys.
        query_pack: int `(batch, query_length)`, the packed document of each query. Only tokens of
            the same document see each other.
        key_pack: int `(batch, key_length)`, the document of each key. Defaults to `query_pack`.
        query_positions: int `(batch, query_length)`, for rotary embeddings and, with a cache, for
            the pattern. Defaults to the slots.
        key_positions: int `(batch, key_length)`, positions of the keys. Defaults to
            `query_positions` in self-attention. Keys in a cache are rotated already, so for them
            the positions only serve the pattern.
        explicit: bool `(batch, query_length, key_length)` or with a heads axis,
            `(batch, heads, query_length, key_length)`, True where allowed. With a cache it must
            include everything, also causality.
        global_positions: int `(batch or 1, count)`, the places of tokens that see all others and
            are seen by all, regardless of the window; -1 for unused entries.
        prefix: int `(batch, query_length)`, number of keys at the start that a query sees,
            regardless of causality and the window.
        prefix_start: int `(batch, query_length)`, number of these keys that `prefix` does not add,
            such as those before a state of an image that also sees the states behind it. Defaults
            to 0.
        causal: bool, whether query `i`, which is in slot `first_slot + i`, sees only the keys in
            slots up to its own.
        pattern: `AttentionPattern` of `layers.attention.sparse`, which limits the places that a
            query sees.
        first_slot: int or int scalar tensor, the slot of the first query in a cache. Defaults to 0.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import MultiHeadAttention, AttentionMask

    packs = AttentionMask(query_pack=np.array([[0, 0, 1, 1]]))
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
    prefix_start: Any = None
    causal: bool | None = None
    pattern: Any = None
    first_slot: Any = None

    @classmethod
    def given(cls, visibility, padding=None) -> "AttentionMask":
        """Return a call argument, which may be None or a plain tuple, as an `AttentionMask`."""
        made = cls(*tuple(visibility or ())[: len(cls._fields)])
        return made._replace(padding=padding) if made.padding is None else made

    def check_used(self, part: Mixer, causal: bool, own_keys: bool, cached: bool) -> None:
        """Raise ValueError if a field would have no effect.

        Args:
            part: the config of the attention, or of a mixer without `position` and `pattern`.
            causal: bool, whether a token sees only itself and the tokens before it.
            own_keys: bool, whether the keys come from the states of the queries.
            cached: bool, whether there is a cache. With a cache every layer accepts positions.
        """
        reason = "these fields follow from the options of the layer and from its cache."
        refuse_unused(reason, **dict(zip(self._fields[9:], self[9:], strict=True)))
        if self.query_pack is None:
            reason = "`query_pack`, the documents of the queries, is not given."
            refuse_unused(reason, key_pack=self.key_pack)
        if not causal and getattr(part, "pattern", None) is None:
            refuse_unused("all keys are seen without it.", prefix=self.prefix)
        if self.prefix is None:
            refuse_unused("`prefix` is not given.", prefix_start=self.prefix_start)
        positions = {"query_positions": self.query_positions, "key_positions": self.key_positions}
        if cached:
            return
        if getattr(part, "position", None) is None:
            reason = "only attention with `rotary`, or with a `window` and a cache, uses positions."
            refuse_unused(reason, **positions)
        elif own_keys:
            reason = "self-attention uses them only with a cache. Give `query_positions`."
            refuse_unused(reason, key_positions=self.key_positions)

    @property
    def packs(self) -> tuple:
        """Packed documents of the queries and of the keys."""
        return self.query_pack, self.query_pack if self.key_pack is None else self.key_pack

    def tensors(self) -> dict[str, Any]:
        """Return the fields that a caller may give, by name."""
        return dict(zip(self._fields[:9], self[:9], strict=True))

    def of_first_query(self) -> "AttentionMask":
        """Return the `AttentionMask` of the first query of self-attention."""

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
        """Return True if the mask is exactly the causal mask of the backends' kernels."""
        further = (self.padding, self.pattern, self.query_pack)
        further = (*further, self.explicit, self.prefix)
        return (
            bool(self.causal)
            and (self.first_slot is None or is_static_zero(self.first_slot))
            and all(part is None for part in further)
        )

    def mask(self, query_length, key_length):
        """Return the mask, bool, broadcastable to `(batch, heads, query_length, key_length)`.

        None if every key is visible.
        """
        parts = []
        if self.padding is not None:
            parts.append(by_key(ops.cast(self.padding, "bool")))
        if self.causal or self.pattern is not None:
            first = 0 if self.first_slot is None else self.first_slot
            query_slots = (first + ops.arange(query_length, dtype="int32"))[None]
            key_slots = ops.arange(key_length, dtype="int32")[None]
            seen = []
            if self.causal:
                seen.append(pairs(query_slots, key_slots, ops.greater_equal))
            if self.pattern is not None:
                seen.append(self.pattern.mask(self, query_slots, key_slots, key_length))
            near = functools.reduce(ops.logical_and, seen)
            if self.prefix is not None:
                added = pairs(ops.cast(self.prefix, "int32"), key_slots, ops.greater)
                if self.prefix_start is not None:
                    start = ops.cast(self.prefix_start, "int32")
                    added = ops.logical_and(added, pairs(start, key_slots, ops.less_equal))
                near = ops.logical_or(near, added)
            parts.append(near)
        if self.query_pack is not None:
            parts.append(pairs(*self.packs, ops.equal))
        if self.explicit is not None:
            explicit = ops.cast(self.explicit, "bool")
            parts.append(explicit if len(explicit.shape) == 4 else explicit[:, None])
        return functools.reduce(ops.logical_and, parts) if parts else None

    def is_global(self, slots):
        """Return bool `(batch or 1, length)`, True for global tokens, for slots `(1, length)`."""
        return ops.any(slots[..., None] == self.global_positions[:, None], axis=-1)


# Number in a description -> its smallest allowed value, and its keyword in a config.
_NUMBERS = {
    "window": (1, "window"),
    "dilation": (1, "window_dilation"),
    "global_tokens": (0, "global_tokens"),
    "block_size": (1, "block_size"),
    "random_blocks": (0, "random_blocks"),
}


class _Sized(NamedTuple):
    """Stand-in for states of which only the shape is known."""

    shape: tuple


def combine_masks(query_length, key_length, **descriptions):
    """Combine descriptions of a mask into one boolean tensor, or None if every key is visible.

    Args:
        query_length: int, number of queries.
        key_length: int, number of keys.
        **descriptions: the fields of `AttentionMask`, such as `padding` and `causal`; and the
            numbers of a pattern: `window`, `dilation` and `global_tokens`, or `block_size` and
            `random_blocks`.

    Returns:
        Bool, broadcastable to `(batch, heads, query_length, key_length)`, or None.

    Raises:
        ValueError: if `key_pack` is given without `query_pack`, arrays do not fit the numbers of
            queries and keys, or a number is out of range.

    Example:
    ```python
    from keras_transformer.layers import combine_masks

    assert combine_masks(3, 3) is None
    mask = combine_masks(3, 3, causal=True)
    assert mask.shape == (1, 1, 3, 3) and not bool(mask[0, 0, 0, 1])
    ```
    """
    numbers = {}
    for name, (least, keyword) in _NUMBERS.items():
        given = descriptions.pop(name, None)
        if given is not None:
            numbers[keyword] = check_int(name, given, at_least=least)
    part = flat.pattern(numbers)
    if part is not None:
        descriptions["pattern"] = layer_of(part)(part)
    for name, length in (("query_length", query_length), ("key_length", key_length)):
        if isinstance(length, (int, float)):
            check_int(name, length, at_least=0)
    visibility = AttentionMask(**descriptions)
    if visibility.query_pack is None:
        reason = "the documents of the queries are not given."
        refuse_unused(reason, key_pack=visibility.key_pack)
    queries, keys = (_Sized((None, length)) for length in (query_length, key_length))
    check_shapes(queries, keys, **visibility.tensors())
    return visibility.mask(query_length, key_length)


def is_static_zero(number) -> bool:
    """Return True for the Python int 0; False for tensors, whose value a compiler cannot know."""
    return isinstance(number, int) and number == 0


# Not `x[:, None, None]`, for which LiteRT has no operation.
def by_query(x):
    """Reshape `(rows, length)` to `(rows, 1, length, 1)`."""
    return ops.expand_dims(x, (1, 3))


def by_key(x):
    """Reshape `(rows, length)` to `(rows, 1, 1, length)`."""
    return ops.expand_dims(x, (1, 2))


def pairs(queries, keys, relation):
    """Apply `relation` to all queries `(rows, queries)` and keys: `(rows, 1, queries, keys)`."""
    return relation(by_query(queries), by_key(keys))
