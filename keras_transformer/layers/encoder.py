"""The encoder block: self-attention and feed-forward, each with residual and normalization."""

import functools
from collections.abc import Callable

import keras

from keras_transformer.layers.arguments import (
    NamesArguments,
    SavesArguments,
    check_positions,
    check_shapes,
    named_arguments,
    options_of,
)
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.products import quick_products
from keras_transformer.layers.remat import Rematerializable, one_piece

# Those that every attention of a block has: further arguments of the block, by the same names.
_OF_ATTENTION = frozenset(options_of(MultiHeadAttention)) - {"output_dim", "output_bias", "causal"}


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(NamesArguments, SavesArguments, Rematerializable, keras.layers.Layer):
    """One encoder layer: self-attention, then feed-forward.

    Around each sub-layer `f`: post-norm `norm(x + dropout(f(x)))`, as in the original, or
    pre-norm `x + dropout(f(norm(x)))`, or parallel `x + f(norm_f(x)) + g(norm_g(x))`, both
    sub-layers of the same `x`.

    Args:
        num_heads: int.
        intermediate_dim: int, width inside the feed-forward layer.
        num_key_value_heads: int, see `MultiHeadAttention`. Defaults to `num_heads`.
        head_dim: int. Defaults to the input width divided by `num_heads`.
        activation: str, function or layer, see `FeedForward`.
        gated: bool, see `FeedForward`.
        use_bias: bool, biases in the feed-forward layer.
        attention_bias: bool, biases of query, key and value. Defaults to `use_bias`.
        attention_output_bias: bool, bias of the attention's output. Defaults to `attention_bias`.
        query_key_norm: bool, normalize each head's queries and keys.
        normalization: `"layer_norm"` or `"rms_norm"`.
        normalization_epsilon: float.
        normalize_first: bool, pre-norm when True.
        parallel_residual: bool, with `normalize_first` only.
        dropout: float, rate on each sub-layer's output.
        attention_dropout: float, rate on the attention weights.
        kernel_initializer: initializer of the kernels.
        seed: int, for the dropout.
        **kwargs: other arguments of `MultiHeadAttention`, such as `score`, `window` and `rotary`,
            and those of `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`.
        mask: bool `(batch, length)`, True for real tokens. Comes by itself from layers that
            make Keras masks; Keras names it `inputs_mask` when other tensors are given too.
        bias: float `(batch or 1, heads or 1, length, length)`, added to the attention scores.
        positions: int `(batch, length)`.
        pack_ids: int `(batch, length)`, which packed document a token is of.
        first_only: bool, compute the state of the first token alone.
        return_attention_scores: bool.

    Returns:
        Float `(batch, length, hidden_dim)`; of `first_only` `(batch, 1, hidden_dim)`. Then, if
        asked for, a dict with the attention weights, `{"self": float (batch, num_heads, length,
        length)}`.

    Raises:
        ValueError: if the width is not divisible by `num_heads` and no `head_dim` is given; for an
            argument that has no effect beside the others.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import EncoderBlock

    block = EncoderBlock(num_heads=4, intermediate_dim=64, dropout=0.1)
    assert block(np.random.rand(2, 7, 32)).shape == (2, 7, 32)
    ```

    Source: Vaswani et al. 2017, section 3.1; pre-norm: Xiong et al. 2020; parallel: Wang and
    Komatsuzaki 2021, "GPT-J-6B".
    """

    causal = False
    options: frozenset[str]  # All arguments of the constructor, also those of its attention.

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        activation: str | Callable = "relu",
        gated: bool = False,
        use_bias: bool = True,
        attention_bias: bool | None = None,
        attention_output_bias: bool | None = None,
        query_key_norm: bool = False,
        normalization: str = "layer_norm",
        normalization_epsilon: float = 1e-6,
        normalize_first: bool = False,
        parallel_residual: bool = False,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        attention = {name: kwargs.pop(name) for name in _OF_ATTENTION & set(kwargs)}
        super().__init__(**kwargs)
        if parallel_residual and not normalize_first:
            raise ValueError("`parallel_residual` needs `normalize_first`.")
        self.normalization = normalization
        self.normalization_epsilon = normalization_epsilon
        self.normalize_first = normalize_first
        self.parallel_residual = parallel_residual
        self.num_heads, self.head_dim = num_heads, head_dim
        self.rotary, self.window = attention.pop("rotary", None), attention.pop("window", None)
        kernel_initializer = keras.initializers.get(kernel_initializer)
        attention_bias = use_bias if attention_bias is None else attention_bias
        if attention_output_bias is None:
            attention_output_bias = attention_bias
        self._make_attention = functools.partial(
            MultiHeadAttention,
            num_heads,
            num_key_value_heads=num_key_value_heads,
            use_bias=attention_bias,
            output_bias=attention_output_bias,
            query_key_norm=normalization if query_key_norm else None,
            normalization_epsilon=normalization_epsilon,
            dropout=attention_dropout,
            kernel_initializer=kernel_initializer,
            seed=seed,
            **attention,
        )
        self.supports_masking = True

        self.self_attention_norm = self._norm("self_attention_norm")
        self.feed_forward_norm = self._norm("feed_forward_norm")
        with one_piece():
            self.feed_forward = FeedForward(
                intermediate_dim,
                activation=activation,
                gated=gated,
                use_bias=use_bias,
                kernel_initializer=kernel_initializer,
                name="feed_forward",
                dtype=self.dtype_policy,
            )
            self.dropout_layer = Dropout(dropout, seed=seed, dtype=self.dtype_policy)

    def _norm(self, name: str) -> keras.layers.Layer:
        with one_piece():
            return make_normalization(
                self.normalization, self.normalization_epsilon, name=name, dtype=self.dtype_policy
            )

    def _attention(self, hidden_dim: int, **options) -> MultiHeadAttention:
        if self.head_dim is None and hidden_dim % self.num_heads:
            raise ValueError(
                f"The width of the input, {hidden_dim}, is not divisible by num_heads="
                f"{self.num_heads}. Change one of them, or give `head_dim`."
            )
        head_dim = self.head_dim or hidden_dim // self.num_heads
        with one_piece():
            return self._make_attention(head_dim=head_dim, dtype=self.dtype_policy, **options)

    def build(self, input_shape):
        if len(input_shape) != 3:
            raise ValueError(
                f"{type(self).__name__} takes states of shape (batch, length, dim), received "
                f"{tuple(input_shape)}. Of token ids a `TokenEmbedding` makes them."
            )
        # The attention needs the width of the input for the width of a head.
        self.self_attention = self._attention(
            input_shape[-1],
            name="self_attention",
            causal=self.causal,
            window=self.window,
            rotary=self.rotary,
        )
        self.self_attention.build(input_shape)
        self.self_attention_norm.build(input_shape)
        self.feed_forward.build(input_shape)
        self.feed_forward_norm.build(input_shape)

    def _sublayers(self, attend, inputs, training, attend_to_encoder=None, first_only=False):
        """The attentions, and the feed-forward layer behind or beside them."""
        with quick_products(inputs):
            kept = inputs[:, :1] if first_only else inputs
            x = self._sublayer(attend, self.self_attention_norm, inputs, kept, training)
            if self.parallel_residual:
                beside = self.feed_forward(self.feed_forward_norm(kept))
                return x + self.dropout_layer(beside, training=training)
            if attend_to_encoder is not None:
                x = self._sublayer(attend_to_encoder, self.cross_attention_norm, x, x, training)
            return self._sublayer(self.feed_forward, self.feed_forward_norm, x, x, training)

    def _sublayer(self, function, norm, inputs, residual, training):
        """Residual, dropout and normalization around one sub-layer."""
        if self.normalize_first:
            return residual + self.dropout_layer(function(norm(inputs)), training=training)
        return norm(residual + self.dropout_layer(function(inputs), training=training))

    def call(
        self,
        inputs,
        mask=None,
        inputs_mask=None,
        bias=None,
        positions=None,
        pack_ids=None,
        first_only: bool = False,
        return_attention_scores: bool = False,
        training: bool = False,
    ):
        self._check_used(inputs, mask, inputs_mask, bias, positions, pack_ids)
        mask = inputs_mask if mask is None else mask
        scores = {}

        def attend(x):
            options = {"mask": mask, "bias": bias, "positions": positions, "pack_ids": pack_ids}
            if first_only:
                options = {
                    "value": x,
                    "value_mask": mask,
                    "bias": None if bias is None else bias[:, :, :1],
                    "positions": None if positions is None else positions[:, :1],
                    "key_positions": positions,
                    "pack_ids": None if pack_ids is None else pack_ids[:, :1],
                    "value_pack_ids": pack_ids,
                }
                x = x[:, :1]
            if not return_attention_scores:
                return self.self_attention(x, training=training, **options)
            options |= {"return_attention_scores": True, "training": training}
            x, scores["self"] = self.self_attention(x, **options)
            return x

        x = self._sublayers(attend, inputs, training, first_only=first_only)
        return (x, scores) if return_attention_scores else x

    def _check_used(self, inputs, mask, inputs_mask, bias, positions, pack_ids, **_):
        """ValueError for arguments that would change nothing, or do not fit."""
        check_positions(self, positions, None, self_attention=True)
        check_shapes(
            inputs, inputs, mask=mask, inputs_mask=inputs_mask, bias=bias, positions=positions,
            pack_ids=pack_ids,
        )  # fmt: skip

    def compute_mask(self, inputs, mask=None, **kwargs):
        return mask

    def compute_output_spec(self, *args, **kwargs):
        given = named_arguments(self.call, args, kwargs)
        self._check_used(**given)
        batch, length, dim = given["inputs"].shape
        queries = 1 if given["first_only"] else length
        output = keras.KerasTensor((batch, queries, dim), self.compute_dtype)
        if not given["return_attention_scores"]:
            return output
        shape = (batch, self.num_heads, queries, length)
        return output, {"self": keras.KerasTensor(shape, "float32")}


EncoderBlock.options = frozenset(options_of(EncoderBlock)) | _OF_ATTENTION
