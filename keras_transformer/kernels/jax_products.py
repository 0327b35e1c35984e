"""Products of bfloat16 and of int8 on a CPU by XLA. Imported only on JAX; see `products`.

XLA has fast products of two matrices whose sums are wider: float32 for bfloat16, int32 for int8.
If bfloat16 sums are requested, it first converts both matrices to float32, the weights in each
call. It multiplies a single row in a loop of its own, ten times slower below 32 bits, and it
physically transposes a matrix that was transposed before.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

_SMALLEST = 1e-30  # least divisor of a row: rows of zeros stay zeros


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(states, kernel, axis: int = 0):
    """Multiply bfloat16 `(..., in)` by a matrix with the inputs on its `axis`."""
    return _contract(states, kernel, axis, "float32").astype(states.dtype)


def _product_forward(states, kernel, axis):
    return product(states, kernel, axis), (states, kernel)


def _product_backward(axis, saved, gradient):
    states, kernel = saved
    rows, of_rows = (x.reshape(-1, x.shape[-1]) for x in (states, gradient))
    pair = (rows, of_rows) if axis == 0 else (of_rows, rows)
    by_kernel = lax.dot_general(*pair, (((0,), (0,)), ((), ())), preferred_element_type="float32")
    return product(gradient, kernel, 1 - axis), by_kernel.astype(kernel.dtype)


product.defvjp(_product_forward, _product_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def int8_product(inputs, kernel, scale, axis: int = 0):
    """Compute `products.int8_product` without bias. As in Keras, only inputs have a gradient."""
    largest = jnp.abs(inputs.astype("float32")).max(-1, keepdims=True)
    largest = jnp.maximum(largest, _SMALLEST)
    quantized = jnp.round(inputs * (127 / largest)).astype("int8")
    sums = _contract(quantized, kernel, axis, "int32").astype("float32")
    return (sums * (largest / 127) / scale).astype(inputs.dtype)


def _int8_forward(inputs, kernel, scale, axis):
    return int8_product(inputs, kernel, scale, axis), (kernel, scale)


def _int8_backward(axis, saved, gradient):
    kernel, scale = saved
    by_outputs = kernel.astype(gradient.dtype)
    by_outputs = by_outputs if axis == 1 else by_outputs.T
    return (gradient / scale).astype(gradient.dtype) @ by_outputs, None, None


int8_product.defvjp(_int8_forward, _int8_backward)


def _contract(states, kernel, axis: int, dtype: str):
    """Multiply `states` `(..., in)` by a matrix with `in` on its `axis`, with sums of `dtype`."""
    rows = states.reshape(-1, states.shape[-1])
    alone = rows.shape[0] == 1
    if alone:
        rows = jnp.broadcast_to(rows, (2, rows.shape[1]))
    # A matrix with the inputs last is the left factor, so that it is read in memory order.
    pair, axes = ((rows, kernel), (1, 0)) if axis == 0 else ((kernel, rows), (1, 1))
    axes = ((axes[:1], axes[1:]), ((), ()))
    sums = lax.dot_general(*pair, axes, preferred_element_type=dtype)
    sums = sums if axis == 0 else sums.T
    sums = sums[:1] if alone else sums
    return sums.reshape(*states.shape[:-1], sums.shape[-1])
