"""Measure the peak speed of a framework: a product of two square matrices."""

from collections.abc import Callable

import numpy as np
from harness import median_seconds


def compiled(function: Callable) -> Callable:
    """Compile a function as this backend compiles models; a call returns when it is done."""
    import keras

    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        jitted = jax.jit(function)
        return lambda *args: jax.block_until_ready(jitted(*args))
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    import torch

    @torch.inference_mode()
    def run(*args):
        result = function(*args)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return result

    return run


def random_tensor(*shape: int, dtype: str = "float32"):
    """Numbers of a size that a product with them keeps."""
    from keras import ops

    values = np.random.default_rng(0).standard_normal(shape, "float32")
    return ops.cast(ops.convert_to_tensor(values / np.float32(shape[0] ** 0.5)), dtype)


def gflops(size: int, dtype: str = "float32") -> float:
    """Return GFLOP/s of a product of two square matrices on the backend of this process."""
    from keras import ops

    left, right = (random_tensor(size, size, dtype=dtype) for _ in range(2))
    product = compiled(ops.matmul)
    return 2 * size**3 / median_seconds(lambda: product(left, right), runs=5, warmup=2) / 1e9
