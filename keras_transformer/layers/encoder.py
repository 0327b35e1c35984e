"""The encoder block: self-attention and feed-forward, each with residual and normalization."""

import functools
from collections.abc import Callable
from typing import ClassVar

import keras

from keras_transformer.checking import known_shape
from keras_transformer.config_checks import PATTERN
from keras_transformer.kernels.products import quick_products
from keras_transformer.layers.arguments import (
    ChecksCall,
    SavesArguments,
    asked_further,
    check_shapes,
    named_arguments,
    options_of,
    own_layer,
    put_aside,
    with_further,
)
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.experts import MixtureOfExperts
from keras_transformer.layers.feed_forward import FeedForward, activated, build_function
from keras_transformer.layers.masking import Visibility
from keras_transformer.layers.neighbours import with_neighbours
from keras_transformer.layers.normalization import make_normalization, normalized
from keras_transformer.layers.position_bias import PairBias
from keras_transformer.layers.remat import Rematerializable, one_piece

# Those that every attention of a block has: further arguments of the block, by the same names.
_OF_ATTENTION = frozenset(options_of(MultiHeadAttention)) - {"output_dim", "output_bias", "causal"}
# Not those of an attention to an encoder's states: which places of the own sequence are seen.
_OF_SELF = frozenset({"rotary", *PATTERN})
# Likewise those that only experts have.
_OF_EXPERTS = frozenset(options_of(MixtureOfExperts)) - frozenset(options_of(FeedForward))


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """One encoder layer: self-attention, then feed-forward.

    Around each sub-layer `f`: post-norm `norm(x + dropout(f(x)))`, as in the original, or
    pre-norm `x + dropout(f(norm(x)))`, or parallel `x + f(norm_f(x)) + g(norm_g(x))`, both
    sub-layers of the same `x`, perhaps with one norm. With `normalize_output` it is `f`'s output
    that is normalized in place of the sum, `x + dropout(norm(f(x)))`, or pre-norm once more, each
    with a norm of its own.

    Args:
        num_heads: int.
        intermediate_dim: int, width inside the feed-forward layer.
        num_key_value_heads: int, see `MultiHeadAttention`. Defaults to `num_heads`.
        head_dim: int. Defaults to the input width divided by `num_heads`.
        activation: str, function or layer, see `FeedForward`.
        gated: bool, see `FeedForward`.
        gate_limit: float, see `FeedForward`.
        use_bias: bool, biases in the feed-forward layer.
        attention_bias: bool, biases of query, key and value. Defaults to `use_bias`.
        attention_output_bias: bool, bias of the attention's output. Defaults to `attention_bias`.
        query_key_norm: bool, normalize each head's queries and keys.
        normalization: a name in `config.NORMALIZATIONS`.
        normalization_epsilon: float.
        normalize_first: bool, pre-norm when True.
        attention_normalization: bool, False for no normalization in front of the self-attention, or
            behind its sum.
        normalize_output: bool, normalize the output of each sub-layer before it is added.
        parallel_residual: bool, with `normalize_first` only.
        share_normalization: bool, one pre-norm for both sub-layers. With `parallel_residual` only.
        residual_scale: float, factor of each sub-layer's output.
        trained_residual_scale: bool, a trained factor of each feature of it, besides.
        convolution_size: int, the odd kernel size of a convolution of the block's inputs, a
            sub-layer after the other two (DeBERTa v2). 0 for none.
        convolution_activation: as `activation`, of the convolution.
        dropout: float, rate on each sub-layer's output; of the convolution in front of its
            activation.
        attention_dropout: float, rate on the attention weights.
        kernel_initializer: initializer of the kernels.
        seed: int, for the dropout.
        **kwargs: other arguments of `MultiHeadAttention`, such as `score`, `window` and `rotary`;
            with `num_experts` above 0 those of `MixtureOfExperts`, which then is the feed-forward
            layer, `expert_dim` by default `intermediate_dim`; and those of `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`.
        mask: bool `(batch, length)`, True for real tokens. Layers that make Keras masks give it;
            Keras calls it `inputs_mask` where other tensors are given too.
        visibility: `Visibility`, see `MultiHeadAttention`.
        bias: float `(batch or 1, heads or 1, length, length)`, added to the attention scores.
        relative: `RelativeStates`, see `MultiHeadAttention`.
        first_only: bool, compute the state of the first token alone.
        return_attention_scores, return_projections: bool, as of `MultiHeadAttention`.

    Returns:
        Float `(batch, length, hidden_dim)`; with `first_only` `(batch, 1, hidden_dim)`. In a tuple
        with it, if asked for, what the attention gives in dicts: of weights `{"self": float (batch,
        num_heads, length, length)}`, and of projections.

    Raises:
        ValueError: for a width that `num_heads` does not divide, without a `head_dim`; for an
            option that is out of range, arrays that do not fit each other, and an argument that has
            no effect beside the others.

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

    causal = False
    axes: ClassVar = {"inputs": ("batch", "length", "dim")}
    options: frozenset[str]  # All arguments of the constructor, also those of its attention.

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        activation: str | Callable = "relu",
        gated: bool = False,
        gate_limit: float | None = None,
        use_bias: bool = True,
        attention_bias: bool | None = None,
        attention_output_bias: bool | None = None,
        query_key_norm: bool = False,
        normalization: str = "layer_norm",
        normalization_epsilon: float = 1e-6,
        normalize_first: bool = False,
        normalize_output: bool = False,
        attention_normalization: bool = True,
        parallel_residual: bool = False,
        share_normalization: bool = False,
        residual_scale: float = 1.0,
        trained_residual_scale: bool = False,
        convolution_size: int = 0,
        convolution_activation: str | Callable = "gelu",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        attention, experts = (
            {name: kwargs.pop(name) for name in names & set(kwargs)}
            for names in (_OF_ATTENTION, _OF_EXPERTS)
        )
        super().__init__(**kwargs)
        if parallel_residual and not normalize_first:
            raise ValueError("`parallel_residual` needs `normalize_first`.")
        if share_normalization and not (parallel_residual and attention_normalization):
            raise ValueError(
                "`share_normalization` needs `parallel_residual` and `attention_normalization`."
            )
        self._norm_options = (normalization, normalization_epsilon)
        self.normalize_first = normalize_first
        self.normalize_output = normalize_output
        self.parallel_residual = parallel_residual
        self.share_normalization = share_normalization
        self.residual_scale = residual_scale
        self.trained_residual_scale = trained_residual_scale
        self.num_heads, self.head_dim = num_heads, head_dim
        self._of_self = {name: attention.pop(name) for name in _OF_SELF & set(attention)}
        self.rotary, self.window = self._of_self.get("rotary"), self._of_self.get("window")
        kernel_initializer = keras.initializers.get(kernel_initializer)
        self._make_attention = functools.partial(
            MultiHeadAttention,
            num_heads,
            num_key_value_heads=num_key_value_heads,
            use_bias=use_bias if attention_bias is None else attention_bias,
            output_bias=attention_output_bias,
            query_key_norm=normalization if query_key_norm else None,
            normalization_epsilon=normalization_epsilon,
            dropout=attention_dropout,
            kernel_initializer=kernel_initializer,
            seed=seed,
            **attention,
        )
        self.supports_masking = True

        self._make_norms("self_attention", around=attention_normalization)
        self._make_norms("feed_forward", around=not share_normalization)
        self._make_feed_forward(
            intermediate_dim,
            experts,
            activation=activation,
            gated=gated,
            gate_limit=gate_limit,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
        )
        self._make_convolution(convolution_size, convolution_activation, kernel_initializer)
        with one_piece():
            self.dropout_layer = Dropout(dropout, seed=seed, dtype=self.dtype_policy)

    def _make_convolution(self, size: int, activation, kernel_initializer):
        self.convolution_size = size
        self.convolution_activation = own_layer(activation)
        if size and (self.causal or size % 2 == 0):
            raise ValueError(
                f"`convolution_size` must be odd, and of an encoder's block, received {size} for a "
                f"{type(self).__name__}."
            )
        self._kernel_initializer = kernel_initializer
        if size:
            self._make_norms("convolution")

    def _make_feed_forward(self, width: int, experts: dict, **options):
        """One layer that all tokens go through, or several to choose from."""
        options |= {"name": "feed_forward", "dtype": self.dtype_policy}
        self.has_experts = experts.get("num_experts", 0) > 0
        with one_piece():
            if self.has_experts:
                self.feed_forward = MixtureOfExperts(**{"expert_dim": width, **experts}, **options)
            else:
                self.feed_forward = FeedForward(width, **options)

    def _make_norms(self, sublayer: str, around: bool = True):
        """The normalization in front of a sub-layer or behind the sum, and that of its output."""
        around = around and (self.normalize_first or not self.normalize_output)
        for name, wanted in (("norm", around), ("output_norm", self.normalize_output)):
            name = f"{sublayer}_{name}"
            with one_piece():
                norm = wanted and make_normalization(
                    *self._norm_options, name=name, dtype=self.dtype_policy
                )
            setattr(self, name, norm or None)

    def _norms(self, sublayer: str) -> list[keras.layers.Layer | None]:
        return [getattr(self, f"{sublayer}_{name}") for name in ("norm", "output_norm")]

    def _build_norms(self, sublayer: str, input_shape):
        for norm in self._norms(sublayer):
            if norm is not None:
                norm.build(input_shape)
        if self.trained_residual_scale:
            name = f"{sublayer}_scale"
            setattr(self, name, self.add_weight(input_shape[-1:], "ones", name=name))

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
        self.check_rank(input_shape)
        # The attention needs the width of the input for the width of a head.
        self.self_attention = self._attention(
            input_shape[-1],
            name="self_attention",
            causal=self.causal,
            **self._of_self,
        )
        self.self_attention.build(input_shape)
        self._build_norms("self_attention", input_shape)
        self.feed_forward.build(input_shape)
        self._build_norms("feed_forward", input_shape)
        if self.convolution_size:
            with one_piece():
                self.convolution = Dense(
                    input_shape[-1],
                    kernel_initializer=self._kernel_initializer.clone(),
                    name="convolution",
                    dtype=self.dtype_policy,
                )
            build_function(self.convolution_activation, input_shape)
            self.convolution.build((*input_shape[:-1], self.convolution_size * input_shape[-1]))
            self._build_norms("convolution", input_shape)
        self.fixed = {"dim": input_shape[-1]}

    def check_axes(self, given):
        shape = known_shape(given.get("inputs"))
        if shape is not None:
            self.check_rank(shape)
        super().check_axes(given)

    def check_rank(self, shape):
        """Raise ValueError if a shape is not that of states."""
        if len(shape) != 3:
            raise ValueError(
                f"{type(self).__name__} takes states of shape (batch, length, dim), received "
                f"{tuple(shape)}. Of token ids a `TokenEmbedding` makes them."
            )

    def _sublayers(
        self,
        attend,
        inputs,
        training,
        attend_to_encoder=None,
        convolve=None,
        first_only=False,
        mask=None,
    ):
        """The attentions, the feed-forward layer behind or beside them, and the convolution."""
        with quick_products(inputs):
            kept = inputs[:, :1] if first_only else inputs
            if self.share_normalization:
                inputs = normalized(self.self_attention_norm, inputs, training)
            x = self._sublayer("self_attention", attend, inputs, kept, training)
            if attend_to_encoder is not None:
                x = self._sublayer("cross_attention", attend_to_encoder, x, x, training)
            given, feed_forward = x, self.feed_forward
            if self.parallel_residual:
                given = inputs[:, :1] if first_only else inputs
            if self.has_experts:
                mask = mask[:, :1] if first_only and mask is not None else mask
                feed_forward = functools.partial(feed_forward, mask=mask, training=training)
            x = self._sublayer("feed_forward", feed_forward, given, x, training)
            if convolve is not None:
                x = self._sublayer("convolution", convolve, inputs, x, training, dropped=True)
            return x

    def _sublayer(self, name, function, inputs, residual, training, dropped: bool = False):
        """Residual, dropout, unless it is within, and normalization around one sub-layer."""
        norm, output_norm = self._norms(name)
        before = self.normalize_first and norm is not None and not self.share_normalization
        output = function(normalized(norm, inputs, training) if before else inputs)
        output = output if output_norm is None else normalized(output_norm, output, training)
        output = output if self.residual_scale == 1 else output * self.residual_scale
        if self.trained_residual_scale:
            output = output * getattr(self, f"{name}_scale")
        x = residual + (output if dropped else self.dropout_layer(output, training=training))
        return x if self.normalize_first or norm is None else normalized(norm, x, training)

    def call(
        self,
        inputs,
        mask=None,
        inputs_mask=None,
        visibility=None,
        bias=None,
        relative=None,
        first_only: bool = False,
        return_attention_scores: bool = False,
        return_projections: bool = False,
        training: bool = False,
    ):
        mask = inputs_mask if mask is None else mask
        self._check_used(inputs, mask, visibility, bias, relative=relative)
        visibility = Visibility.given(visibility, mask)
        asked, further = asked_further(return_attention_scores, return_projections)

        def attend(x):
            options = {"visibility": visibility, "bias": bias, "relative": relative}
            # A global token's projections are not those of a query.
            alone = first_only and not self.self_attention.global_projection
            if alone:
                of_first = bias.whole(x, 1) if isinstance(bias, PairBias) else bias
                options = {
                    "value": x,
                    "visibility": visibility.of_first_query(),
                    "bias": None if of_first is None else of_first[:, :, :1],
                    "relative": None if relative is None else relative.of_first_query(),
                }
                x = x[:, :1]
            x = self.self_attention(x, training=training, **options, **asked)
            x = put_aside(x, "self", further)
            return x[:, :1] if first_only and not alone else x

        def convolve(x):
            x = self.convolution(with_neighbours(x, self.convolution_size, visibility))
            x = self.dropout_layer(x[:, :1] if first_only else x, training=training)
            return activated(self.convolution_activation, x)

        x = self._sublayers(
            attend,
            inputs,
            training,
            convolve=convolve if self.convolution_size else None,
            first_only=first_only,
            mask=visibility.padding,
        )
        return with_further(x, *further)

    def _check_used(self, inputs, mask, visibility, bias, cached: bool = False, relative=None):
        """ValueError for arguments that would change nothing, or do not fit."""
        visibility = Visibility.given(visibility)
        visibility.check_used(self, own_keys=True, cached=cached)
        keys = None if cached else inputs
        shown = None if isinstance(bias, PairBias) else bias
        buckets = None if relative is None else relative.buckets
        arrays = {"mask": mask, "bias": shown, "buckets": buckets, **visibility.tensors()}
        check_shapes(inputs, keys, **arrays)

    def compute_mask(self, inputs, mask=None, **kwargs):
        return mask

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def compute_output_spec(self, *args, **kwargs):
        given = named_arguments(self.call, args, kwargs)
        mask = given["inputs_mask"] if given["mask"] is None else given["mask"]
        states, relative = given["inputs"], given["relative"]
        self._check_used(states, mask, given["visibility"], given["bias"], relative=relative)
        batch, length, dim = given["inputs"].shape
        queries = 1 if given["first_only"] else length
        output = keras.KerasTensor((batch, queries, dim), self.compute_dtype)
        if given["return_projections"]:
            return keras.layers.Layer.compute_output_spec(self, *args, **kwargs)
        scores = keras.KerasTensor((batch, self.num_heads, queries, length), "float32")
        return with_further(output, {"self": scores} if given["return_attention_scores"] else None)


EncoderBlock.options = frozenset(options_of(EncoderBlock)) | _OF_ATTENTION | _OF_EXPERTS
