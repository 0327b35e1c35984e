"""Mixer without weights: Fourier transforms over the features and over the tokens."""

import functools
from typing import ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.config import Fourier, Norm
from keras_transformer.layers.arguments import ChecksCall, SavesArguments, part_of, refuse_unused
from keras_transformer.layers.attention.masking import AttentionMask
from keras_transformer.layers.remat import Rematerializable
from keras_transformer.support.checking import check_bool


@keras.saving.register_keras_serializable(package="keras_transformer")
class FourierMixer(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Take the real part of a Fourier transform over the features and the tokens.

    The transform over the tokens has as many waves as a text has tokens, without padding and other
    packed documents, so that a text in a batch gives what it gives alone. (The published model also
    mixes the padding in.)

    Args:
        part: `config.Fourier`.
        norm: `config.Norm` of the block, which this mixer does not use.
        causal: bool, must be False: each token sees all others.
        kernel_initializer: initializer of kernels, which this mixer does not use.
        seed: int, which this mixer does not use.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, dim)`.
        mask: bool `(batch, length)`, True for real tokens.
        visibility: `AttentionMask`, with padding and packed documents.

    Returns:
        Float `(batch, length, dim)`.

    Raises:
        ValueError: if `causal` is True, or there is a cache.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import Fourier
    from keras_transformer.layers.mixers.fourier import FourierMixer

    x = np.random.rand(2, 7, 16).astype("float32")
    assert np.allclose(FourierMixer(Fourier())(x), np.fft.fft2(x).real, atol=1e-4)
    ```

    Source: Lee-Thorp et al. 2021, "FNet: Mixing Tokens with Fourier Transforms", section 3, which
    also computes short transforms as products with matrices.
    """

    option_rules: ClassVar = {"causal": check_bool}
    axes: ClassVar = {"inputs": ("batch", "length", "dim")}

    def __init__(
        self,
        part: Fourier,
        norm: Norm | None = None,
        causal: bool = False,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part_of("part", part, Fourier)
        if causal:
            raise ValueError(
                "A Fourier transform mixes each token with all others, so it is for encoders: "
                "received causal=True."
            )
        self.supports_masking = True

    def build(self, inputs_shape):
        self.fixed = {"dim": inputs_shape[-1]}

    def call(self, inputs, mask=None, visibility=None, cache=None, training: bool = False):
        refuse_unused("a Fourier transform reads whole texts.", cache=cache)
        visibility = AttentionMask.given(visibility, mask)
        x = ops.cast(inputs, "float32")
        parts = [
            ops.matmul(x, ops.convert_to_tensor(wave)) for wave in _waves_of_features(x.shape[-1])
        ]
        angles, same = _angles(x, visibility)
        waves = (ops.cos(angles), ops.sin(angles))
        if same is not None:
            waves = [ops.where(same, wave, 0.0) for wave in waves]
        # The product of two complex numbers has the real part ac - bd.
        cosines, sines = (ops.matmul(wave, part) for wave, part in zip(waves, parts, strict=True))
        return ops.cast(cosines - sines, self.compute_dtype)

    def compute_mask(self, inputs, mask=None, **kwargs):
        return mask

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)


@functools.lru_cache(maxsize=8)
def _waves_of_features(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and sines of the transform over `dim` features, each `(dim, dim)`."""
    places = np.arange(dim)
    angles = 2 * np.pi / dim * (np.outer(places, places) % dim)
    return np.cos(angles).astype("float32"), np.sin(angles).astype("float32")


def _angles(x, visibility: AttentionMask):
    """Return the angles of the transform over the tokens, and which pairs are of one text.

    Returns:
        Float32 `(batch or 1, length, length)`; and bool of the same shape, or None if all pairs
        are.
    """
    length = ops.shape(x)[1]
    places, count, same = ops.arange(length, dtype="int32")[None], length, None
    padding, packs = visibility.padding, visibility.query_pack
    if padding is not None or packs is not None:
        real = ops.ones(ops.shape(x)[:2], "bool") if padding is None else ops.cast(padding, "bool")
        same = ops.logical_and(real[:, :, None], real[:, None, :])
        if packs is not None:
            same = ops.logical_and(same, ops.equal(packs[:, :, None], packs[:, None, :]))
        together = ops.cast(same, "int32")
        count = ops.maximum(ops.sum(together, axis=-1, keepdims=True), 1)
        before = places[:, None, :] < places[:, :, None]
        places = ops.sum(ops.where(before, together, 0), axis=-1)
    products = places[:, :, None] * places[:, None, :]
    # Whole turns are left out, since float32 would round large angles.
    turns = ops.cast(ops.mod(products, count), "float32") / ops.cast(count, "float32")
    return 2 * np.pi * turns, same
