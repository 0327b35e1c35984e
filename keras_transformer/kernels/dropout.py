"""Dropout with very cheap random numbers.

On PyTorch, which usually runs uncompiled, its own generator draws the numbers: on a CPU 64 bits for
four elements, on a GPU in a fused operation. On other backends the index of an element is hashed,
which XLA fuses into the multiplication.
"""

import math

from keras import ops

from keras_transformer.kernels.device import on
from keras_transformer.kernels.values import is_traced


def has_quick_generator() -> bool:
    """Return True if the backend's own generator is fastest."""
    return on("torch")


def drop(inputs, rate: float):
    """Set a share `rate` of a PyTorch tensor's elements to 0; divide the others by `1 - rate`."""
    import torch

    exact = 0 < round(rate * 2**16) < 2**16
    if inputs.device.type == "cpu" and exact and not is_traced():
        return _by_quarters_of_draws(inputs, rate)
    return torch.nn.functional.dropout(inputs, p=rate, training=True)


def drop_by_place(inputs, rate: float, seed):
    """Drop elements as `drop` does, by hashing their indices with a seed of two numbers."""
    kept = random_bits(ops.shape(inputs), seed) >= _int(round(rate * 2**32))
    scale = ops.cast(1.0 / (1.0 - rate), inputs.dtype)
    return ops.where(kept, inputs * scale, ops.zeros((), inputs.dtype))


def _by_quarters_of_draws(inputs, rate: float):
    """Drop elements of a PyTorch tensor on a CPU, four for each number that is drawn."""
    import torch

    count, dropped = inputs.numel(), round(rate * 2**16)
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    # Each 16 bits are a number from -(2 ** 15) up; the lowest numbers mean a dropped element.
    kept = draws.view(torch.int16)[:count].view(inputs.shape) >= dropped - 2**15
    return inputs * kept.to(inputs.dtype).mul_(1.0 / (1.0 - dropped / 2**16))


def random_bits(shape, seed):
    """Return random-looking numbers below 2 ** 32 of shape `shape`, for a seed of two numbers."""
    first, draw = ops.cast(seed[0], _INTEGER), ops.cast(seed[1], _INTEGER)
    places = ops.reshape(ops.arange(math.prod(shape), dtype="int32"), shape)
    # The second half of the seed counts draws, and successive draws must not give similar numbers.
    drawn = _mixed(_wrapped(draw * _int(0x9E3779B9) + first))
    key = _wrapped(drawn * _int(0x85EBCA6B) + first)
    return _mixed(_mixed(_wrapped(ops.cast(places, _INTEGER) + drawn)) ^ key)


def random_shares(shape, seed):
    """Return random-looking float32 numbers from 0 to below 1, as `random_bits` does."""
    bits = ops.right_shift(random_bits(shape, seed), _int(8))  # as many as float32 keeps
    return ops.cast(bits, "float32") * 2.0**-24


def _mixed(x):
    x = _wrapped((x ^ ops.right_shift(x, _int(16))) * _int(0x85EBCA6B))
    x = _wrapped((x ^ ops.right_shift(x, _int(13))) * _int(0xC2B2AE35))
    return x ^ ops.right_shift(x, _int(16))


# PyTorch's 32-bit integers are signed.
_INTEGER = "int64" if on("torch") else "uint32"


def _wrapped(x):
    return x & _int(2**32 - 1) if _INTEGER == "int64" else x


def _int(value: int):
    return ops.convert_to_tensor(value, _INTEGER)
