"""Which tokens are left of a distribution, decided on values that are computed once.

A compiler fuses an expression into each place that uses it, and may round it otherwise there. So a
number that was found among others, a maximum or a threshold, need not equal the one that it was,
and a comparison of the two may leave nothing. What is compared here are integers, of one tensor,
and what is passed on is the result of the comparison.
"""

import keras
from keras import ops

from keras_transformer.generation.choosing import top_k

# What a token scores that is left out. Rules ban with the same value.
NEVER = -1e30
# Below this temperature the rounding of float32 logits would decide, and above the other nothing
# differs any more.
_COLD, _HOT = 1e-5, 1e20
_LEAST, _MOST, _BITS = -(2**31), 2**31 - 1, 32
_TINY = 2e-38  # the least mass that float32 tells from none


def sharpened(logits, temperature: float):
    """Logits over a temperature. What is banned stays so at any.

    Args:
        logits: float32 `(..., size)`.
        temperature: float above 0. So near to 0 that only the largest logit counts, it and its
            equals are left, at 0.
    """
    if temperature == 1:
        return logits
    if temperature < _COLD:
        return keep(ops.zeros_like(logits), best(ordered(logits), 1))
    return keep(logits / min(temperature, _HOT), logits > NEVER / 2)


def keep(logits, kept):
    """The logits with -1e30 where `kept` is False."""
    return ops.where(kept, logits, NEVER)


def ordered(scores):
    """Integers in the order of float32 scores, equal for equal ones."""
    bits = ops.view(ops.where(scores == 0, 0.0, scores), "int32")  # 0.0 and -0.0 are equal
    # The bits of a negative number are a sign, and the more the further it is from 0.
    return ops.where(bits < 0, ops.bitwise_xor(bits, _MOST), bits)


def best(keys, enough, weights=None):
    """The largest keys that together weigh enough, the least of them with all its equals.

    Never none: the largest key is always kept. All are kept where all do not weigh enough.

    Args:
        keys: int32 `(..., size)`.
        enough: int or int32 `(..., 1)`, at least 1: how many keys. With weights, a float above 0.
        weights: float32 `(..., size)`, at least 0; None to count.

    Returns:
        Bool `(..., size)`.
    """
    if weights is not None:
        enough = max(enough, _TINY)
    if keras.backend.backend() == "torch":
        return keys >= _limit_of_sorted(keys, enough, weights)

    # The keys go through a loop, and each of its steps compares the very same ones. A mask takes
    # the place of the one before only if what it holds is enough, which is more than nothing.
    def halve(_, state):
        keys, weights, low, high, kept = state
        middle = ops.bitwise_or(low, high) - ops.right_shift(ops.bitwise_xor(low, high), 1)
        held = keys >= middle
        weight = ops.cast(held, "int32") if counted else ops.where(held, weights, 0.0)
        reached = ops.sum(weight, axis=-1, keepdims=True) >= enough
        low, high = ops.where(reached, middle, low), ops.where(reached, high, middle - 1)
        return keys, weights, low, high, ops.where(reached, held, kept)

    counted = weights is None
    shape = (*keys.shape[:-1], 1)
    low, high = ops.full(shape, _LEAST, "int32"), ops.full(shape, _MOST, "int32")
    state = (keys, keys if counted else weights, low, high, ops.ones(keys.shape, "bool"))
    return ops.fori_loop(0, _BITS, halve, state)[-1]


def _limit_of_sorted(keys, enough, weights):
    """The least key that `best` keeps, `(..., 1)`. PyTorch computes every tensor once."""
    size = keys.shape[-1]
    if weights is None and isinstance(enough, int):
        return top_k(keys, min(enough, size))[0][..., -1:]
    descending, order = top_k(keys, size)
    if weights is not None:
        summed = ops.cumsum(ops.take_along_axis(weights, order, axis=-1), axis=-1)
        enough = 1 + ops.sum(ops.cast(summed < enough, "int32"), axis=-1, keepdims=True)
    return ops.take_along_axis(descending, ops.minimum(enough, size) - 1, axis=-1)
