"""Pooling of token states to one vector."""

from keras import ops

from keras_transformer.layers.position import sequence_positions
from keras_transformer.models.backbone import as_mask

POOLINGS = ("mean", "first", "max", "last", "mean_sqrt_len")


def pool(states, padding_mask, pooling: str):
    """The states `(batch, length, hidden_dim)` of real tokens made one, `(batch, hidden_dim)`."""
    if pooling == "first":
        return states[:, 0]
    mask = as_mask(states[..., 0], padding_mask)
    if pooling == "last":
        last = ops.max(ops.where(mask, sequence_positions(states), 0), axis=1, keepdims=True)
        return states_at(states, last)[:, 0]
    if pooling == "max":
        lowest = ops.cast(-1e9 if states.dtype != "float16" else -6e4, states.dtype)
        return ops.max(ops.where(mask[..., None], states, lowest), axis=1)
    weights = ops.cast(mask, states.dtype)
    number = ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1)
    total = ops.sum(states * weights[..., None], axis=1)
    return total / (number if pooling == "mean" else ops.sqrt(number))


def states_at(states, positions):
    """The states `(batch, count, hidden_dim)` at positions, int `(batch, count)`."""
    return ops.take_along_axis(states, ops.expand_dims(positions, -1), axis=1)
