"""cuDNN's fused attention. Imported on JAX and a GPU alone; see `attention`."""

import jax
from jax import numpy as jnp


def cudnn(queries, keys, values, bias=None, mask=None, scale=None, is_causal=False):
    """As `keras.ops.dot_product_attention`, of 16 bits: all `(batch, length, heads, head_dim)`."""
    pairs = (queries.shape[1], keys.shape[1])
    # One number for each pair is what it takes, of all heads and rows alike or not.
    bias, mask = (
        None if x is None else jnp.broadcast_to(x, (*x.shape[:2], *pairs)) for x in (bias, mask)
    )
    return jax.nn.dot_product_attention(
        queries,
        keys,
        values,
        bias=None if bias is None else bias.astype(queries.dtype),
        mask=mask,
        scale=scale,
        is_causal=is_causal,
        implementation="cudnn",
    )
