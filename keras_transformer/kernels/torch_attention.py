"""PyTorch's fused attention. Imported on PyTorch alone; see `attention`."""

import torch

from keras_transformer.kernels.torch_tracing import onednn

# More scores of bfloat16 than these, 64 MB as float32, are for the kernel that keeps none.
_MOST_SCORES = 2**24


def attention(queries, keys, values, bias=None, mask=None, scale=None, is_causal=False, dropout=0):
    """As `attention.attention`: all `(batch, length, heads, head_dim)`.

    Without the copies of queries, keys and values that Keras makes for the kernel: of a window on
    a CPU they took a quarter of the time.
    """
    groups = queries.shape[2] // keys.shape[2]
    queries, keys, values = (x.transpose(1, 2) for x in (queries, keys, values))
    # The kernels of a GPU share key heads, but not where there is a bias too.
    shares = groups > 1 and queries.device.type == "cuda" and bias is None and mask is None
    if groups > 1 and not shares:
        keys, values = (x.repeat_interleave(groups, dim=1) for x in (keys, values))
    if mask is not None:
        # Finite, so that a query that sees no key gives a number.
        lowest = torch.finfo(queries.dtype).min / 2
        zero = queries.new_zeros(())  # beside a Python float `lowest` would be of 32 bits
        bias = torch.where(mask, zero, lowest)
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


def _suits_products(queries, keys, values) -> bool:
    """Whether two products of bfloat16, which go to oneDNN, are quicker than the fused kernel.

    On a CPU they are, up to twice and a half, while the scores are not a matter of memory.
    """
    needs_gradient = any(x.requires_grad for x in (queries, keys, values))
    return (
        queries.dtype == torch.bfloat16
        and queries.device.type == "cpu"
        and onednn.takes_bfloat16()
        and not (needs_gradient and torch.is_grad_enabled())
        and queries.numel() // queries.shape[-1] * keys.shape[2] <= _MOST_SCORES
        and not torch.compiler.is_compiling()
    )
