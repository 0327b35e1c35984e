"""Who may attend to whom: padding, causality, window and packed documents, composed here only."""

import keras
from keras import ops

from keras_transformer.layers.arguments import refuse_unused


def combine_masks(
    query_length,
    key_length,
    padding=None,
    causal: bool = False,
    window: int | None = None,
    query_pack=None,
    key_pack=None,
    query_positions=None,
    key_positions=None,
    first_slot=0,
    explicit=None,
):
    """One boolean tensor from the descriptions that apply, or None if every key is visible.

    Args:
        query_length: number of queries.
        key_length: number of keys.
        padding: optional bool `(batch, key_length)`, True for real keys.
        causal: query `i`, which stands in slot `first_slot + i`, sees the keys of the slots up
            to its own.
        window: a query sees the keys at most `window - 1` positions away.
        query_pack: int `(batch, query_length)`, the document of each query. Only tokens of the
            same document see each other.
        key_pack: int `(batch, key_length)`, the document of each key. Defaults to `query_pack`.
        query_positions: int `(batch, query_length)`, for `window`. Defaults to the slots.
        key_positions: int `(batch, key_length)`, likewise.
        first_slot: int or scalar tensor, the slot of the first query in a cache.
        explicit: optional bool `(batch, query_length, key_length)` or with a heads axis,
            `(batch, heads, query_length, key_length)`.

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
    if query_pack is None:
        refuse_unused("the documents of the queries are not given.", key_pack=key_pack)
    parts = []
    if padding is not None:
        parts.append(ops.cast(padding, "bool")[:, None, None, :])
    if causal or window is not None:
        query_slots = (first_slot + ops.arange(query_length, dtype="int32"))[None]
        key_slots = ops.arange(key_length, dtype="int32")[None]
    if causal:
        parts.append(_pairs(query_slots, key_slots, ops.greater_equal))
    if window is not None:
        queries = query_slots if query_positions is None else query_positions
        keys = key_slots if key_positions is None else key_positions
        parts.append(_pairs(queries, keys, lambda q, k: ops.abs(q - k) < window))
    if query_pack is not None:
        key_pack = query_pack if key_pack is None else key_pack
        parts.append(_pairs(query_pack, key_pack, ops.equal))
    if explicit is not None:
        explicit = ops.cast(explicit, "bool")
        parts.append(explicit if len(explicit.shape) == 4 else explicit[:, None])
    if not parts:
        return None
    mask = parts[0]
    for part in parts[1:]:
        mask = ops.logical_and(mask, part)
    return mask


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
