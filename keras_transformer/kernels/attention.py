"""Dot-product attention in one pass, by the kernel of the device.

| device | PyTorch | JAX | TensorFlow |
|---|---|---|---|
| CPU | its fused kernel; two products for a few scores of bfloat16 | `xla_attention` | the same |
| CUDA | its fused kernel, with dropout of the weights | cuDNN's for 16 bits, else XLA | Keras's |

A fused kernel keeps no scores for the gradient, and no matrix of all pairs.
"""

from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.kernels import xla_attention
from keras_transformer.kernels.device import device, in_program, on

# Head sizes that cuDNN's fused attention supports: multiples of the first, up to the second.
_CUDNN_STEP, _CUDNN_MOST = 8, 128
_HALF = ("float16", "bfloat16")
# Slots of a cache that one processor of a GPU reads quickly, and number of heads, over all rows,
# that occupy all its processors.
_FEW_SLOTS, _MANY_HEADS = 1024, 128


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
        from keras_transformer.kernels import torch_attention

        return torch_attention.attention(queries, keys, values, **options, dropout=dropout)
    if keys.shape[2] == 1:
        # TensorFlow's kernel can share key heads among groups, but not a single key head.
        keys, values = (ops.repeat(x, queries.shape[2], axis=2) for x in (keys, values))
    return kernel_of(queries, keys, bias is not None or mask is not None)(
        queries, keys, values, **options
    )


def cached_attention(queries, keys, values, bias=None, mask=None, scale=None):
    """Return `attention` to keys and values of a cache, `(batch, key_heads, slots, head_dim)`.

    Only on PyTorch, and only if `takes_cached`. Bias and mask may both be given.
    """
    from keras_transformer.kernels import torch_attention

    return torch_attention.cached_attention(queries, keys, values, bias, mask, scale)


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

    The attention that Keras calls on a CPU takes up to twice as long as `xla_attention`, and there
    TensorFlow sums bfloat16 in bfloat16, depending on the number of threads and the processor: 512
    equal weights then sum to a half, not to one.
    """
    in_float32 = keras.backend.standardize_dtype(queries.dtype) == "float32"
    if device().is_cpu and (in_float32 or on("tensorflow")):
        return xla_attention.attention
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
