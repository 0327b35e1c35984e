"""Dot-product attention in the operations that XLA compiles best for a CPU."""

from keras import ops

_LOWEST = -1e30


def attention(queries, keys, values, bias=None, mask=None, scale=None, is_causal=False):
    """Compute `keras.ops.dot_product_attention` of `(batch, length, heads, head_dim)` in float32.

    It differs from the backends' functions in the operations on the matrices of all pairs, which
    take most of the time: heads come first, so that no matrix is transposed; the queries are scaled
    instead of the scores; and the result is divided by the sum of the weights, instead of each
    weight.
    """
    if scale is None:
        scale = queries.shape[-1] ** -0.5
    dtype = queries.dtype
    queries, keys, values = (ops.cast(x, "float32") for x in (queries, keys, values))
    queries, keys, values = (
        ops.transpose(x, (0, 2, 1, 3)) for x in (queries * scale, keys, values)
    )
    batch, heads, length, head_dim = ops.shape(queries)
    groups, slots = ops.shape(keys)[1:3]
    # Query heads that share a key head become rows of one product.
    queries = ops.reshape(queries, (batch, groups, -1, head_dim))
    scores = ops.matmul(queries, ops.transpose(keys, (0, 1, 3, 2)))
    scores = ops.reshape(scores, (batch, heads, length, slots))
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    if is_causal:
        places = ops.arange(slots)
        seen = ops.arange(length)[:, None] >= places
        mask = seen if mask is None else ops.logical_and(mask, seen)
    if mask is not None:
        scores = ops.where(mask, scores, _LOWEST)
    # Subtracting the maximum prevents overflow, and does not change the weights, so it needs no
    # gradient.
    most = ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
    weights = ops.exp(scores - most)
    total = ops.sum(weights, axis=-1, keepdims=True)
    weights = ops.reshape(weights, (batch, groups, -1, slots))
    attended = ops.reshape(ops.matmul(weights, values), (batch, heads, length, head_dim))
    return ops.cast(ops.transpose(attended / total, (0, 2, 1, 3)), dtype)
