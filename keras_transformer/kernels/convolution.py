"""Convolutions in groups of channels."""

import keras
from keras import ops

from keras_transformer.kernels.device import on


def grouped_convolution(layer: keras.layers.Conv1D, x):
    """Apply a layer with `groups`, without padding and activation, to `(batch, length, dim)`.

    TensorFlow's gradient of a grouped convolution takes ten times as long as separate convolutions.
    """
    if not on("tensorflow"):
        return layer(x)
    kernels = ops.split(ops.cast(layer.kernel, x.dtype), layer.groups, axis=-1)
    parts = ops.split(x, layer.groups, axis=-1)
    made = [
        ops.conv(part, kernel, data_format="channels_last")
        for part, kernel in zip(parts, kernels, strict=True)
    ]
    return ops.concatenate(made, axis=-1) + ops.cast(layer.bias, x.dtype)
