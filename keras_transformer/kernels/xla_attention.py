"""Attention of dot products in those operations that XLA compiles best for a CPU."""

from keras import ops

_LOWEST = -1e30


def attention(queries, keys, values, bias=None, mask=None, scale=None, is_causal=False):
    """As `keras.ops.dot_product_attention`, in float32: all `(batch, length, heads, head_dim)`.

    Of the backends' own it differs in what the matrices of all pairs go through, which is most of
    the time: heads come first, so that none is transposed; the queries are scaled, and not the
    scores; and the sum of the weights divides what they give, and not each of them.
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
    # Groups of query heads that share a key head are rows of one product.
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
    # Whatever is subtracted, the weights are the same.
    most = ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
    weights = ops.exp(scores - most)
    total = ops.sum(weights, axis=-1, keepdims=True)
    weights = ops.reshape(weights, (batch, groups, -1, slots))
    attended = ops.reshape(ops.matmul(weights, values), (batch, heads, length, head_dim))
    return ops.cast(ops.transpose(attended / total, (0, 2, 1, 3)), dtype)
