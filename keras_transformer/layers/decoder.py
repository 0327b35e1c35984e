"""The decoder block: causal self-attention, optional cross-attention, feed-forward."""

import keras

from keras_transformer.config import Block as BlockPart
from keras_transformer.layers.block import Block
from keras_transformer.layers.encoder import EncoderBlock, block_of


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(Block):
    """Decoder layer: causal self-attention, optional cross-attention, feed-forward.

    Args:
        num_heads, intermediate_dim, ...: all arguments of `EncoderBlock`.
        cross_attention: bool, whether to attend to encoder states, as in a seq2seq model.
        causal: bool, whether self-attention is causal. False makes it bidirectional, for an
            encoder that attends to another one; it then takes no cache.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`.
        encoder_states: float `(batch, encoder_length, encoder_dim)`. May be left out if the
            cache already holds their keys and values.
        mask: bool `(batch, length)`, True for real tokens. Keras passes a propagated mask here,
            or as `inputs_mask` when there are encoder states.
        encoder_states_mask: bool `(batch, encoder_length)`, True for real encoder states.
        visibility: `AttentionMask` of the self-attention, see `MultiHeadAttention`.
        cross_visibility: `AttentionMask` of the encoder states.
        bias: float `(batch or 1, heads or 1, length, keys)`, added to the self-attention scores.
        attention_positions, encoder_positions: float `(batch or 1, length, hidden_dim)` and
            `(batch or 1, encoder_length, encoder_dim)`, added to the states and to the encoder
            states for the queries and keys of each attention, but not for its values. Without a
            cache.
        cache: dict `{"self": KeyValueCache, "cross": KeyValueCache}`; `"cross"` is None before the
            first call and without cross-attention.
        return_attention_scores, return_projections: bool, as in `MultiHeadAttention`.

    Returns:
        Float `(batch, length, hidden_dim)`. In a tuple with it, if asked for, a dict of attention
        weights and a dict of projections, each with the keys `"self"` and `"cross"`; and the
        updated cache, if a cache was given.

    Raises:
        ValueError: if encoder states are missing, or given without `cross_attention`, or if
            another argument would be ignored.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import DecoderBlock

    target, source = np.random.rand(2, 5, 32), np.random.rand(2, 7, 32)
    block = DecoderBlock(num_heads=4, intermediate_dim=64, cross_attention=True)
    assert block(target, encoder_states=source).shape == (2, 5, 32)
    ```

    Source: Vaswani et al. 2017, section 3.1; without cross-attention: Radford et al. 2018.
    """

    option_rules = EncoderBlock.option_rules

    def __init__(
        self,
        num_heads: int | BlockPart,
        intermediate_dim: int | None = None,
        cross_attention: bool = False,
        causal: bool = True,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        given, kwargs = block_of(num_heads, intermediate_dim, kwargs)
        super().__init__(given, causal, cross_attention, kernel_initializer, seed, **kwargs)
