"""The encoder block: self-attention and feed-forward, each with a residual and a norm."""

from typing import ClassVar

import keras

from keras_transformer.config import Block as BlockPart
from keras_transformer.config.flat import BLOCK_KEYWORDS, block_by_keywords
from keras_transformer.layers.arguments import FUNCTIONS, deserialized
from keras_transformer.layers.block import Block
from keras_transformer.layers.parts import part_of


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(Block):
    """Encoder layer: self-attention, then feed-forward.

    Each sub-layer `f` is wrapped as post-norm `norm(x + dropout(f(x)))`, as in the original, or
    pre-norm `x + dropout(f(norm(x)))`, or parallel `x + f(norm_f(x)) + g(norm_g(x))`, with both
    sub-layers on the same `x` and optionally one shared norm. With `normalize_output` the output
    of `f` is normalized: instead of the sum in post-norm, `x + dropout(norm(f(x)))`, and in
    addition to the first norm in pre-norm.

    Args:
        num_heads: int, number of query heads; or a `config.Block`, instead of all keywords.
        intermediate_dim: int, width inside the feed-forward layer.
        num_key_value_heads: int, see `MultiHeadAttention`. Defaults to `num_heads`.
        head_dim: int. Defaults to the input width divided by `num_heads`.
        activation: str, function or layer, see `FeedForward`.
        gated: bool, see `FeedForward`.
        gate_limit: float, see `FeedForward`.
        use_bias: bool, whether the feed-forward layer has biases.
        attention_bias: bool, biases of query, key and value. Defaults to `use_bias`.
        attention_output_bias: bool, bias of the attention's output. Defaults to `attention_bias`.
        query_key_norm: bool, whether to normalize each head's queries and keys.
        normalization: a name in `config.NORMALIZATIONS`, the kind of the norms.
        normalization_epsilon: float, epsilon of the norms.
        normalize_first: bool, True for pre-norm, False for post-norm.
        attention_normalization: bool, whether self-attention has a norm, before it (pre-norm) or
            after its sum (post-norm).
        normalize_output: bool, whether to normalize each sub-layer's output before it is added.
        parallel_residual: bool, whether both sub-layers get the same inputs. Requires
            `normalize_first`.
        share_normalization: bool, whether both sub-layers share one pre-norm. Requires
            `parallel_residual`.
        residual_scale: float, factor of each sub-layer's output.
        trained_residual_scale: bool, whether each feature of a sub-layer's output also has a
            trained factor.
        convolution_size: int, the odd kernel size of a convolution of the block's inputs, a
            sub-layer after the other two (DeBERTa v2). 0 disables it.
        convolution_activation: activation of the convolution, like `activation`.
        dropout: float, dropout rate of each sub-layer's output; the convolution applies it before
            its activation.
        attention_dropout: float, dropout rate of the attention weights.
        kernel_initializer: initializer of the kernels.
        seed: int, seed of the dropout.
        **kwargs: other arguments of `MultiHeadAttention`, such as `score`, `window` and `rotary`;
            with `num_experts` above 0 arguments of `MixtureOfExperts`, which then replaces the
            feed-forward layer (`expert_dim` defaults to `intermediate_dim`); and arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`.
        mask: bool `(batch, length)`, True for real tokens. Layers that produce Keras masks supply
            it; Keras calls it `inputs_mask` if other tensors are given too.
        visibility: `AttentionMask`, see `MultiHeadAttention`.
        bias: float `(batch or 1, heads or 1, length, length)`, added to the attention scores.
        relative: `RelativeStates`, see `MultiHeadAttention`.
        attention_positions: float `(batch or 1, length, hidden_dim)`, added to the states for the
            queries and keys of the attention, but not for its values.
        first_only: bool, whether to compute only the state of the first token.
        grid: ints, see `Block`.
        return_attention_scores, return_projections: bool, as in `MultiHeadAttention`.

    Returns:
        Float `(batch, length, hidden_dim)`; with `first_only` `(batch, 1, hidden_dim)`. In a tuple
        with it, if asked for, a dict of attention weights `{"self": float (batch, num_heads,
        length, length)}`, and a dict of projections with the same key.

    Raises:
        ValueError: if the width is not a multiple of `num_heads` and `head_dim` is not given, an
            option is out of range, arrays do not fit each other, or an argument would be ignored.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import EncoderBlock

    block = EncoderBlock(num_heads=4, intermediate_dim=64, dropout=0.1)
    assert block(np.random.rand(2, 7, 32)).shape == (2, 7, 32)
    ```

    Source: Vaswani et al. 2017, section 3.1; pre-norm: Xiong et al. 2020; parallel: Wang and
    Komatsuzaki 2021, "GPT-J-6B"; normalized outputs: Riviere et al. 2024, "Gemma 2", section 2,
    and OLMo et al. 2024, "2 OLMo 2 Furious", section 3.
    """

    option_rules: ClassVar = {**Block.option_rules, "rotary": lambda name, value: value}

    def __init__(
        self,
        num_heads: int | BlockPart,
        intermediate_dim: int | None = None,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        given, kwargs = block_of(num_heads, intermediate_dim, kwargs)
        super().__init__(given, kernel_initializer=kernel_initializer, seed=seed, **kwargs)

    def build(self, inputs_shape):
        super().build(inputs_shape)

    def call(
        self,
        inputs,
        mask=None,
        inputs_mask=None,
        visibility=None,
        bias=None,
        relative=None,
        attention_positions=None,
        first_only: bool = False,
        return_attention_scores: bool = False,
        return_projections: bool = False,
        training: bool = False,
        grid=None,
    ):
        return super().call(
            inputs,
            mask=mask,
            inputs_mask=inputs_mask,
            visibility=visibility,
            bias=bias,
            relative=relative,
            attention_positions=attention_positions,
            first_only=first_only,
            return_attention_scores=return_attention_scores,
            return_projections=return_projections,
            training=training,
            grid=grid,
        )


def block_of(num_heads, intermediate_dim: int | None, kwargs: dict) -> tuple[BlockPart, dict]:
    """Return the `config.Block`, given as such or by keywords, and the keywords that are left."""
    if isinstance(num_heads, BlockPart | dict):
        return part_of("num_heads", num_heads, BlockPart), kwargs
    if intermediate_dim is None:
        raise ValueError(
            "A block needs the width of its feed-forward layer: give `intermediate_dim`."
        )
    given = {
        name: deserialized(value) if name in FUNCTIONS else value
        for name, value in kwargs.items()
        if name in BLOCK_KEYWORDS
    }
    kwargs = {name: value for name, value in kwargs.items() if name not in given}
    given |= {"num_heads": num_heads, "intermediate_dim": intermediate_dim}
    return block_by_keywords(given), kwargs
