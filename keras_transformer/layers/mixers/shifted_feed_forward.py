"""A feed-forward layer that reads each token and the one before."""

from typing import ClassVar

import keras

from keras_transformer.config import ShiftedFeedForward as ShiftedFeedForwardPart
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.mixers.causal_convolution import recent_states
from keras_transformer.layers.mixers.recurrent import RecurrentMixer


@keras.saving.register_keras_serializable(package="keras_transformer")
class ShiftedFeedForward(RecurrentMixer):
    """Mix each token with the one before, by a trained share for each feature, and project twice.

    `output(activation(intermediate(x + share (before - x))))`, the channel mixing of RWKV. The
    first token of a text has zeros before it.

    Args:
        part: `config.ShiftedFeedForward`.
        norm: `config.Norm` of the block, which this mixer does not use.
        causal: bool, must be True: a token sees only itself and the token before it.
        kernel_initializer: initializer of the kernels.
        seed: int, which this mixer does not use.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, dim)`.
        mask: bool `(batch, length)`, True for real tokens.
        visibility: `AttentionMask`, with padding and packed documents.
        cache: `MixerStates`. Padding must then be behind the real tokens, except in the first call.

    Returns:
        Float `(batch, length, dim)`; in a tuple with it, the updated cache if one was given.

    Raises:
        ValueError: if `causal` is False.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import ShiftedFeedForward as Part
    from keras_transformer.layers.mixers.shifted_feed_forward import ShiftedFeedForward

    assert ShiftedFeedForward(Part(dim=24))(np.random.rand(2, 7, 16)).shape == (2, 7, 16)
    ```

    Source: Peng et al. 2023, "RWKV: Reinventing RNNs for the Transformer Era", section 3.1.3.
    """

    part_type: ClassVar = ShiftedFeedForwardPart

    def build(self, inputs_shape):
        self.share = self.add_weight(
            inputs_shape[-1:], keras.initializers.Constant(0.5), name="share"
        )
        self.intermediate_dense = self.add_dense(inputs_shape, self.part.dim, "intermediate")
        inner = (*inputs_shape[:-1], self.part.dim)
        self.output_dense = self.add_dense(inner, inputs_shape[-1], "output")
        self.fixed = {"dim": inputs_shape[-1]}

    def mix(self, x, padding=None, packs=None, states=None):
        (x, before), last = recent_states(x, 2, padding, packs, *(states or ()))
        hidden = self.intermediate_dense(x + (before - x) * self.share)
        hidden = get_activation(self.part.activation)(hidden)
        return self.output_dense(hidden), (last,)
