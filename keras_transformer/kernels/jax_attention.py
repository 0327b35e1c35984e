"""cuDNN's fused attention. Imported only on JAX with a GPU; see `attention`."""

import jax
from jax import numpy as jnp


def cudnn(queries, keys, values, bias=None, mask=None, scale=None, is_causal=False):
    """Compute `keras.ops.dot_product_attention` of 16-bit `(batch, length, heads, head_dim)`."""
    pairs = (queries.shape[1], keys.shape[1])
    # The kernel needs a number for each pair of query and key; the axes of rows and heads may have
    # size 1.
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
