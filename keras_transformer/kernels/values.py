"""What can be said of a tensor's numbers while a step is made: on PyTorch, which has them."""

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.device import on


def is_behind(padding, weights=None) -> bool:
    """Whether each row has its real tokens first, and no padding a weight, as far as can be seen.

    On PyTorch it can, where the mask `(batch, length)` has values. Within a program of JAX or
    TensorFlow it has none yet.
    """
    given = [_on_device(x) for x in (padding, weights)]
    padding, weights = given if weights is not None else (given[0], given[0])
    if not has_values(padding) or padding.shape != weights.shape:
        return False
    padding = padding.bool()
    seen = padding[:, 1:] & ~padding[:, :-1]
    counted = (weights != 0) & ~padding
    return not bool(seen.any() | counted.any())  # one look, for which a GPU waits


def none_if_whole(padding):
    """The mask `(batch, length)`, or None if all is real, as far as can be seen for nothing.

    That is on PyTorch and a CPU. Attention then needs no mask, forward and backward.
    """
    if not has_values(padding) or padding.device.type != "cpu":
        return padding
    return None if bool(padding.all()) else padding


def has_values(x) -> bool:
    """Whether the numbers of a tensor can be looked at: on PyTorch, where nothing is traced."""
    if x is None or not on("torch"):
        return False
    import torch

    from keras_transformer.kernels.torch_products import computes_now

    return type(x) is torch.Tensor and x.device.type != "meta" and computes_now()


def is_traced() -> bool:
    """Return whether PyTorch writes down what is called, and computes nothing."""
    if not on("torch"):
        return False
    from keras_transformer.kernels.torch_products import computes_now

    return not computes_now()


def _on_device(x):
    array = on("torch") and isinstance(x, np.ndarray)
    return ops.convert_to_tensor(x) if array else x


def known_values(array) -> np.ndarray | None:
    """An array of NumPy, or one of JAX on a CPU, which by itself takes any id, as NumPy's."""
    if on("jax") and not isinstance(array, np.ndarray):
        import jax

        known = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
        if known and array.is_fully_addressable and next(iter(array.devices())).platform == "cpu":
            return np.asarray(array)
    return array if isinstance(array, np.ndarray) else None


def tensor_of(x):
    """What a variable holds: TensorFlow's custom gradients refuse variables where run eagerly."""
    if not on("tensorflow"):
        return x
    import tensorflow as tf

    return tf.convert_to_tensor(x)


def number_of(variable: keras.Variable):
    """The number of a scalar variable: Python's on PyTorch, also within a trace, else a tensor."""
    if not on("torch"):
        return variable
    from keras_transformer.kernels.torch_tracing.traced import not_traced

    with not_traced():
        return variable._value.item()
