"""PyTorch's fused attention. Imported only on PyTorch; see `attention`."""

import torch

from keras_transformer.kernels.torch_products import takes_bfloat16

# More bfloat16 scores than this, 64 MB as float32, go to the kernel that keeps none.
_MOST_SCORES = 2**24


def attention(queries, keys, values, bias=None, mask=None, scale=None, is_causal=False, dropout=0):
    """Compute `attention.attention`: all tensors are `(batch, length, heads, head_dim)`.

    It avoids the copies of queries, keys and values that Keras makes for the kernel: for attention
    in a window on a CPU they took a quarter of the time.
    """
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


def cached_attention(queries, keys, values, bias=None, mask=None, scale=None):
    """Compute `attention.cached_attention`; the cache is `(batch, key_heads, slots, head_dim)`.

    The kernel cannot share key heads if there is a mask, so the query heads that share a key head
    become further queries of one head.
    """
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


def _as_bias(mask, queries):
    """Return a mask as a finite bias, so that a query that sees no key gives a finite result."""
    lowest = torch.finfo(queries.dtype).min / 2
    # From two Python floats the bias would be 32-bit. It depends only on the dtype of the queries,
    # so that a trace has one bias for all layers.
    zero = torch.zeros((), dtype=queries.dtype, device=queries.device)
    return torch.where(mask, zero, lowest)


def _suits_products(queries, keys, values) -> bool:
    """Return True if two bfloat16 products by oneDNN are faster than the fused kernel.

    On a CPU they are up to 2.5 times as fast, as long as the memory of the scores does not matter.
    """
    needs_gradient = any(x.requires_grad for x in (queries, keys, values))
    return (
        queries.dtype == torch.bfloat16
        and queries.device.type == "cpu"
        and takes_bfloat16()
        and not (needs_gradient and torch.is_grad_enabled())
        and queries.numel() // queries.shape[-1] * keys.shape[2] <= _MOST_SCORES
        and not torch.compiler.is_compiling()
    )
