"""Vectors of length 1."""

import keras
from keras import ops


def unit_vectors(vectors):
    """Return vectors divided by their lengths, over the last axis, as `keras.ops.normalize` does.

    A vector of zeros stays one and has no gradient, where that of Keras is NaN on JAX and PyTorch.
    """
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    there = squares > 0
    lengths = ops.rsqrt(ops.where(there, squares, ops.ones_like(squares)))
    lengths = ops.minimum(lengths, 1.0 / keras.config.epsilon())
    return ops.where(there, vectors * lengths, ops.zeros_like(vectors))
