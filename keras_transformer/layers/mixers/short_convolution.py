"""Mixer of neighbouring tokens: a short causal convolution between two gates."""

from typing import ClassVar

import keras
from keras import ops

from keras_transformer.config import Norm, ShortConvolution
from keras_transformer.layers.arguments import ChecksCall, SavesArguments, pack_outputs, part_of
from keras_transformer.layers.attention.masking import AttentionMask
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.mixers.causal_convolution import CausalConvolution
from keras_transformer.layers.neighbours import last_states
from keras_transformer.layers.remat import Rematerializable, no_inner_remat
from keras_transformer.support.checking import check_bool


@keras.saving.register_keras_serializable(package="keras_transformer")
class GatedShortConvolution(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Multiply by a gate, mix the last few tokens feature by feature, multiply by another gate.

    `output(c * convolution(b * x))`, where `b`, `c` and `x` are projections of the same states. A
    cache keeps only `b * x` of the last tokens.

    Args:
        part: `config.ShortConvolution`.
        norm: `config.Norm` of the block, which this mixer does not use.
        causal: bool, must be True: a token sees only itself and the tokens before it.
        kernel_initializer: initializer of the kernels.
        seed: int, which this mixer does not use.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, dim)`.
        mask: bool `(batch, length)`, True for real tokens. Padding counts as zeros.
        visibility: `AttentionMask`, with padding, packed documents and, with a cache, positions.
        cache: `KeyValueCache`, to which the states of this call are appended.

    Returns:
        Float `(batch, length, dim)`; in a tuple with it, the updated cache if one was given.

    Raises:
        ValueError: if the width of the states is odd, or `causal` is False.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import ShortConvolution
    from keras_transformer.layers.mixers.short_convolution import GatedShortConvolution

    mixer = GatedShortConvolution(ShortConvolution(size=3))
    assert mixer(np.random.rand(2, 7, 16)).shape == (2, 7, 16)
    ```

    Source: Liquid AI 2025, "LFM2 Technical Report", section 2.1.
    """

    option_rules: ClassVar = {"causal": check_bool}
    axes: ClassVar = {"inputs": ("batch", "length", "dim")}

    def __init__(
        self,
        part: ShortConvolution,
        norm: Norm | None = None,
        causal: bool = True,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part_of("part", part, ShortConvolution)
        if not causal:
            raise ValueError(
                "A short convolution sees only earlier tokens, so it is for decoders: received "
                "causal=False."
            )
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def _projection(self, units: int, name: str) -> Dense:
        with no_inner_remat():
            return Dense(
                units,
                use_bias=self.part.bias,
                kernel_initializer=self.kernel_initializer.clone(),
                name=name,
                dtype=self.dtype_policy,
            )

    def build(self, inputs_shape):
        dim = inputs_shape[-1]
        self.part.for_width(dim)
        self.input_dense = self._projection(3 * dim, "input")
        self.input_dense.build(inputs_shape)
        with no_inner_remat():
            self.convolution = CausalConvolution(
                self.part.size, self.part.bias, name="short_convolution", dtype=self.dtype_policy
            )
        self.convolution.build(inputs_shape)
        self.output_dense = self._projection(dim, "output")
        self.output_dense.build(inputs_shape)
        self.fixed = {"dim": dim}

    def call(self, inputs, mask=None, visibility=None, cache=None, training: bool = False):
        visibility = AttentionMask.given(visibility, mask)
        before, after, x = ops.split(self.input_dense(inputs), 3, axis=-1)
        states, cache = last_states(before * x, self.part.size, visibility, cache)
        return pack_outputs(self.output_dense(after * self.convolution(states)), cache)

    def compute_mask(self, inputs, mask=None, **kwargs):
        return mask

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)
