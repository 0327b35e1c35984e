"""Merged attention: to a decoder's own tokens and to the encoder's states, in one softmax.

The keys of the encoder come first, as a prefix that every query sees.

Source: Zhang et al. 2025, "T5Gemma 2: Seeing, Reading, and Understanding Longer", section 2.
"""

from keras import ops

from keras_transformer.layers.attention.masking import AttentionMask


def joined_keys(own: tuple, before: tuple) -> tuple:
    """Return keys and values with those of the encoder before them.

    All arrays are `(batch, heads, length, head_dim)`; `before` may have the batch size 1.
    """
    return tuple(
        ops.concatenate([_of_batch(first, x), ops.cast(x, first.dtype)], axis=2)
        for first, x in zip(before, own, strict=True)
    )


def with_keys_before(
    visibility: AttentionMask, queries, own, before, seen: AttentionMask
) -> AttentionMask:
    """Return the mask of a decoder's queries for keys with those of the encoder before them.

    Args:
        visibility: `AttentionMask` of the decoder's own tokens.
        queries: `(batch, query_length, heads, head_dim)`.
        own: the decoder's keys, `(batch, heads, key_length, head_dim)`.
        before: the encoder's keys, `(batch or 1, heads, count, head_dim)`.
        seen: `AttentionMask` of the encoder's keys, with their `padding` and `key_pack`.
    """
    batch, length = ops.shape(queries)[:2]
    count, slots = ops.shape(before)[2], ops.shape(own)[2]

    def joined(first, x, fill):
        """Join numbers of the encoder's keys with those of the own ones, `(batch, keys)`."""
        if first is None and x is None:
            return None
        dtype = (first if x is None else x).dtype
        parts = [
            ops.full((batch, size), fill, dtype) if part is None else ops.cast(part, dtype)
            for part, size in ((first, count), (x, slots))
        ]
        parts = [
            ops.broadcast_to(p, (batch, n)) for p, n in zip(parts, (count, slots), strict=True)
        ]
        return ops.concatenate(parts, axis=1)

    query_pack, key_pack = visibility.packs
    if query_pack is not None:
        if seen.query_pack is None:
            raise ValueError(
                "With packed rows, merged attention needs the documents of the encoder's states: "
                "give `encoder_pack_ids`, or a `cross_visibility` with packs."
            )
        key_pack = joined(seen.packs[1], key_pack, 0)
    explicit = visibility.explicit
    if explicit is not None:
        all_seen = ops.ones((*ops.shape(explicit)[:-1], count), "bool")
        explicit = ops.concatenate([all_seen, ops.cast(explicit, "bool")], axis=-1)
    positions = visibility.key_positions
    return visibility._replace(
        padding=joined(seen.padding, visibility.padding, True),
        query_pack=query_pack,
        key_pack=key_pack,
        key_positions=None if positions is None else joined(None, positions, 0),
        explicit=explicit,
        prefix=ops.zeros((batch, length), "int32") + count,
        first_slot=count + visibility.first_slot,
    )


def part_keys_of_encoder(found: dict, count) -> None:
    """Part attention weights, or projections, of all keys under `"self"`; add `"cross"`.

    Args:
        found: dict with weights `(batch, heads, queries, keys)`, or a dict of `queries` and `keys`
            `(batch, heads, keys, head_dim)`, under `"self"`.
        count: number of the encoder's keys, which come first.
    """
    whole = found["self"]
    if isinstance(whole, dict):
        keys = whole["keys"]
        found["cross"] = {**whole, "keys": keys[:, :, :count]}
        found["self"] = {**whole, "keys": keys[:, :, count:]}
    else:
        found["cross"], found["self"] = whole[..., :count], whole[..., count:]


def _of_batch(x, other):
    """Broadcast `x` to the batch size of another array."""
    return ops.broadcast_to(x, (ops.shape(other)[0], *ops.shape(x)[1:]))
