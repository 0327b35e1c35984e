"""Value and gradients of a function of tensors, on each backend."""

import keras
import numpy as np
from keras import ops


def value_and_gradients(function, arrays):
    """Return a function's scalar value, a float, and its gradients by all arguments, a list."""
    tensors = [ops.convert_to_tensor(array) for array in arrays]
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        places = tuple(range(len(tensors)))
        value, found = jax.jit(jax.value_and_grad(function, argnums=places))(*tensors)
    elif backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        found = tape.gradient(value, tensors)
    else:
        tensors = [tensor.clone().requires_grad_(True) for tensor in tensors]
        value = function(*tensors)
        value.backward()
        found = [tensor.grad for tensor in tensors]
    return float(value), [np.asarray(ops.convert_to_numpy(x)) for x in found]
