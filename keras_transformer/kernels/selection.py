"""The largest of scores: their places, those that together weigh enough, the log of their sum.

The argmax and top-k of XLA and of PyTorch compare one number after the other. A maximum over
chunks is one pass of vector instructions, and what is looked for lies in the chunks with the
largest maxima.

A compiler fuses an expression into each place that uses it, and may round it otherwise there. So a
number that was found among others, a maximum or a threshold, need not equal the one that it was,
and a comparison of the two may leave nothing. What is cut off is decided by comparing integers, of
one tensor, and what is passed on is the result of the comparison.
"""

import math

from keras import ops

from keras_transformer.kernels.device import on
from keras_transformer.kernels.indexing import lines_at

_CHUNK = 128
# Of fewer numbers PyTorch's own is quicker than the calls of several operations.
_FEW = 400_000
_LEAST, _MOST, _BITS = -(2**31), 2**31 - 1, 32
_TINY = 2e-38  # the least mass that float32 tells from none
# A mass counts as reached from this share of it on: a sum of chances in float32, which are the
# softmax of logarithms, is off by some rounding errors, other ones on each backend.
REACHED = 1 - 1e-6


def argmax(scores):
    """The place of the largest score, int32 `(...)` of `(..., size)`; the first of equal ones."""
    return top_k(scores, 1)[1][..., 0]


def top_k(scores, k: int):
    """The `k` largest scores `(..., k)`, best first, and their places, int32, of `(..., size)`."""
    shape, size = scores.shape, scores.shape[-1]
    count = size // _CHUNK
    rows, end = math.prod(shape[:-1]), count * _CHUNK
    few = on("torch") and rows * size < _FEW
    if few or count < 4 * k:
        return _top_k(scores, k)
    scores = ops.reshape(scores, (rows, size))
    chunks = ops.reshape(scores[:, :end], (rows, count, _CHUNK))
    # In the order of their places, so that of equal scores the first is taken.
    chosen = _top_k(ops.max(chunks, axis=-1), k)[1]
    if k > 1:
        chosen = ops.sort(chosen, axis=1)
    candidates = ops.reshape(lines_at(chunks, chosen), (rows, k * _CHUNK))
    places = chosen[..., None] * _CHUNK + ops.arange(_CHUNK, dtype="int32")
    places = ops.reshape(places, (rows, k * _CHUNK))
    if end < size:  # what is behind the last whole chunk
        behind = ops.broadcast_to(ops.arange(end, size, dtype="int32"), (rows, size - end))
        candidates = ops.concatenate([candidates, scores[:, end:]], axis=1)
        places = ops.concatenate([places, behind], axis=1)
    values, among = _top_k(candidates, k)
    places = ops.take_along_axis(places, among, axis=1)
    return ops.reshape(values, (*shape[:-1], k)), ops.reshape(places, (*shape[:-1], k))


def _top_k(scores, k: int):
    """As `top_k`, by what the backend has, which is quick for a few hundred numbers."""
    if k == 1:  # PyTorch's top-k takes any of equal ones
        place = ops.cast(ops.argmax(scores, axis=-1, keepdims=True), "int32")
        return ops.take_along_axis(scores, place, axis=-1), place
    values, places = ops.top_k(scores, k)
    return values, ops.cast(places, "int32")


def log_sum(logits) -> tuple:
    """Return the logarithm of the summed exponentials, `log sum exp(z)`, in two parts, `(...)`.

    They are the largest logit, and what the sum is above it, from 0 on. Whatever is subtracted from
    logits takes away the first part first: logits near 1e7 are whole numbers in float32, and so
    would their sum be.
    """
    largest = ops.max(logits, axis=-1)
    if on("torch"):  # its own sum takes twice as long as its log-softmax
        return largest, -ops.max(ops.log_softmax(logits, axis=-1), axis=-1)
    return largest, ops.log(ops.sum(ops.exp(logits - largest[..., None]), axis=-1))


def ordered(scores):
    """Integers in the order of float32 scores, equal for equal ones."""
    bits = ops.view(ops.where(scores == 0, 0.0, scores), "int32")  # 0.0 and -0.0 are equal
    # The bits of a negative number are a sign, and the more the further it is from 0.
    return ops.where(bits < 0, ops.bitwise_xor(bits, _MOST), bits)


def best(keys, enough, weights=None):
    """Which are the largest of int32 keys `(..., size)` that together weigh enough, bool.

    The least of them comes with all its equals. Never none: the largest key is always kept; all are
    where all do not weigh enough. `enough` is an int or int32 `(..., 1)` from 1 on, how many keys;
    with `weights`, float32 `(..., size)` from 0 on, a float or float32 `(..., 1)` above 0, which is
    reached but for rounding.
    """
    if weights is not None:
        least = max if isinstance(enough, (int, float)) else ops.maximum
        enough = least(enough * REACHED, _TINY)
    if on("torch"):
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
