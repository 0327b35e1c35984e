"""Selection of the largest scores: argmax, top-k, top-p, and the log of their sum.

The argmax and top-k of XLA and of PyTorch compare one number after the other. A maximum over
chunks is one pass of vector instructions, and the largest scores lie in the chunks with the largest
maxima.

A compiler fuses an expression into each place that uses it, and may round differently in each. So a
number that was found among others, a maximum or a threshold, need not equal the original number,
and a comparison of the two may select nothing. The cut-off is therefore decided by comparing
integers of one tensor, and the result of the comparison is passed on.
"""

import math

from keras import ops

from keras_transformer.kernels.device import on
from keras_transformer.kernels.indexing import lines_at

_CHUNK = 128
# For fewer numbers PyTorch's own operation is faster than several calls.
_FEW = 400_000
_LEAST, _MOST, _BITS = -(2**31), 2**31 - 1, 32
_TINY = 2e-38  # the smallest mass that float32 distinguishes from 0
# A mass counts as reached from this share on: a float32 sum of probabilities, the softmax of
# logarithms, has rounding errors, which differ between backends.
REACHED = 1 - 1e-6


def argmax(scores):
    """Return the index of the largest score, int32 `(...)` of `(..., size)`; the first if tied."""
    return top_k(scores, 1)[1][..., 0]


def top_k(scores, k: int):
    """Return the `k` largest scores `(..., k)`, best first, and their int32 indices in the row."""
    shape, size = scores.shape, scores.shape[-1]
    count = size // _CHUNK
    rows, end = math.prod(shape[:-1]), count * _CHUNK
    few = on("torch") and rows * size < _FEW
    if few or count < 4 * k:
        return _top_k(scores, k)
    scores = ops.reshape(scores, (rows, size))
    chunks = ops.reshape(scores[:, :end], (rows, count, _CHUNK))
    # In the order of their indices, so that the first of equal scores is taken.
    chosen = _top_k(ops.max(chunks, axis=-1), k)[1]
    if k > 1:
        chosen = ops.sort(chosen, axis=1)
    candidates = ops.reshape(lines_at(chunks, chosen), (rows, k * _CHUNK))
    places = chosen[..., None] * _CHUNK + ops.arange(_CHUNK, dtype="int32")
    places = ops.reshape(places, (rows, k * _CHUNK))
    if end < size:  # the rest after the last whole chunk
        behind = ops.broadcast_to(ops.arange(end, size, dtype="int32"), (rows, size - end))
        candidates = ops.concatenate([candidates, scores[:, end:]], axis=1)
        places = ops.concatenate([places, behind], axis=1)
    values, among = _top_k(candidates, k)
    places = ops.take_along_axis(places, among, axis=1)
    return ops.reshape(values, (*shape[:-1], k)), ops.reshape(places, (*shape[:-1], k))


def _top_k(scores, k: int):
    """Return the top-k of the backend's operation, which is fast for a few hundred numbers."""
    if k == 1:  # PyTorch's top-k takes any of equal scores
        place = ops.cast(ops.argmax(scores, axis=-1, keepdims=True), "int32")
        return ops.take_along_axis(scores, place, axis=-1), place
    values, places = ops.top_k(scores, k)
    return values, ops.cast(places, "int32")


def log_sum(logits) -> tuple:
    """Return the logarithm of the summed exponentials, `log sum exp(z)`, in two parts, `(...)`.

    They are the largest logit, and the sum's excess over it, at least 0. Subtract the first part
    from logits first: logits near 1e7 are whole numbers in float32, and so would be their
    undivided sum.
    """
    largest = ops.max(logits, axis=-1)
    if on("torch"):  # its own sum takes twice as long as its log-softmax
        return largest, -ops.max(ops.log_softmax(logits, axis=-1), axis=-1)
    return largest, ops.log(ops.sum(ops.exp(logits - largest[..., None]), axis=-1))


def ordered(scores):
    """Return integers in the order of float32 scores, equal for equal scores."""
    bits = ops.view(ops.where(scores == 0, 0.0, scores), "int32")  # 0.0 and -0.0 are equal
    # The bits of a negative number are a sign, and grow with its distance from 0.
    return ops.where(bits < 0, ops.bitwise_xor(bits, _MOST), bits)


def best(keys, enough, weights=None):
    """Return a mask of the largest int32 keys `(..., size)` that together weigh enough, bool.

    Keys equal to the smallest kept key are kept too. The mask is never empty: the largest key is
    always kept, and all are kept if all together do not weigh enough. `enough` is an int or int32
    `(..., 1)` of at least 1, the number of keys; with `weights`, float32 `(..., size)` of at least
    0, it is a float or float32 `(..., 1)` above 0, reached up to rounding.
    """
    if weights is not None:
        least = max if isinstance(enough, (int, float)) else ops.maximum
        enough = least(enough * REACHED, _TINY)
    if on("torch"):
        return keys >= _limit_of_sorted(keys, enough, weights)

    # The keys go through a loop whose steps all compare the very same keys. A mask replaces the
    # previous one only if its keys weigh enough, so it is never empty.
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
    """Return the smallest key that `best` keeps, `(..., 1)`. PyTorch computes each tensor once."""
    size = keys.shape[-1]
    if weights is None and isinstance(enough, int):
        return top_k(keys, min(enough, size))[0][..., -1:]
    descending, order = top_k(keys, size)
    if weights is not None:
        summed = ops.cumsum(ops.take_along_axis(weights, order, axis=-1), axis=-1)
        enough = 1 + ops.sum(ops.cast(summed < enough, "int32"), axis=-1, keepdims=True)
    return ops.take_along_axis(descending, ops.minimum(enough, size) - 1, axis=-1)
