"""Attention of dot products in one pass, by the kernel of the device.

| device | PyTorch | JAX | TensorFlow |
|---|---|---|---|
| CPU | its fused kernel; two products for a few scores of bfloat16 | `xla_attention` | the same |
| CUDA | its fused kernel, with dropout of the weights | cuDNN's for 16 bits, else XLA | Keras's |

A kernel that is fused keeps no scores for the gradient, and no matrix of all pairs.
"""

from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.kernels import xla_attention
from keras_transformer.kernels.device import device, in_program, on

# The head sizes that cuDNN's fused attention has: multiples of the first, up to the second.
_CUDNN_STEP, _CUDNN_MOST = 8, 128
_HALF = ("float16", "bfloat16")


def attention(queries, keys, values, bias=None, mask=None, scale=None, is_causal=False, dropout=0):
    """The weighted sum of the values, `(batch, length, heads, head_dim)`.

    Args:
        queries: float `(batch, length, heads, head_dim)`.
        keys: float `(batch, slots, key_heads, head_dim)`; each is shared by as many query heads.
        values: as the keys.
        bias: float, broadcastable to `(batch, heads, length, slots)`, added to the scores. Of a
            bias and a mask at most one is given.
        mask: bool, broadcastable to the same shape, True for keys that a query sees.
        scale: float, the factor of the scores. Defaults to `head_dim ** -0.5`.
        is_causal: bool, whether query `i` sees the keys up to `i`. Without bias and mask.
        dropout: float in [0, 1), the share of the weights that become 0. Where `takes_dropout`.
    """
    options = {"bias": bias, "mask": mask, "scale": scale, "is_causal": is_causal}
    if on("torch"):
        from keras_transformer.kernels import torch_attention

        return torch_attention.attention(queries, keys, values, **options, dropout=dropout)
    if keys.shape[2] == 1:
        # TensorFlow's kernel shares key heads among groups, but not a single one.
        keys, values = (ops.repeat(x, queries.shape[2], axis=2) for x in (keys, values))
    return kernel_of(queries, keys, bias is not None or mask is not None)(
        queries, keys, values, **options
    )


def kernel_of(queries, keys, masked: bool) -> Callable:
    """The attention of JAX or TensorFlow for such tensors.

    What Keras calls on a CPU takes up to twice as long as `xla_attention`, and TensorFlow adds up
    bfloat16 in bfloat16 there, depending on the number of threads and the processor: 512 equal
    weights give a half, not one.
    """
    in_float32 = keras.backend.standardize_dtype(queries.dtype) == "float32"
    if device().is_cpu and (in_float32 or on("tensorflow")):
        return xla_attention.attention
    if _is_cudnn(queries, keys, masked):
        from keras_transformer.kernels import jax_attention

        return jax_attention.cudnn
    return ops.dot_product_attention


def takes(dtype) -> bool:
    """Return whether there is a kernel for queries of this dtype."""
    # JAX's asks for a product of float16 that compiled programs on a CPU do not have.
    half = keras.backend.standardize_dtype(dtype) == "float16"
    return not (on("jax") and device().is_cpu and half)


def takes_dropout(queries) -> bool:
    """Return whether the kernel for these queries can drop weights: PyTorch's on a GPU."""
    return on("torch") and queries.device.type == "cuda"


def keeps_scores(queries) -> bool:
    """Return whether the kernel for these queries keeps the scores of all pairs in memory."""
    return not (on("torch") or _is_cudnn(queries, queries, masked=True))


def scores_at_a_time(queries) -> int | None:
    """Return how many bytes of scores attention makes at a time, None for no bound.

    On JAX, in a program, where the kernel keeps them: what a group of rows makes stays in a
    processor's caches.
    """
    if not on("jax") or not in_program(queries) or not keeps_scores(queries):
        return None
    return device().scores_bytes


def products(queries, keys, few: bool):
    """The dot products `(..., length, slots)` of `(..., length, dim)` and `(..., slots, dim)`.

    Of few queries XLA would copy all keys, transposed: here it is the queries that are. PyTorch
    copies neither, and takes up to five times as long for this order.
    """
    if few and not on("torch"):
        return ops.swapaxes(ops.matmul(keys, ops.swapaxes(queries, -1, -2)), -1, -2)
    return ops.matmul(queries, ops.swapaxes(keys, -1, -2))


def _is_cudnn(queries, keys, masked: bool) -> bool:
    """Whether cuDNN's fused attention, which JAX has, takes such tensors."""
    if not on("jax") or device().kind != "cuda":
        return False
    head_dim, lengths = queries.shape[-1], (queries.shape[1], keys.shape[1])
    return (
        keras.backend.standardize_dtype(queries.dtype) in _HALF
        and head_dim % _CUDNN_STEP == 0
        and head_dim <= _CUDNN_MOST
        # The gradient of scores with a bias or a mask is made two keys at a time.
        and not (masked and any(length % 2 for length in lengths))
    )
