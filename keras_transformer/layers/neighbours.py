"""States of the tokens around or before each token, for convolutions and other local mixers."""

from keras import ops

from keras_transformer.layers.attention.key_value_cache import KeyValueCache
from keras_transformer.layers.attention.masking import AttentionMask, is_static_zero


def with_neighbours(states, size: int, visibility: AttentionMask):
    """Concatenate the states of the `size` tokens around each token, with zeros beyond the ends.

    Args:
        states: float `(batch, length, dim)`.
        size: int, odd, number of tokens with the token itself in the middle.
        visibility: `AttentionMask`; padding and tokens of other packed documents count as zeros.

    Returns:
        Float `(batch, length, size * dim)`.
    """
    length, half = ops.shape(states)[1], size // 2
    if visibility.padding is not None:
        states = ops.where(visibility.padding[..., None], states, ops.zeros_like(states))
    around = ops.pad(states, [[0, 0], [half, half], [0, 0]])
    parts = [around[:, i : i + length] for i in range(size)]
    packs = visibility.query_pack
    if packs is not None:
        others = ops.pad(packs, [[0, 0], [half, half]])
        of_same = [ops.equal(others[:, i : i + length], packs)[..., None] for i in range(size)]
        parts = [
            ops.where(same, x, ops.zeros_like(x)) for same, x in zip(of_same, parts, strict=True)
        ]
    return ops.concatenate(parts, axis=-1)


def last_states(
    x, size: int, visibility: AttentionMask, cache: KeyValueCache | None = None
) -> tuple:
    """Return the last `size` states up to each token, for a causal mixer with a cache.

    Args:
        x: float `(batch, length, dim)`, with an even `dim` if there is a cache.
        size: int, number of tokens, including the token itself.
        visibility: `AttentionMask`; padding and tokens of other packed documents count as zeros.
        cache: `KeyValueCache` with one head of half the width, whose keys and values are the two
            halves of the states; new states are appended.

    Returns:
        A list of `size` tensors `(batch, length, dim)`: the states of the tokens themselves, of the
        tokens before them, and so on; and the updated cache.
    """
    if cache is None or is_static_zero(cache.next):
        if visibility.padding is not None:
            x = ops.where(visibility.padding[..., None], x, ops.zeros_like(x))
        cache = cache if cache is None else cache.write_halves(x)
        return [moved(x, i, visibility.query_pack) for i in range(size)], cache
    cache = cache.write_halves(x)
    kept = ops.concatenate(cache.read(x.dtype), axis=-1)[:, 0]
    # The slots of a cache may be in any order and hold several branches, so positions decide.
    distances = visibility.query_positions[:, :, None] - visibility.key_positions[:, None]
    seen = ops.cast(visibility.explicit, "bool")
    places = (ops.logical_and(ops.equal(distances, i), seen) for i in range(size))
    return [ops.matmul(ops.cast(place, kept.dtype), kept) for place in places], cache


def moved(x, i: int, packs):
    """Return the state `i` tokens before each token, zeros before the start of its document.

    Args:
        x: float `(batch, length, dim)`.
        i: int.
        packs: int `(batch, length)`, the packed document of each token, or None.
    """
    length = ops.shape(x)[1]
    if i == 0:
        return x
    moved = ops.pad(x, [[0, 0], [i, 0], [0, 0]])[:, :length]
    if packs is None:
        return moved
    others = ops.pad(packs, [[0, 0], [i, 0]], constant_values=-2)[:, :length]
    return ops.where(ops.equal(others, packs)[..., None], moved, ops.zeros_like(moved))
