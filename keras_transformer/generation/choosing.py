"""The best of many scores, quickly.

XLA's own argmax and top-k compare one number after the other. A maximum over chunks is one pass of
vector instructions, and what is looked for lies in the chunks with the largest maxima. PyTorch's
own are quick; of equal numbers its top-k takes any, its argmax the first.
"""

import keras
from keras import ops

_CHUNK = 128


def argmax(scores):
    """The place of the largest score, int32 `(...)` of `(..., size)`; the first of equal ones."""
    if keras.backend.backend() == "torch":
        return ops.cast(ops.argmax(scores, axis=-1), "int32")
    return top_k(scores, 1)[1][..., 0]


def top_k(scores, k: int):
    """The `k` largest scores `(..., k)`, best first, and their places, int32, of `(..., size)`."""
    shape, size = scores.shape, scores.shape[-1]
    count = -(-size // _CHUNK)
    if count < 4 * k or keras.backend.backend() == "torch":
        values, places = ops.top_k(scores, k)
        return values, ops.cast(places, "int32")
    rows = 1
    for axis in shape[:-1]:
        rows *= axis
    chunks = ops.reshape(scores, (rows, size))
    if count * _CHUNK > size:
        chunks = ops.pad(
            chunks, ((0, 0), (0, count * _CHUNK - size)), constant_values=-float("inf")
        )
    chunks = ops.reshape(chunks, (rows, count, _CHUNK))
    # In the order of their places, so that of equal scores the first is taken.
    chosen = ops.sort(ops.top_k(ops.max(chunks, axis=-1), k)[1], axis=-1)
    chosen = ops.cast(chosen, "int32")
    candidates = ops.take_along_axis(chunks, chosen[..., None], axis=1)
    values, places = ops.top_k(ops.reshape(candidates, (rows, k * _CHUNK)), k)
    places = ops.cast(places, "int32")
    chunk = ops.take_along_axis(chosen, places // _CHUNK, axis=1)
    places = chunk * _CHUNK + places % _CHUNK
    return ops.reshape(values, (*shape[:-1], k)), ops.reshape(places, (*shape[:-1], k))


def broken(logits):
    """Whether one of the numbers is NaN or infinite, bool `(...)` of `(..., size)`.

    By their sum, which nothing of the kind gets through; XLA's maximum may pass over NaN.
    """
    total = ops.sum(logits, axis=-1)
    # Not `not total < inf`: of that TensorFlow's graphs make `total >= inf`, which NaN is not.
    return ops.logical_or(ops.isnan(total), ops.abs(total) == float("inf"))


def log_sum(logits):
    """The logarithm of the summed exponentials over the last axis, float32 `(...)`."""
    if keras.backend.backend() == "torch":  # its own takes twice as long as its log-softmax
        return logits[..., 0] - ops.log_softmax(logits, axis=-1)[..., 0]
    return ops.logsumexp(logits, axis=-1)


def draw(chances, numbers, instead=None):
    """A token for each row, int32 `(rows,)`. One without a chance is never drawn.

    Args:
        chances: float32 `(rows, vocabulary_size)`, at least 0; their sum need not be 1.
        numbers: float32 `(rows,)`, from 0 to below 1.
        instead: float32 `(rows, vocabulary_size)`, the largest is taken where no token has a
            chance. Defaults to `chances`.
    """
    summed = ops.cumsum(chances, axis=-1)
    reached = ops.logical_and(summed > numbers[:, None] * summed[:, -1:], chances > 0)
    ids = ops.arange(chances.shape[-1], dtype="int32")
    first = ops.min(ops.where(reached, ids, chances.shape[-1]), axis=-1)
    # By rounding none may be reached: then the likeliest.
    likeliest = argmax(chances if instead is None else instead)
    return ops.where(first < chances.shape[-1], first, likeliest)
