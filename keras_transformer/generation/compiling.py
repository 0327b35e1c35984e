"""Compiled functions of a model's weights, on each backend."""

from collections.abc import Callable

import keras


def compile_function(function: Callable, model: keras.Model) -> Callable:
    """`function` compiled, with the present weights of `model` at each call.

    Args:
        function: takes and returns nested structures of tensors; reads weights of `model`, does
            not change them.
        model: a built Keras model.

    Returns:
        A callable of the same signature.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        @jax.jit
        def pure(values, *args):
            mapping = list(zip(model.weights, values, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                return function(*args)

        return lambda *args: pure([variable.value for variable in model.weights], *args)
    if backend == "tensorflow":
        import tensorflow as tf

        @tf.function(jit_compile=True)
        def traced(weights, *args):
            return function(*args)

        # A trace keeps the variables that it was made with: others, as of LoRA, need a new one.
        return lambda *args: traced(hash(tuple(map(id, model.weights))), *args)
    if backend == "torch":
        import torch

        return torch.inference_mode()(function)
    raise RuntimeError(
        f"Generation runs on the backends jax, tensorflow and torch, not on {backend!r}. Set "
        "KERAS_BACKEND to one of them."
    )
