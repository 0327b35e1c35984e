"""Logits: whether they are numbers, a token that is drawn from them, what is left out of them."""

from keras import ops

from keras_transformer.kernels.selection import argmax, best, ordered

# What a token scores that is left out. Rules ban with the same value.
NEVER = -1e30
# Below this temperature the rounding of float32 logits would decide, and above the other nothing
# differs any more.
COLD, _HOT = 1e-5, 1e20


def broken(logits):
    """Whether one of the numbers is NaN or infinite, bool `(...)` of `(..., size)`.

    By their sum, which nothing of the kind gets through; XLA's maximum may pass over NaN.
    """
    total = ops.sum(logits, axis=-1)
    # Not `not total < inf`: of that TensorFlow's graphs make `total >= inf`, which NaN is not.
    return ops.logical_or(ops.isnan(total), ops.abs(total) == float("inf"))


def draw(chances, numbers, instead=None):
    """A token for each row, int32 `(rows,)`. One without a chance is never drawn.

    By `chances`, `(rows, vocabulary_size)`, whose sum need not be 1, and `numbers` from 0 to below
    1. Where no token has a chance, the largest of `instead` is taken, or else of them.
    """
    summed = ops.cumsum(chances, axis=-1)
    reached = ops.logical_and(summed > numbers[:, None] * summed[:, -1:], chances > 0)
    ids = ops.arange(chances.shape[-1], dtype="int32")
    first = ops.min(ops.where(reached, ids, chances.shape[-1]), axis=-1)
    # By rounding none may be reached: then the likeliest.
    likeliest = argmax(chances if instead is None else instead)
    return ops.where(first < chances.shape[-1], first, likeliest)


def apply_temperature(logits, temperature: float):
    """Logits `(..., size)` over a temperature above 0. What is banned stays so at any."""
    if temperature == 1:
        return logits
    if temperature < COLD:  # the largest and its equals alone
        return keep(ops.zeros_like(logits), best(ordered(logits), 1))
    return keep(logits / min(temperature, _HOT), logits > NEVER / 2)


def keep(logits, kept):
    """The logits with -1e30 where `kept` is False."""
    return ops.where(kept, logits, NEVER)
