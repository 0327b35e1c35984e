"""Dot-product attention in one pass, by the kernel of the device.

| device | PyTorch | JAX | TensorFlow |
|---|---|---|---|
| CPU | its fused kernel; two products for a few scores of bfloat16 | `on_xla` | the same |
| CUDA | its fused kernel, with dropout of the weights | cuDNN's for 16 bits, else XLA | Keras's |

A fused kernel keeps no scores for the gradient, and no matrix of all pairs.
"""

from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.kernels.device import device, in_program, on

# Head sizes that cuDNN's fused attention supports: multiples of the first, up to the second.
_CUDNN_STEP, _CUDNN_MOST = 8, 128
_HALF = ("float16", "bfloat16")
# Slots of a cache that one processor of a GPU reads quickly, and number of heads, over all rows,
# that occupy all its processors.
_FEW_SLOTS, _MANY_HEADS = 1024, 128
# More bfloat16 scores than this, 64 MB as float32, go to PyTorch's kernel, which keeps none.
_MOST_SCORES = 2**24
# The score on XLA of a key that a query does not see.
_LOWEST = -1e30


def attention(queries, keys, values, bias=None, mask=None, scale=None, is_causal=False, dropout=0):
    """Return the weighted sum of the values, `(batch, length, heads, head_dim)`.

    Args:
        queries: float `(batch, length, heads, head_dim)`.
        keys: float `(batch, slots, key_heads, head_dim)`; equally many query heads share each.
        values: float, the same shape as the keys.
        bias: float, broadcastable to `(batch, heads, length, slots)`, added to the scores. At most
            one of bias and mask may be given.
        mask: bool, broadcastable to the same shape, True for keys that a query sees.
        scale: float, factor of the scores. Defaults to `head_dim ** -0.5`.
        is_causal: bool, whether query `i` sees only the keys up to `i`. Not with a bias or a mask.
        dropout: float in [0, 1), the share of the weights that become 0. Requires `takes_dropout`.
    """
    options = {"bias": bias, "mask": mask, "scale": scale, "is_causal": is_causal}
    if on("torch"):
        return _on_torch(queries, keys, values, **options, dropout=dropout)
    if keys.shape[2] == 1:
        # TensorFlow's kernel can share key heads among groups, but not a single key head.
        keys, values = (ops.repeat(x, queries.shape[2], axis=2) for x in (keys, values))
    return kernel_of(queries, keys, bias is not None or mask is not None)(
        queries, keys, values, **options
    )


def cached_attention(queries, keys, values, bias=None, mask=None, scale=None):
    """Return `attention` to keys and values of a cache, `(batch, key_heads, slots, head_dim)`.

    Only on PyTorch, and only if `takes_cached`. Bias and mask may both be given. The kernel cannot
    share key heads if there is a mask, so the query heads that share a key head become further
    queries of one head.
    """
    import torch

    shape, key_heads = queries.shape, keys.shape[1]
    queries, groups = queries.transpose(1, 2), shape[2] // key_heads
    if mask is not None and bias is not None:
        bias = torch.where(mask, bias.to(queries.dtype), torch.finfo(queries.dtype).min / 2)
    elif mask is not None:
        bias = _as_bias(mask, queries)
    if groups > 1:
        queries = queries.reshape(shape[0], key_heads, -1, shape[3])
        if bias is not None:
            heads, length = bias.shape[1:3]
            # (batch, key_heads or 1, groups or 1, length or 1, slots)
            each = bias.unflatten(1, (key_heads, groups) if heads > 1 else (1, 1))
            if heads > 1 or length > 1:
                each = each.expand(-1, -1, groups, shape[1], -1)
            bias = each.flatten(2, 3)
    attended = torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=bias, scale=scale
    )
    return attended.reshape(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)


def takes_cached(queries, keys) -> bool:
    """Return True if a fused kernel attends to cached keys `(batch, key_heads, slots, head_dim)`.

    Only PyTorch has one, on a GPU: one kernel instead of six or seven. It reads a head's slots one
    after the other: if few heads have many slots, two products, which split them, are faster.
    """
    if not on("torch") or queries.device.type == "cpu":
        return False
    return keys.shape[2] <= _FEW_SLOTS or keys.shape[0] * keys.shape[1] >= _MANY_HEADS


def kernel_of(queries, keys, masked: bool) -> Callable:
    """Return the attention function of JAX or TensorFlow for these tensors.

    The attention that Keras calls on a CPU takes up to twice as long as `on_xla`, and there
    TensorFlow sums bfloat16 in bfloat16, depending on the number of threads and the processor: 512
    equal weights then sum to a half, not to one.
    """
    in_float32 = keras.backend.standardize_dtype(queries.dtype) == "float32"
    if device().is_cpu and (in_float32 or on("tensorflow")):
        return on_xla
    if _is_cudnn(queries, keys, masked):
        from keras_transformer.kernels import jax_attention

        return jax_attention.cudnn
    return ops.dot_product_attention


def takes(dtype) -> bool:
    """Return True if there is a kernel for queries of this dtype."""
    # JAX's kernel needs a float16 product that compiled programs on a CPU do not have.
    half = keras.backend.standardize_dtype(dtype) == "float16"
    return not (on("jax") and device().is_cpu and half)


def takes_dropout(queries) -> bool:
    """Return True if the kernel for these queries can drop weights: PyTorch's on a GPU."""
    return on("torch") and queries.device.type == "cuda"


def keeps_scores(queries) -> bool:
    """Return True if the kernel for these queries keeps the scores of all pairs in memory."""
    return not (on("torch") or _is_cudnn(queries, queries, masked=True))


def scores_at_a_time(queries) -> int | None:
    """Return the most bytes of scores that attention should make at a time; None means no limit.

    There is a limit on JAX, in a program, where the kernel keeps the scores: the scores of a group
    of rows then stay in a processor's caches.
    """
    if not on("jax") or not in_program(queries) or not keeps_scores(queries):
        return None
    return device().scores_bytes


def products(queries, keys, few: bool):
    """Return the products `(..., length, slots)` of `(..., length, dim)` and `(..., slots, dim)`.

    With few queries XLA would transpose and copy all keys; in this order it transposes the queries.
    PyTorch copies neither, and takes up to five times as long in this order.
    """
    if few and not on("torch"):
        return ops.swapaxes(ops.matmul(keys, ops.swapaxes(queries, -1, -2)), -1, -2)
    return ops.matmul(queries, ops.swapaxes(keys, -1, -2))


def _is_cudnn(queries, keys, masked: bool) -> bool:
    """Return True if cuDNN's fused attention, called by JAX, takes these tensors."""
    if not on("jax") or device().kind != "cuda":
        return False
    head_dim, lengths = queries.shape[-1], (queries.shape[1], keys.shape[1])
    return (
        keras.backend.standardize_dtype(queries.dtype) in _HALF
        and head_dim % _CUDNN_STEP == 0
        and head_dim <= _CUDNN_MOST
        # cuDNN computes the gradient of scores with a bias or a mask two keys at a time.
        and not (masked and any(length % 2 for length in lengths))
    )


def _on_torch(queries, keys, values, bias=None, mask=None, scale=None, is_causal=False, dropout=0):
    """Compute `attention` on PyTorch; all tensors are `(batch, length, heads, head_dim)`.

    It avoids the copies of queries, keys and values that Keras makes for the kernel: for attention
    in a window on a CPU they took a quarter of the time.
    """
    import torch

    groups = queries.shape[2] // keys.shape[2]
    queries, keys, values = (x.transpose(1, 2) for x in (queries, keys, values))
    # The kernels of a GPU share key heads, but not together with a bias.
    shares = groups > 1 and queries.device.type == "cuda" and bias is None and mask is None
    if groups > 1 and not shares:
        keys, values = (x.repeat_interleave(groups, dim=1) for x in (keys, values))
    if mask is not None:
        bias = _as_bias(mask, queries)
    by_products = not is_causal and _suits_products(queries, keys, values)
    if by_products and (bias is None or not bias.requires_grad):
        scale = queries.shape[-1] ** -0.5 if scale is None else scale
        scores = torch.matmul(queries * scale, keys.transpose(2, 3)).float()
        scores = scores if bias is None else scores.add_(bias)
        attended = torch.matmul(torch.softmax(scores, -1).to(values.dtype), values)
    else:
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=bias,
            dropout_p=dropout,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=shares,
        )
    return attended.transpose(1, 2)


def _as_bias(mask, queries):
    """Return a mask as a finite bias, so that a query that sees no key gives a finite result."""
    import torch

    lowest = torch.finfo(queries.dtype).min / 2
    # From two Python floats the bias would be 32-bit. It depends only on the dtype of the queries,
    # so that a trace has one bias for all layers.
    zero = torch.zeros((), dtype=queries.dtype, device=queries.device)
    return torch.where(mask, zero, lowest)


def _suits_products(queries, keys, values) -> bool:
    """Return True if two bfloat16 products by oneDNN are faster than the fused kernel.

    On a CPU they are up to 2.5 times as fast, as long as the memory of the scores does not matter.
    """
    import torch

    from keras_transformer.kernels.torch_products import takes_bfloat16

    needs_gradient = any(x.requires_grad for x in (queries, keys, values))
    return (
        queries.dtype == torch.bfloat16
        and queries.device.type == "cpu"
        and takes_bfloat16()
        and not (needs_gradient and torch.is_grad_enabled())
        and queries.numel() // queries.shape[-1] * keys.shape[2] <= _MOST_SCORES
        and not torch.compiler.is_compiling()
    )


def on_xla(queries, keys, values, bias=None, mask=None, scale=None, is_causal=False):
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
