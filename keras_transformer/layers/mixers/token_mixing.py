"""Mixer of a fixed number of tokens: one feed-forward layer over the tokens of each feature."""

from typing import ClassVar

import keras
from keras import ops

from keras_transformer.config import Norm, TokenMixing
from keras_transformer.layers.arguments import ChecksCall, SavesArguments, part_of, refuse_unused
from keras_transformer.layers.attention.masking import AttentionMask
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.remat import Rematerializable, no_inner_remat
from keras_transformer.support.checking import check_bool


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenMixer(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Apply one feed-forward layer to the tokens of each feature, or of each feature and group.

    The layer has a weight for each place, so all inputs have the same number of tokens.

    Args:
        part: `config.TokenMixing`.
        norm: `config.Norm` of the block, which this mixer does not use.
        causal: bool, must be False: each token sees all others.
        kernel_initializer: initializer of the kernels.
        seed: int, which this mixer does not use.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, dim)`.
        mask: bool `(batch, length)`, True for real tokens. Padding counts as zeros.
        visibility: `AttentionMask`, with padding.

    Returns:
        Float `(batch, length, dim)`.

    Raises:
        ValueError: if `causal` is True, there is a cache, documents are packed, or the number of
            tokens is not that of the part.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import TokenMixing
    from keras_transformer.layers.mixers.token_mixing import TokenMixer

    mixer = TokenMixer(TokenMixing(length=7, dim=14, softmax_gate=True))
    assert mixer(np.random.rand(2, 7, 16)).shape == (2, 7, 16)
    ```

    Source: Tolstikhin et al. 2021, "MLP-Mixer", section 2; with `softmax_gate` or groups: Ekambaram
    et al. 2023, "TSMixer", section 3.3.
    """

    option_rules: ClassVar = {"causal": check_bool}
    axes: ClassVar = {"inputs": ("batch", "length", "dim")}

    def __init__(
        self,
        part: TokenMixing,
        norm: Norm | None = None,
        causal: bool = False,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part_of("part", part, TokenMixing)
        if causal:
            raise ValueError(
                "A feed-forward layer over the tokens shows each token all others, so it is for "
                "encoders: received causal=True."
            )
        self.supports_masking = True
        with no_inner_remat():
            self.tokens = FeedForward.from_part(
                self.part.feed_forward,
                kernel_initializer=kernel_initializer,
                name="tokens",
                dtype=self.dtype_policy,
            )

    def build(self, inputs_shape):
        self._check_length(inputs_shape[1])
        self.tokens.build((inputs_shape[0], inputs_shape[2], self.part.length))
        self.fixed = {"dim": inputs_shape[-1]}

    def call(self, inputs, mask=None, visibility=None, cache=None, training: bool = False):
        refuse_unused("a feed-forward layer over the tokens reads whole inputs.", cache=cache)
        visibility = AttentionMask.given(visibility, mask)
        if visibility.query_pack is not None:
            raise ValueError("A feed-forward layer over the tokens would mix packed documents.")
        self._check_length(inputs.shape[1])
        if visibility.padding is not None:
            inputs = ops.where(ops.cast(visibility.padding, "bool")[:, :, None], inputs, 0)
        if self.part.groups == 1:
            return ops.swapaxes(self.tokens(ops.swapaxes(inputs, 1, 2)), 1, 2)
        sizes = (self.part.groups, self.part.length)
        sizes, axis = (sizes[::-1], 1) if self.part.interleaved else (sizes, 2)
        grouped = ops.reshape(inputs, (-1, *sizes, inputs.shape[-1]))
        mixed = ops.swapaxes(self.tokens(ops.swapaxes(grouped, axis, 3)), axis, 3)
        return ops.reshape(mixed, (-1, self.part.num_tokens, inputs.shape[-1]))

    def _check_length(self, length: int | None):
        if length not in (None, self.part.num_tokens):
            raise ValueError(
                f"This `TokenMixing` is for inputs of {self.part.num_tokens} tokens, received "
                f"{length}."
            )

    def compute_mask(self, inputs, mask=None, **kwargs):
        return mask

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)
