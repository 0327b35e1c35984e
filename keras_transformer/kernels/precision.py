"""Precision of float32 products on a GPU."""

import keras

from keras_transformer.support.checking import check_bool


def use_exact_float32(enabled: bool = True) -> None:
    """Make float32 products and convolutions exact on a GPU, or allow TF32.

    GPUs since NVIDIA's A100 multiply float32 several times as fast if they may round its mantissa
    to 10 bits (TF32). Without this call each backend follows its default: JAX and TensorFlow round,
    and PyTorch rounds only in convolutions. bfloat16, float16 and CPUs are not affected.

    Call it before a model runs: compiled functions do not change.

    Args:
        enabled: bool, False allows TF32 on every backend.

    Raises:
        ValueError: if `enabled` is not a bool.

    Example:
    ```python
    import keras_transformer as kt

    kt.use_exact_float32()
    ```
    """
    check_bool("enabled", enabled)
    _SETTERS[keras.backend.backend()](enabled)


def _of_jax(exact: bool) -> None:
    import jax

    # None is the default of the device: TF32 on such a GPU.
    jax.config.update("jax_default_matmul_precision", "highest" if exact else None)


def _of_tensorflow(exact: bool) -> None:
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(not exact)


def _of_torch(exact: bool) -> None:
    import torch

    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact


_SETTERS = {"jax": _of_jax, "tensorflow": _of_tensorflow, "torch": _of_torch}
