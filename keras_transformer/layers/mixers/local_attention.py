"""Mixer of attention to a few states before each state, whose scores depend on the distance."""

import math
from typing import ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.config import LocalAttention, Norm
from keras_transformer.layers.arguments import (
    ChecksCall,
    SavesArguments,
    part_of,
    refuse_unused,
)
from keras_transformer.layers.attention.chunks import SequenceBlocks
from keras_transformer.layers.attention.masking import AttentionMask
from keras_transformer.layers.attention.multi_head_attention import masked, softmax
from keras_transformer.layers.dense import ClippedDense, Dense
from keras_transformer.layers.remat import Rematerializable, no_inner_remat
from keras_transformer.support.checking import check_bool

_LONGEST_WAVE = 10_000.0
_KEY_SCALE = math.log1p(math.e) / math.log(2)


@keras.saving.register_keras_serializable(package="keras_transformer")
class LocalAttentionMixer(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Attend to a state and a few before it: time and memory grow linearly with the length.

    Args:
        part: `config.LocalAttention`.
        norm: `config.Norm` of the block, which this mixer does not use.
        causal: bool, must be False: there is no cache for decoding.
        kernel_initializer: initializer of the kernels.
        seed: int, which this mixer does not use.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, dim)`.
        mask: bool `(batch, length)`, True for real states, which see no others.
        visibility: `AttentionMask`, with padding.

    Returns:
        Float `(batch, length, dim)`.

    Raises:
        ValueError: if `causal` is True, there is a cache, or documents are packed.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import LocalAttention
    from keras_transformer.layers.mixers.local_attention import LocalAttentionMixer
    from keras import ops

    mixer, x = LocalAttentionMixer(LocalAttention(num_heads=2, size=3)), np.random.rand(1, 9, 8)
    before = ops.convert_to_numpy(mixer(x))
    x[:, 4] += 1
    changed = np.abs(ops.convert_to_numpy(mixer(x)) - before).max(axis=(0, 2)) > 0
    assert changed.nonzero()[0].tolist() == [4, 5, 6]
    ```

    Source: Zhang et al. 2023, "Google USM", section 2.2, https://arxiv.org/abs/2303.01037, in the
    published code of Gemma 3n and Gemma 4.
    """

    option_rules: ClassVar = {"causal": check_bool}
    axes: ClassVar = {"inputs": ("batch", "length", "dim")}

    def __init__(
        self,
        part: LocalAttention,
        norm: Norm | None = None,
        causal: bool = False,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part_of("part", part, LocalAttention)
        if causal:
            raise ValueError("Local attention has no cache, so it is for encoders: causal=False.")
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def build(self, inputs_shape):
        width = inputs_shape[-1]
        self.part.for_width(width)
        self.head_dim = width // self.part.num_heads
        # softplus(0) / ln 2 is 1
        self.query_scale = self.add_weight((self.head_dim,), "zeros", name="query_scale")
        kinds = dict.fromkeys(
            ("query", "key", "value", "output"), ClippedDense if self.part.clipped else Dense
        )
        with no_inner_remat():
            for name, kind in {"position_key": Dense, **kinds}.items():
                dense = kind(
                    width,
                    use_bias=False,
                    kernel_initializer=self.kernel_initializer.clone(),
                    name=name,
                    dtype=self.dtype_policy,
                )
                dense.build((*inputs_shape[:-1], width))
                setattr(self, f"{name}_dense", dense)
        self.fixed = {"dim": width}

    def call(self, inputs, mask=None, visibility=None, cache=None, training: bool = False):
        refuse_unused("local attention reads whole inputs.", cache=cache)
        visibility = AttentionMask.given(visibility, mask)
        if visibility.query_pack is not None:
            raise ValueError("Local attention would mix packed documents.")
        batch, length, width = ops.shape(inputs)
        size = self.part.size
        blocks = SequenceBlocks(length, size, 1, 0)
        scale = ops.softplus(ops.cast(self.query_scale, "float32")) / math.log(2)
        queries = blocks.queries(self._heads(self.query_dense(inputs)))
        queries = queries * ops.cast(scale * self.head_dim**-0.5, queries.dtype)
        keys = blocks.keys(self._heads(self.key_dense(inputs)))
        values = blocks.keys(self._heads(self.value_dense(inputs)))
        # Of each query of a block, counted from 0, and each key, from the block before.
        distances = size + np.arange(size)[:, None] - np.arange(2 * size)
        near = (distances >= 0) & (distances < size)
        factor = _KEY_SCALE if self.part.scale_keys else 1.0
        scores = ops.einsum("bqnh,bknh->bnqk", queries, keys * factor)
        of_distances = ops.take(self._position_keys(), np.clip(distances, 0, size - 1), axis=0)
        scores = scores + ops.einsum("bqnh,qknh->bnqk", queries, of_distances)
        cap = self.part.soft_cap
        scores = cap * ops.tanh(ops.cast(scores, "float32") / cap)
        real = visibility.padding
        real = ops.ones((batch, length), "bool") if real is None else ops.cast(real, "bool")
        real = blocks.keys(ops.cast(real, "int32")[..., None])[..., 0] > 0
        weights = softmax(masked(scores, ops.logical_and(real[:, None, None], near[None, None])))
        attended = ops.einsum("bnqk,bknh->bqnh", ops.cast(weights, values.dtype), values)
        return self.output_dense(ops.reshape(blocks.join(attended), (batch, length, width)))

    def _heads(self, x):
        batch, length, _ = ops.shape(x)
        return ops.reshape(x, (batch, length, self.part.num_heads, self.head_dim))

    def _position_keys(self):
        """Return the projected sinusoids of the distances, `(size, num_heads, head_dim)`."""
        half = self.fixed["dim"] // 2
        waves = np.exp(np.arange(half) * -(math.log(_LONGEST_WAVE) / max(half - 1, 1)))
        angles = np.arange(self.part.size)[:, None] * waves
        waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype("float32")
        keys = self.position_key_dense(ops.cast(waves, self.compute_dtype))
        return ops.reshape(keys, (self.part.size, self.part.num_heads, self.head_dim))

    def compute_mask(self, inputs, mask=None, **kwargs):
        return mask

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)
