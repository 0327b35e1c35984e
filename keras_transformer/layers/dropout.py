"""Dropout whose random numbers cost next to nothing."""

import math

import keras
from keras import ops

from keras_transformer.checking import check_choice, check_number, check_seed


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout` with a quicker source of random numbers.

    Dropout needs one number an element that looks random, and not the guarantees of the
    generators of JAX and TensorFlow, which take some hundred operations for each. Here it is the
    place of the element, hashed with the state of the layer's seed generator: about ten
    operations that are compiled into the multiplication by the mask, on as many devices as hold
    the tensor. With a `seed` the masks are the same on every backend. PyTorch compiles nothing
    here, so without a `seed` its own generator is used; on a CPU one draw of it, 64 bits, is for
    four elements, and the rate is rounded to a multiple of 2 ** -16.

    Args:
        rate: float in [0, 1), the share of the elements that become 0. The others are divided by
            `1 - rate`.
        noise_shape: None, since each element is drawn by itself.
        seed: int from 0 to 2**31 - 1, or None.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor of any shape.
        training: bool, False for the inputs as they are.
        seed: one of `next_seeds`, of this draw. Defaults to the next one of the layer.

    Returns:
        A tensor like `inputs`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import Dropout

    y = Dropout(0.25, seed=1)(np.ones((1000, 100), "float32"), training=True)
    assert abs(float(np.mean(np.asarray(y) == 0)) - 0.25) < 0.01
    ```

    Source: Srivastava et al. 2014, "Dropout", section 4; the hash is the last step of
    MurmurHash3 (Appleby 2011), twice, each time with one half of the seed.
    """

    def __init__(self, rate: float, noise_shape=None, seed: int | None = None, **kwargs):
        rate = check_number("rate", rate, at_least=0, below=1)
        check_choice("noise_shape", noise_shape, [None])
        seed = check_seed("seed", seed, none=True, bits=31)  # as many as all backends keep
        super().__init__(rate, noise_shape, seed, **kwargs)

    @property
    def _drawn_by_backend(self) -> bool:
        return keras.backend.backend() == "torch" and self.seed is None

    def next_seeds(self, count: int):
        """Those of so many draws, int `(count, 2)`, or None where PyTorch's generator draws."""
        if self._drawn_by_backend:
            return None
        return random_bits((count, 2), self.seed_generator.next())

    def call(self, inputs, training=False, seed=None):
        if not training or self.rate == 0:
            return super().call(inputs, training=training)
        if self._drawn_by_backend:
            if inputs.device.type == "cpu" and 0 < round(self.rate * 2**16) < 2**16:
                return _by_quarters_of_draws(inputs, self.rate)
            return super().call(inputs, training=training)
        seed = self.seed_generator.next() if seed is None else seed
        kept = random_bits(ops.shape(inputs), seed) >= _int(round(self.rate * 2**32))
        scale = ops.cast(1.0 / (1.0 - self.rate), inputs.dtype)
        return ops.where(kept, inputs * scale, ops.zeros((), inputs.dtype))


def _by_quarters_of_draws(inputs, rate: float):
    """Dropout of a tensor of PyTorch, whose generator for a CPU takes one draw after the other."""
    import torch

    count, dropped = inputs.numel(), round(rate * 2**16)
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    # Of 2 ** 16 numbers of 16 bits, from -(2 ** 15) on, the first are those of a dropped element.
    kept = draws.view(torch.int16)[:count].view(inputs.shape) >= dropped - 2**15
    return inputs * kept.to(inputs.dtype).mul_(1.0 / (1.0 - dropped / 2**16))


def random_bits(shape, seed):
    """Numbers below 2 ** 32 that look random, of `shape`, for a seed of two numbers."""
    first, draw = ops.cast(seed[0], _INTEGER), ops.cast(seed[1], _INTEGER)
    places = ops.reshape(ops.arange(math.prod(shape), dtype="int32"), shape)
    # The second half of the seed counts the draws: neighbours are not to give neighbours.
    drawn = _mixed(_wrapped(draw * _int(0x9E3779B9) + first))
    key = _wrapped(drawn * _int(0x85EBCA6B) + first)
    return _mixed(_mixed(_wrapped(ops.cast(places, _INTEGER) + drawn)) ^ key)


def _mixed(x):
    x = _wrapped((x ^ ops.right_shift(x, _int(16))) * _int(0x85EBCA6B))
    x = _wrapped((x ^ ops.right_shift(x, _int(13))) * _int(0xC2B2AE35))
    return x ^ ops.right_shift(x, _int(16))


# PyTorch's integers of 32 bits are signed.
_INTEGER = "int64" if keras.backend.backend() == "torch" else "uint32"


def _wrapped(x):
    return x & _int(2**32 - 1) if _INTEGER == "int64" else x


def _int(value: int):
    return ops.convert_to_tensor(value, _INTEGER)
