"""Who may attend to whom: padding, causality, window and packed documents, composed here only."""

import functools
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.layers.arguments import refuse_unused


class Visibility(NamedTuple):
    """Who may attend to whom, as descriptions. A tensor is made of them only where it must be.

    Fields:
        causal: query `i`, which stands in slot `first_slot + i`, sees the keys of the slots up
            to its own.
        first_slot: int or scalar tensor, the slot of the first query in a cache.
        padding: optional bool `(batch, key_length)`, True for real keys.
        window: a query sees the keys at most `window - 1` positions away.
        query_pack: int `(batch, query_length)`, the document of each query. Only tokens of the
            same document see each other.
        key_pack: int `(batch, key_length)`, the document of each key. Defaults to `query_pack`.
        query_positions: int `(batch, query_length)`, for `window`. Defaults to the slots.
        key_positions: int `(batch, key_length)`, likewise.
        explicit: optional bool `(batch, query_length, key_length)` or with a heads axis,
            `(batch, heads, query_length, key_length)`.
    """

    causal: bool = False
    first_slot: Any = 0
    padding: Any = None
    window: int | None = None
    query_pack: Any = None
    key_pack: Any = None
    query_positions: Any = None
    key_positions: Any = None
    explicit: Any = None

    @property
    def is_causality_alone(self) -> bool:
        """Whether it is all said by the causality that the kernels of the backends know."""
        further = (self.padding, self.window, self.query_pack, self.explicit)
        return (
            self.causal
            and isinstance(self.first_slot, int)
            and self.first_slot == 0
            and all(part is None for part in further)
        )

    def mask(self, query_length, key_length):
        """Bool, broadcastable to `(batch, heads, query_length, key_length)`, or None."""
        parts = []
        if self.padding is not None:
            parts.append(ops.cast(self.padding, "bool")[:, None, None, :])
        if self.causal or self.window is not None:
            query_slots = (self.first_slot + ops.arange(query_length, dtype="int32"))[None]
            key_slots = ops.arange(key_length, dtype="int32")[None]
        if self.causal:
            parts.append(_pairs(query_slots, key_slots, ops.greater_equal))
        if self.window is not None:
            queries = query_slots if self.query_positions is None else self.query_positions
            keys = key_slots if self.key_positions is None else self.key_positions
            parts.append(_pairs(queries, keys, lambda q, k: ops.abs(q - k) < self.window))
        if self.query_pack is not None:
            key_pack = self.query_pack if self.key_pack is None else self.key_pack
            parts.append(_pairs(self.query_pack, key_pack, ops.equal))
        if self.explicit is not None:
            explicit = ops.cast(self.explicit, "bool")
            parts.append(explicit if len(explicit.shape) == 4 else explicit[:, None])
        return functools.reduce(ops.logical_and, parts) if parts else None


def combine_masks(query_length, key_length, **descriptions):
    """One boolean tensor from the descriptions that apply, or None if every key is visible.

    Args:
        query_length: number of queries.
        key_length: number of keys.
        **descriptions: `padding`, `causal`, ...: the fields of `Visibility`.

    Returns:
        Bool, broadcastable to `(batch, heads, query_length, key_length)`, or None.

    Raises:
        ValueError: for `key_pack` without `query_pack`.

    Example:
    ```python
    from keras_transformer.layers import combine_masks

    assert combine_masks(3, 3) is None
    mask = combine_masks(3, 3, causal=True)
    assert mask.shape == (1, 1, 3, 3) and not bool(mask[0, 0, 0, 1])
    ```
    """
    visibility = Visibility(**descriptions)
    if visibility.query_pack is None:
        reason = "the documents of the queries are not given."
        refuse_unused(reason, key_pack=visibility.key_pack)
    return visibility.mask(query_length, key_length)


def is_on_the_right(padding) -> bool:
    """Whether each row has its real tokens first, as far as that can be seen.

    On PyTorch it can, where the mask `(batch, length)` has values. Within a program of JAX or
    TensorFlow it has none yet.
    """
    if padding is None or keras.backend.backend() != "torch":
        return False
    import torch

    from keras_transformer.layers.torch_products import computes_now

    if type(padding) is not torch.Tensor or padding.device.type == "meta" or not computes_now():
        return False
    padding = padding.bool()
    return not bool((padding[:, 1:] & ~padding[:, :-1]).any())


def _pairs(queries, keys, relation):
    return relation(queries[:, None, :, None], keys[:, None, None, :])
