"""Gradients of functions, for which Keras has no operation."""

import contextlib
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_transformer.kernels.device import on


def gradient_of(function: Callable, at):
    """Return the gradient of a scalar function."""
    if on("jax"):
        import jax

        return jax.grad(function)(at)
    if on("tensorflow"):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(at)
            loss = function(at)
        return tape.gradient(loss, at)
    import torch

    at.requires_grad_()
    return torch.autograd.grad(function(at), at)[0]


def values_and_gradients(function: Callable, at: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the values of a function, one per row, and the gradients of their sum."""
    if on("jax"):
        import jax

        def summed(at):
            values = function(at)
            return ops.sum(values), values

        slopes, values = jax.grad(summed, has_aux=True)(at)
        return values, slopes
    if on("tensorflow"):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(list(at.values()))
            values = function(at)
            total = ops.sum(values)
        return values, tape.gradient(total, at, unconnected_gradients="zero")
    import torch

    at = {name: x.detach().clone().requires_grad_() for name, x in at.items()}
    with torch.enable_grad():
        values = function(at)
        slopes = torch.autograd.grad(
            values.sum(), list(at.values()), allow_unused=True, materialize_grads=True
        )
    return values.detach(), dict(zip(at, slopes, strict=True))


def without_gradients() -> contextlib.AbstractContextManager:
    """Return a scope without gradients, in which PyTorch keeps no activations."""
    if not on("torch"):
        return contextlib.nullcontext()  # These backends compute gradients only on request.
    import torch

    return torch.no_grad()
