"""Pairs of least total cost, on the host: the assignment of predictions to what they predict."""

from keras import ops

from keras_transformer.kernels.device import on
from keras_transformer.kernels.least_cost import least_cost


def assign(costs, real):
    """Return for each target the prediction that it is paired with, at the least total cost.

    The assignment is found by SciPy on the host, in a compiled step too: JAX and TensorFlow call
    back (TensorFlow not within XLA, which has no such call), and PyTorch has an operation that a
    traced graph keeps. It has no gradient.

    Args:
        costs: float32 `(batch, targets, predictions)`, with at least as many predictions as
            targets. Costs that are not finite are the largest.
        real: bool `(batch, targets)`, False for targets that are padding.

    Returns:
        int32 `(batch, targets)`: different predictions for the real targets of a row, 0 for others.
    """
    costs, real = ops.stop_gradient(ops.cast(costs, "float32")), ops.cast(real, "bool")
    if on("jax"):
        import jax

        shape = jax.ShapeDtypeStruct(costs.shape[:2], "int32")
        return jax.pure_callback(least_cost, shape, costs, real)
    if on("tensorflow"):
        import tensorflow as tf

        found = tf.numpy_function(least_cost, [costs, real], tf.int32, stateful=False)
        found.set_shape(costs.shape[:2])
        return found
    from keras_transformer.kernels.torch_assignment import assignment

    return assignment(costs.detach(), real)


def supports_jit() -> bool:
    """Return True if `jit_compile` compiles steps with an assignment. TensorFlow's XLA does not."""
    return not on("tensorflow")
