"""Products of bfloat16 and of int8 on a CPU by XLA. Imported on JAX alone; see `products`.

XLA has quick ones of two matrices whose sums have more bits: float32 of bfloat16, int32 of int8.
Where bfloat16 is asked for it converts both to float32 before, the weights in each call. A single
row it multiplies in a loop of its own, which for fewer than 32 bits takes ten times as long; and
a matrix that is transposed before it turns in memory.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

_SMALLEST = 1e-30  # of the largest number of a row: rows of zeros stay zeros


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(states, kernel, axis: int = 0):
    """The products of bfloat16 `(..., in)` with a matrix, whose `axis` is the inputs."""
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
    """As `products.int8_product`, without bias. The gradient is that of the inputs, as Keras's."""
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
    """`states` `(..., in)` by a matrix of `in` on its `axis`, with sums of `dtype`."""
    rows = states.reshape(-1, states.shape[-1])
    alone = rows.shape[0] == 1
    if alone:
        rows = jnp.broadcast_to(rows, (2, rows.shape[1]))
    # A matrix with the inputs last goes first, as it lies.
    pair, axes = ((rows, kernel), (1, 0)) if axis == 0 else ((kernel, rows), (1, 1))
    axes = ((axes[:1], axes[1:]), ((), ()))
    sums = lax.dot_general(*pair, axes, preferred_element_type=dtype)
    sums = sums if axis == 0 else sums.T
    sums = sums[:1] if alone else sums
    return sums.reshape(*states.shape[:-1], sums.shape[-1])
