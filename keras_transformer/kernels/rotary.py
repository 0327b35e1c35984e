"""Rotation of pairs of features, in few operations on PyTorch's GPU."""

import functools

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.device import on
from keras_transformer.kernels.values import constant


def rotate(x, sin, cos, interleaved: bool):
    """Rotate pairs of the first features of `(batch, length, heads, width)`.

    Args:
        x: float tensor, rotated as float32 and returned in its own dtype.
        sin: float32 `(batch or 1, length, 1, pairs)`, sine of the angle of each pair.
        cos: float32, cosine of the angles, with the same shape.
        interleaved: bool, whether feature `2 i` is paired with `2 i + 1` instead of `i` with
            `i + pairs`.
    """
    if on("torch") and x.device.type != "cpu":
        import torch

        if not (torch.is_grad_enabled() and x.requires_grad):
            return by_partners(x, sin, cos, interleaved)
    width, pairs = x.shape[-1], sin.shape[-1]
    dtype, x = x.dtype, ops.cast(x, "float32")
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    first, second = turned[..., :pairs], turned[..., pairs:]
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
    parts = [first * cos - second * sin, second * cos + first * sin]
    if interleaved:
        parts = [ops.reshape(ops.stack(parts, axis=-1), ops.shape(turned))]
    rotated = ops.concatenate([*parts, rest] if 2 * pairs < width else parts, axis=-1)
    return ops.cast(rotated, dtype)


def by_partners(x, sin, cos, interleaved: bool):
    """Rotate as `rotate` does, on PyTorch, by combining each feature with its partner.

    This takes four operations. Tensors that depend only on the angles are the same for all layers,
    so a trace makes them once per step.
    """
    import torch

    width, pairs = x.shape[-1], sin.shape[-1]
    pair, partner, signs = _places(width, pairs, interleaved, x.device)
    sin, cos = sin.index_select(-1, pair) * signs, cos.index_select(-1, pair)
    if 2 * pairs < width:
        sin = torch.nn.functional.pad(sin, (0, width - 2 * pairs))
        cos = torch.nn.functional.pad(cos, (0, width - 2 * pairs), value=1.0)
    return torch.addcmul(x * cos, x.index_select(-1, partner), sin).to(x.dtype)


@functools.lru_cache(maxsize=64)
def _places(width: int, pairs: int, interleaved: bool, device) -> tuple:
    """Return pair and sign of each rotated feature, and each feature's partner, on a device."""
    places = np.arange(2 * pairs)
    is_first = places % 2 == 0 if interleaved else places < pairs
    partner = np.arange(width)
    partner[: 2 * pairs] += np.where(is_first, 1, -1) * (1 if interleaved else pairs)
    pair = places // 2 if interleaved else places % pairs
    with keras.device(str(device)):
        return constant(pair), constant(partner), constant(np.where(is_first, -1, 1).astype("f4"))
