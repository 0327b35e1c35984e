"""Multi-head attention: self-, cross-, causal, grouped and cached, with any score function."""

import functools
import math
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.config import (
    Attention,
    Disentangled,
    GatedRelativeBias,
    Mixer,
    Norm,
    RelativeKeys,
    RelativeSinusoids,
)
from keras_transformer.config.flat import ATTENTION_KEYWORDS, attention_by_keywords
from keras_transformer.config.mixers import GATE_VALUES
from keras_transformer.distribution.layout import (
    EXCHANGES,
    over_heads,
    over_tokens,
    seen_over_heads,
)
from keras_transformer.kernels import attention as kernels
from keras_transformer.layers.arguments import (
    ChecksCall,
    SavesArguments,
    call_unchecked,
    check_has_keys,
    check_shapes,
    deserialized,
    known_shape,
    layer_of,
    named_arguments,
    own_layer,
    pack_outputs,
    part_of,
    refuse_unused,
)
from keras_transformer.layers.attention import scores
from keras_transformer.layers.attention.chunks import attend_in_chunks, attend_in_row_groups
from keras_transformer.layers.attention.disentangled import (
    position_projections,
    with_relative_scores,
)
from keras_transformer.layers.attention.masking import AttentionMask, is_static_zero
from keras_transformer.layers.attention.merged import joined_keys, with_keys_before
from keras_transformer.layers.attention.relative_sinusoids import RelativeScores
from keras_transformer.layers.attention.score_bias import LazyBias, gated_bias
from keras_transformer.layers.dense import ClippedDense, Dense
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.merging import SequenceReduction
from keras_transformer.layers.normalization import make_head_normalization, make_normalization
from keras_transformer.layers.position import row_lengths, sequence_positions
from keras_transformer.layers.remat import Rematerializable, no_inner_remat
from keras_transformer.support.checking import check_bool, check_int

# From this length on, full attention is computed for some queries at a time if the kernel of the
# backend would otherwise keep the scores of all queries.
_LONG = 4096


class AttentionCore:
    """Mixin for layers that attend: scores, weights and the weighted sum of the values.

    Attributes:
        score_function: layer that scores queries and keys, see `scores.get`.
        dropout: float, dropout rate on the weights.
        dropout_layer: `Dropout` with this rate.
        soft_cap: float, the cap of the scores, or None.
        sinks: the trained score of each head for attending to nothing, or None.
    """

    soft_cap: float | None = None
    sinks: Any = None

    def _attend(self, from_cache, scores_wanted, training, queries, keys, values, visibility, bias):
        """Return the weighted sum of the values and the weights.

        Queries, keys, values and the sum are `(batch, length, heads, head_dim)`; keys and values
        from a cache are `(batch, heads, length, head_dim)`. The weights are None if not wanted.
        """
        dropped = training and self.dropout > 0
        dot = self.score_function.scale is not None
        plain = dot and self.soft_cap is None and self.sinks is None
        by_kernel = plain and not (scores_wanted or from_cache) and kernels.takes(queries.dtype)
        by_kernel = by_kernel and (not dropped or kernels.takes_dropout(queries))
        attend = functools.partial(self._attend_stepwise, training=training)
        if by_kernel:
            attend = functools.partial(self._attend_fused, dropout=self.dropout if dropped else 0)
        elif not from_cache:
            keys, values = heads_first(keys), heads_first(values)
        elif plain and not (scores_wanted or dropped) and kernels.takes_cached(queries, keys):
            attend = self._attend_cached
        sinks = (ops.cast(self.sinks, "float32"),) if self.sinks is not None else ()
        draw = self.dropout_layer.next_seeds if dropped else None
        long = dot and bias is None and not scores_wanted and _is_long(visibility, queries)
        if long and (not by_kernel or kernels.keeps_scores(queries)):
            shared = (keys, values, *sinks)
            return attend_in_chunks(attend, queries, shared, visibility, draw), None
        if sinks:
            attend = functools.partial(attend, sinks=sinks[0])
        if not (scores_wanted or from_cache) and kernels.scores_at_a_time(queries) is not None:
            slots = keys.shape[1 if by_kernel else 2]
            given = (attend, queries, keys, values, visibility, bias, slots, draw)
            return attend_in_row_groups(*given), None
        attended, weights = attend(queries, keys, values, visibility=visibility, bias=bias)
        return attended, weights if scores_wanted else None

    def _attend_fused(self, queries, keys, values, *, visibility, bias=None, seed=None, dropout):
        """Return the weighted sum of the values by a fused kernel, with None as the weights.

        All arrays are `(batch, length, heads, head_dim)`.
        """
        given = (queries, keys, values)
        options = {"scale": self.score_function.scale, "dropout": dropout}
        if visibility.is_causality_alone and bias is None:
            return kernels.attention(*given, is_causal=True, **options), None
        allowed = visibility.mask(ops.shape(queries)[1], ops.shape(keys)[1])
        if bias is not None and allowed is not None:
            # Not every backend's kernel takes both, so the mask becomes part of the bias.
            bias = ops.where(allowed, ops.cast(bias, queries.dtype), _lowest(queries.dtype))
            allowed = None
        return kernels.attention(*given, bias=bias, mask=allowed, **options), None

    def _attend_cached(self, queries, keys, values, *, visibility, bias=None, seed=None):
        """Like `_attend_fused`, with cached keys and values `(batch, heads, slots, head_dim)`."""
        allowed = visibility.mask(ops.shape(queries)[1], ops.shape(keys)[2])
        scale = self.score_function.scale
        return kernels.cached_attention(queries, keys, values, bias, allowed, scale), None

    def _attend_stepwise(
        self, queries, keys, values, sinks=None, *, visibility, bias=None, seed=None, training
    ):
        """Return the weighted sum and the weights, computed without a fused kernel.

        Keys and values are `(batch, heads, length, head_dim)`.
        """
        allowed = visibility.mask(ops.shape(queries)[1], ops.shape(keys)[2])
        queries = heads_first(queries)
        logits = ops.cast(self.score_function(queries, keys), "float32")
        if self.soft_cap is not None:
            logits = self.soft_cap * ops.tanh(logits / self.soft_cap)
        if bias is not None:
            logits = logits + ops.cast(bias, "float32")
        logits = masked(logits, allowed)
        weights = softmax(logits)
        if sinks is not None:
            # The softmax has one more score, the sink's, which adds no value to the sum.
            total = ops.logsumexp(logits, axis=-1, keepdims=True)
            weights = weights * ops.sigmoid(total - sinks[:, None, None])
        cast = ops.cast(weights, values.dtype)
        dropped = self.dropout_layer(cast, training=training, seed=seed)
        # Query heads that share a value head become rows of one product.
        shape, groups = ops.shape(dropped), ops.shape(values)[1]
        dropped = ops.reshape(dropped, (shape[0], groups, -1, shape[3]))
        attended = ops.reshape(ops.matmul(dropped, values), (*shape[:3], ops.shape(values)[3]))
        return heads_first(attended), weights


def check_mask_and_bias(
    part: Mixer, causal: bool, queries: Any, keys: Any, given: dict[str, Any], own_keys: bool
) -> None:
    """Raise ValueError if arguments about pairs of tokens have no effect, or do not fit the states.

    Args:
        part: the config of the attention, or of another mixer.
        causal: bool, whether a token sees only itself and the tokens before it.
        queries: float `(batch, length, dim)`.
        keys: float `(batch, key_length, dim)`, or None if a cache holds them.
        given: the arguments of the call by name: `visibility`, `bias`, `relative` and `cache`.
        own_keys: bool, whether the keys come from the queries.
    """
    visibility = AttentionMask.given(given.get("visibility"))
    visibility.check_used(part, causal, own_keys, cached=given.get("cache") is not None)
    bias, relative = given.get("bias"), given.get("relative")
    bias = None if isinstance(bias, LazyBias) else bias
    buckets = None if relative is None else relative.buckets
    check_shapes(queries, keys, bias=bias, buckets=buckets, **visibility.tensors())


def _is_long(visibility: AttentionMask, queries) -> bool:
    """Return whether the scores of all queries at once could take too much memory."""
    length = queries.shape[1]
    return isinstance(length, int) and length >= _LONG and visibility.explicit is None


def heads_first(states):
    """Swap the axes of heads and length, in either direction."""
    return ops.transpose(states, (0, 2, 1, 3))


def masked(logits, allowed):
    """Return float32 scores, the lowest ones where `allowed`, bool or None, is False."""
    return logits if allowed is None else ops.where(allowed, logits, _lowest("float32"))


def softmax(logits):
    """Return the weights of float32 scores; their sum over the last axis is 1."""
    # Keras warns about a softmax over one number.
    return ops.ones_like(logits) if logits.shape[-1] == 1 else ops.softmax(logits, axis=-1)


def _lowest(dtype: str) -> float:
    """Return a score that gives the weight 0, finite so that fully masked rows do not give NaN."""
    return -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e30


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(
    AttentionCore, ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer
):
    """Multi-head attention of every query to every visible key.

    One layer serves self-attention (give only `query`), cross-attention (give `value`, and `key`
    if it differs) and cached decoding (give `cache`). With the score `"scaled_dot"` the fused
    kernel of the backend is used, unless the weights are asked for or dropped out.

    Args:
        attention: `config.Attention`, the heads, biases, norms, score, position and pattern. Its
            values may also be given as keywords of the layer:
            `MultiHeadAttention(num_heads=8, head_dim=64, dropout=0.1)`, or the number of heads
            here; so may the keywords of `TransformerConfig` for them, such as `window`. The
            score, a function of the projected query `q` and key `k` of a head, is one of
            `"scaled_dot"`: `q.k / sqrt(head_dim)` (Vaswani et al. 2017, section 3.2.1);
            `"dot"`: `q.k` and `"general"`: `q W k` (Luong et al. 2015, equation 8);
            `"additive"`: `v.tanh(q + k)` (Bahdanau et al. 2014, appendix A.1.2);
            `"cosine"`: content-based, `strength * cos(q, k)` (Graves et al. 2014, section 3.3.1);
            `"scaled_cosine"`: the same, with a strength of at most 100 (Liu et al. 2021, "Swin
            Transformer V2", section 3.2), by the fused kernel;
            `"location"`: `W q`, one score a slot, whatever the key (Luong et al. 2015, eq. 9);
            or your own function or layer from queries `(batch, num_heads, query_length, head_dim)`
            and keys `(batch, num_heads, key_length, head_dim)` to scores `(batch, num_heads,
            query_length, key_length)`. A layer belongs to one attention: if it is given to a
            second one, that one uses a copy, with weights of its own.
        head_dim, num_key_value_heads: int, values of `attention` by position, as in Keras.
        norm: `config.Norm`, the kind and epsilon of `query_key_norm`.
        causal: bool, whether a query sees only the keys up to its own position.
        output_dim: int, width of the output. Defaults to the width of the query.
        kernel_initializer: initializer of the kernels.
        seed: int, seed of the dropout.
        **kwargs: values of `attention`, and as in `keras.layers.Layer`.

    Call arguments:
        query: float `(batch, query_length, dim)`.
        value: float `(batch, key_length, dim)`. Defaults to `query`.
        key: float `(batch, key_length, dim)`. Defaults to `value`.
        mask: bool `(batch, query_length)`, True for real tokens of `query`.
        value_mask: bool `(batch, key_length)`, True for real tokens of `value`. Layers that
            produce Keras masks supply both; Keras calls the first one `query_mask` if tensors
            other than `query` are given.
        visibility: `AttentionMask`, further limits on the keys that a query sees: packed documents,
            positions, an explicit mask. Its `padding` replaces the masks.
        bias: float `(batch or 1, num_heads or 1, query_length, key_length)`, added to the scores.
        relative: `RelativeStates`, for `disentangled`.
        cache: `KeyValueCache` for keys and values. Self-attention appends the new keys and values
            and reads all. Cross-attention writes the keys and values of `value` or, without
            `value`, reads those that an earlier call wrote.
        return_attention_scores: bool, whether to return the attention weights.
        return_projections: bool, whether to return the projected queries and keys.
        return_for_later: bool, whether to return the keys and values of this call, which later
            layers may attend to.
        beside: keys and values `(batch or 1, num_key_value_heads, count, head_dim)` that every
            query sees as well, in one softmax with the others, and an `AttentionMask` with their
            `padding` and `key_pack`. They come before the others in all that is returned.
        earlier: keys and values that an earlier layer returned for later ones, with
            `key_source="earlier"`. A `cache` is then that layer's, with these keys and values in
            the slots from `next` on.
        grid: ints, rows and columns of the patches of `value`, for `sequence_reduction` and for
            `GridWindows` of any grid.

    Returns:
        Float `(batch, query_length, output_dim)`. In a tuple with it, if asked for, the attention
        weights `(batch, num_heads, query_length, key_length)` in float32; a dict of projections,
        normalized and rotated, `queries` `(batch, num_heads, query_length, head_dim)` and `keys`
        `(batch, num_key_value_heads, key_length, head_dim)`; and the updated cache, if a cache was
        given.

    Raises:
        ValueError: if `num_heads` is not a multiple of `num_key_value_heads`, an option is out of
            range, the score is unknown, a location score has too few slots, arrays do not fit
            each other, or an argument would be ignored.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import Attention, Rotary
    from keras_transformer.layers import MultiHeadAttention

    x = np.random.rand(2, 10, 64).astype("float32")
    attention = MultiHeadAttention(num_heads=8, head_dim=8, causal=True)
    y, weights = attention(x, return_attention_scores=True)
    assert y.shape == (2, 10, 64) and weights.shape == (2, 8, 10, 10)

    grouped = Attention(num_heads=8, num_key_value_heads=2, head_dim=8, position=Rotary(base=1e6))
    assert MultiHeadAttention(grouped, causal=True)(x).shape == (2, 10, 64)
    ```

    Source: Vaswani et al. 2017, section 3.2; grouped heads: Ainslie et al. 2023, section 2.2;
    normalized queries and keys: Dehghani et al. 2023, section 2; `query_scale`: Das et al. 2024,
    "TimesFM", as in its code.
    """

    option_rules: ClassVar = {
        # Checked by `attention_by_keywords` and `config.Attention`: the options of
        # `TransformerConfig` with these names mean something else.
        "query_key_norm": lambda name, value: value,
        "position": lambda name, value: value,
        "causal": check_bool,
        "output_dim": functools.partial(check_int, at_least=1),
    }
    axes: ClassVar = {
        "query": ("batch", "query_length", "query_dim"),
        "value": ("batch or 1", "key_length", "value_dim"),
        "key": ("batch or 1", "key_length", "key_dim"),
    }

    # The processes that have other heads, see `distribution.tensor_parallel`.
    sharing: Any = None

    def __init__(
        self,
        attention: Attention | dict | int | None = None,
        head_dim: int | None = None,
        num_key_value_heads: int | None = None,
        norm: Norm | dict | None = None,
        causal: bool = False,
        output_dim: int | None = None,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        keywords = {name: kwargs.pop(name) for name in ATTENTION_KEYWORDS & kwargs.keys()}
        keywords |= {"head_dim": head_dim, "num_key_value_heads": num_key_value_heads}
        super().__init__(**kwargs)
        if isinstance(attention, int) or attention is None:  # heads and their width, by position
            keywords["score"] = deserialized(keywords.get("score"))
            keywords |= {} if attention is None else {"num_heads": attention}
            attention, own = attention_by_keywords(keywords)
            norm = own if norm is None else norm
        elif given := sorted(name for name, value in keywords.items() if value is not None):
            raise ValueError(f"Give {given} within `attention`, or all by keyword.")
        self.attention = part = part_of("attention", attention, Attention)
        self.norm = part_of("norm", norm or Norm(), Norm)
        if part.head_dim is None:
            raise ValueError(
                "Attention needs the width of its heads: give `head_dim`, usually the width of the "
                "states divided by `num_heads`."
            )
        self.num_heads, self.head_dim = part.num_heads, part.head_dim
        self.num_key_value_heads = part.num_key_value_heads
        self.rotary = part.position
        self.causal = causal
        if part.pattern is not None and part.pattern.bidirectional and causal:
            raise ValueError(
                f"{part.pattern} needs an encoder, whose tokens see those behind them: received "
                "causal=True."
            )
        self.output_dim = output_dim
        self.dropout, self.soft_cap = part.dropout, part.soft_cap
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True
        self._make_projections()
        self.score = own_layer(part.score)
        # The score is a sum of three products if it is disentangled.
        scale = part.scale
        if isinstance(part.score_bias, Disentangled) and scale is None:
            scale = (3 * part.head_dim) ** -0.5
        with no_inner_remat():
            self.score_function = scores.get(
                self.score,
                part.num_heads,
                part.head_dim,
                part.slots,
                scale,
                dtype=self.dtype_policy,
            )
            self.dropout_layer = Dropout(part.dropout, seed=seed, dtype=self.dtype_policy)
            self.query_norm = self._head_norm("query_norm")
            self.key_norm = self._head_norm("key_norm") if part.has_keys else None
            self.value_norm = None
            if part.value_norm is not None:
                kind = part.value_norm
                self.value_norm = make_normalization(
                    kind.type, kind.epsilon, name="value_norm", dtype=self.dtype_policy
                )
            self.grid_scores = None
            if part.scored_grid is not None:
                kind = layer_of(part.score_bias)
                self.grid_scores = kind.from_part(part, name="relative", dtype=self.dtype_policy)
            self.distance_scores = None
            if isinstance(part.score_bias, RelativeKeys):
                self.distance_scores = layer_of(part.score_bias)(
                    part.score_bias,
                    part.head_dim,
                    embeddings_initializer=self.kernel_initializer.clone(),
                    name="relative",
                    dtype=self.dtype_policy,
                )
            self.reduction = None
            if part.sequence_reduction > 1:
                self.reduction = SequenceReduction(
                    part.sequence_reduction,
                    self.norm,
                    kernel_initializer=self.kernel_initializer.clone(),
                    name="reduction",
                    dtype=self.dtype_policy,
                )
            self.rotary_embedding = None
            if part.position is not None:
                rotation = layer_of(part.position)
                self.rotary_embedding = rotation.from_part(part.position, dtype=self.dtype_policy)
        self.global_denses, self.group_norm, self.pattern = [], None, None
        if part.pattern is not None:
            self.pattern = layer_of(part.pattern)(part.pattern)
            self.pattern.make_layers(self)

    def _make_projections(self):
        part = self.attention
        keys = part.num_key_value_heads * part.head_dim
        self.query_dense = self._projection(part.num_heads * part.head_dim, "query", part.bias)
        self.key_dense = self.value_dense = self.gate_dense = None
        if part.has_keys:
            self.key_dense = self._projection(keys, "key", part.key_bias)
        if part.has_values:
            self.value_dense = self._projection(keys, "value", part.bias)
        if part.output_gate:
            self.gate_dense = self._projection(part.num_heads * part.head_dim, "gate", part.bias)
        self.position_projections = self.bias_gate = None
        self.relative_scores = None  # made for the width of the states
        if isinstance(part.score_bias, Disentangled):
            self.position_projections = position_projections(self)
        elif isinstance(part.score_bias, GatedRelativeBias):
            self.bias_gate = self._projection(GATE_VALUES, "bias_gate", True)

    def _head_norm(self, name: str) -> keras.layers.Layer | None:
        kind = self.attention.query_key_norm
        if kind is None:
            return None
        make = make_head_normalization if kind == "per_head" else make_normalization
        norm = self.attention.head_norm or self.norm
        return make(norm.type, norm.epsilon, name=name, dtype=self.dtype_policy)

    def _projection(self, units: int, name: str, use_bias: bool) -> Dense:
        # A fresh initializer each: one instance would give kernels of the same shape equal values.
        initializer = self.kernel_initializer.clone()
        kind = ClippedDense if self.attention.clipped else Dense
        with no_inner_remat():
            return kind(
                units,
                use_bias=use_bias,
                kernel_initializer=initializer,
                name=name,
                dtype=self.dtype_policy,
            )

    def build(self, query_shape, value_shape=None, key_shape=None):
        value_shape = value_shape or query_shape
        if self.rotary_embedding is not None:
            self.rotary_embedding.check_width(self.head_dim)
        self.query_dense.build(query_shape)
        for dense, shape in ((self.key_dense, key_shape), (self.value_dense, None)):
            if dense is not None:
                dense.build(shape or value_shape)
        for layer in (self.gate_dense, *self.global_denses, self.group_norm):
            if layer is not None:
                layer.build(query_shape)
        self.score_function.build(None)
        if self.reduction is not None:
            self.reduction.build(value_shape)
        if self.attention.sinks:
            self.sinks = self.add_weight(name="sinks", shape=(self.num_heads,), initializer="zeros")
        if self.attention.query_scale:
            self.query_scale = self.add_weight(
                name="query_scale", shape=(self.head_dim,), initializer="zeros"
            )
        if isinstance(self.attention.score_bias, RelativeSinusoids):
            with no_inner_remat():
                self.relative_scores = RelativeScores(
                    query_shape[-1],
                    self.num_heads,
                    self.head_dim,
                    compares_segments=self.attention.score_bias.compares_segments,
                    kernel_initializer=self.kernel_initializer.clone(),
                    name="relative",
                    dtype=self.dtype_policy,
                )
            self.relative_scores.build((None, None, self.num_heads, self.head_dim))
        for scores_of_layer in (self.grid_scores, self.distance_scores):
            if scores_of_layer is not None:
                scores_of_layer.build()
        if self.bias_gate is not None:
            self.bias_gate.build((None, None, self.num_heads, query_shape[-1] // self.num_heads))
            self.bias_gate_scale = self.add_weight(
                name="bias_gate_scale", shape=(self.num_heads,), initializer="ones"
            )
        for dense in self.position_projections or ():
            if not dense.built:  # the positions' own
                dense.build(query_shape)
        for norm, dense in ((self.query_norm, self.query_dense), (self.key_norm, self.key_dense)):
            if norm is not None:
                across = self.attention.query_key_norm == "across"
                width = dense.units if across else self.head_dim
                norm.build((None, None, dense.units // width, width))
        if self.value_norm is not None:
            self.value_norm.build((None, None, self.num_key_value_heads, self.head_dim))
        self.output_dense = self._projection(
            self.output_dim or query_shape[-1], "output", self.attention.output_bias
        )
        self.output_dense.build((*query_shape[:-1], self.num_heads * self.head_dim))
        shapes = (query_shape, value_shape, key_shape or value_shape)
        names = ("query_dim", "value_dim", "key_dim")
        self.fixed = {name: shape[-1] for name, shape in zip(names, shapes, strict=True)}

    def check_call(self, given):
        names = ("query", "value", "key", "value_mask", "cache")
        query, value, key, value_mask, cache = map(given.get, names)
        keys, own_keys = self._keys(query, value, cache), self._has_own_keys(value, cache)
        super().check_call({**given, "value": keys})
        check_has_keys(type(self).__name__, value=value)
        check_mask_and_bias(self.attention, self.causal, query, keys, given, own_keys)
        if self.attention.on_grid and given.get("grid") is None:
            raise ValueError("`sequence_reduction` and `GridWindows` need the `grid` of patches.")
        if self.reduction is not None:
            reason = "keys are merged patches of whole images: leave it out."
            masks = {name: given.get(name) for name in ("mask", "value_mask", "bias", "cache")}
            padding = AttentionMask.given(given.get("visibility")).padding
            refuse_unused(reason, key=key, padding=padding, **masks)
        if cache is not None:
            cache.check_fit(known_shape(query), self.num_key_value_heads, self.head_dim)
        if own_keys:
            reason = "there is no `value`. The `mask` of the queries is also the mask of the keys."
            refuse_unused(reason, value_mask=value_mask)
        elif value is None:
            refuse_unused("the keys come from the cache. Give `value` too.", key=key)

    def call(
        self,
        query,
        value=None,
        key=None,
        mask=None,
        query_mask=None,
        value_mask=None,
        visibility=None,
        bias=None,
        relative=None,
        cache=None,
        return_attention_scores: bool = False,
        return_projections: bool = False,
        return_for_later: bool = False,
        earlier=None,
        beside=None,
        training: bool = False,
        grid=None,
    ):
        if self.reduction is not None:
            value = self.reduction(query if value is None else value, grid=grid)
        if self.sharing is not None:
            states = (query, value, key)
            query, value, key = (x if x is None else self.sharing.enter(x) for x in states)
        own_keys = self._has_own_keys(value, cache)
        mask = query_mask if mask is None else mask
        self._check_masks(query, value, cache, mask, value_mask)
        visibility = AttentionMask.given(visibility, mask if own_keys else value_mask)
        first_slot = cache.next if own_keys and cache is not None else 0
        # Once a cache holds tokens, the keys are more than the tokens of this call.
        from_cache = cache is not None and not is_static_zero(cache.next)
        positions = visibility.query_positions
        if positions is None and from_cache and own_keys and self.rotary is not None:
            positions = first_slot + sequence_positions(query)
        key_positions = positions if own_keys else visibility.key_positions
        rotation = {"positions": positions}
        if self.rotary is not None:
            padding = None if from_cache else visibility.padding
            states = query if value is None else value
            rotation["lengths"] = self._row_lengths(states, key_positions, padding)
        queries = self._normalized_and_rotated(
            self.query_dense(query), self.num_heads, self.query_norm, rotation
        )
        if self.rotary is not None and self.rotary.scales_queries:
            queries = self.rotary_embedding.scaled_queries(queries, positions)
        if self.attention.query_scale:
            factor = ops.softplus(ops.cast(self.query_scale, "float32")) / math.log(2)
            queries = queries * ops.cast(factor, queries.dtype)
        if earlier is not None:
            keys, values = earlier
            cache = None if cache is None else cache.after(ops.shape(query)[1])
        elif own_keys or value is not None:
            rotation["positions"] = key_positions
            keys, values = self._keys_and_values(query, value, key, rotation)
            if self.relative_scores is not None:
                if relative is None:
                    raise ValueError(
                        "Attention with `RelativeSinusoids` needs `relative`, the output of "
                        "`SinusoidStates`."
                    )
                added = self.relative_scores(queries, keys=keys, relative=relative)
                added = added * self.score_function.scale
                bias = added if bias is None else bias + added
            elif self.distance_scores is not None:
                added = self.distance_scores(queries, keys) * self.score_function.scale
                bias = added if bias is None else bias + added
            elif self.position_projections is not None or relative is not None:
                bias = with_relative_scores(self, queries, keys, relative, cache, bias)
            if cache is not None:
                cache = cache.write(keys, values)
                cache = cache if own_keys else cache.full()
        of_call = (keys, values) if return_for_later else None
        shares_tokens = cache is None and (EXCHANGES or keras.distribution.distribution())
        if shares_tokens:
            queries, keys, values = over_heads(queries, keys, values)
            visibility = seen_over_heads(visibility)
        if from_cache:
            keys, values = cache.read(self.compute_dtype)
        elif visibility.key_positions is None:
            visibility = visibility._replace(key_positions=key_positions)
        if cache is None:
            # A window counts places in the sequence, or positions in a cache, which may have gaps.
            visibility = visibility._replace(query_positions=None, key_positions=None)
        # With a cache, an explicit mask already includes causality.
        causal = self.causal and (cache is None or (own_keys and visibility.explicit is None))
        visibility = visibility._replace(causal=causal, first_slot=first_slot, pattern=self.pattern)
        if beside is not None:
            own = (keys, values) if from_cache else (heads_first(keys), heads_first(values))
            visibility = with_keys_before(visibility, queries, own[0], *beside[::2])
            keys, values = joined_keys(own, beside[:2])
            if not from_cache:
                keys, values = heads_first(keys), heads_first(values)
        if self.score_function.prepares:
            queries, keys = self.score_function.prepared(queries, keys)
        attend = functools.partial(self._attend, from_cache, return_attention_scores, training)
        if self.pattern is None:
            if isinstance(bias, LazyBias):
                bias = bias.materialize(query)
            if self.bias_gate is not None and bias is not None:
                bias = gated_bias(self, query, bias)
            if self.grid_scores is not None:
                dropped = training and self.dropout > 0
                parts = self.grid_scores.in_parts(queries) and not (
                    return_attention_scores or dropped or bias is not None
                )
                if parts:
                    attend = functools.partial(self.grid_scores.attend, attend)
                else:
                    added = self.grid_scores(queries)
                    bias = added if bias is None else bias + added
            attended, weights = attend(queries, keys, values, visibility, bias)
        else:
            visibility = visibility if from_cache else self.pattern.placed(visibility)
            may_cut = own_keys and not (from_cache or return_attention_scores)
            options = {
                "may_cut": may_cut and self.score_function.of_contents,
                "training": training,
                "grid": grid,
            }
            projected = (queries, keys, values)
            given = (self, attend, query, projected, visibility, bias)
            attended, weights = self.pattern.attend(*given, **options)
        attended = over_tokens(attended) if shares_tokens else attended
        shape = ops.shape(attended)
        attended = ops.reshape(attended, (shape[0], shape[1], self.num_heads * self.head_dim))
        if self.gate_dense is not None:
            attended = attended * ops.sigmoid(self.gate_dense(query))
        output = self.output_dense(attended)
        projections = self._projections(queries, keys, from_cache) if return_projections else None
        return pack_outputs(output, weights, projections, of_call, cache)

    @property
    def sees_first_alone(self) -> bool:
        """Whether the first query can be computed alone with the same output.

        Not with global tokens: their projections differ from the projections of other queries.
        """
        return not self.global_denses

    def _has_own_keys(self, value, cache) -> bool:
        """Return True if the keys come from the query states: self-attention."""
        return value is None and (cache is None or cache.next is not None)

    def _keys(self, query, value, cache):
        """Return the states that the keys come from. None with a cache, which may hold them."""
        return query if value is None and cache is None else value

    def _check_masks(self, query, value, cache, mask, value_mask):
        """Raise ValueError if a mask does not fit; Keras gives propagated ones only to `call`."""
        if mask is not None or value_mask is not None:
            keys = self._keys(query, value, cache)
            check_shapes(query, keys, mask=mask, value_mask=value_mask)

    def keys_and_values(self, states):
        """Project states of another side to keys and values, which are not rotated.

        Args:
            states: float `(batch, length, dim)`.

        Returns:
            Two tensors `(batch, length, num_key_value_heads, head_dim)`.
        """
        norm = self.key_norm
        keys = self._normalized(self.key_dense(states), self.num_key_value_heads, norm)
        dense = self.key_dense if self.value_dense is None else self.value_dense
        values = self._split(dense(states), self.num_key_value_heads)
        return keys, values if self.value_norm is None else self.value_norm(values)

    def _keys_and_values(self, query, value, key, rotation):
        value = query if value is None else value
        key = value if key is None else key
        keys = self._normalized_and_rotated(
            self.key_dense(key), self.num_key_value_heads, self.key_norm, rotation
        )
        source = value if self.value_dense is not None else key
        dense = self.key_dense if self.value_dense is None else self.value_dense
        values = self._split(dense(source), self.num_key_value_heads)
        return keys, values if self.value_norm is None else self.value_norm(values)

    def _projections(self, queries, keys, from_cache) -> dict:
        """Return queries and keys as the scores use them, `(batch, heads, length, head_dim)`."""
        return {
            "queries": heads_first(queries),
            "keys": keys if from_cache else heads_first(keys),
        }

    def _row_lengths(self, keys, positions, padding):
        """Return the number of tokens of each row if the rotation depends on it, else None."""
        if not self.rotary_embedding.by_length:
            return None
        return row_lengths(sequence_positions(keys) if positions is None else positions, padding)

    def _normalized_and_rotated(self, states, heads, norm, rotation):
        rotated = self.attention.query_key_norm == "rotated"
        before, after = (None, norm) if rotated else (norm, None)
        states = self._normalized(states, heads, before)
        rotate = self.rotary_embedding
        states = states if rotate is None else call_unchecked(rotate, states, **rotation)
        return states if after is None else after(states)

    def _normalized(self, states, heads, norm):
        """Split states into heads, and normalize them if there is a norm."""
        if norm is not None and self.attention.query_key_norm == "across":
            states, norm = norm(states), None
        states = self._split(states, heads)
        return states if norm is None else norm(states)

    def _split(self, states, heads: int):
        shape = ops.shape(states)
        return ops.reshape(states, (shape[0], shape[1], heads, self.head_dim))

    def compute_mask(self, query, mask=None, **kwargs):
        return mask

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def compute_output_spec(self, *args, **kwargs):
        given = named_arguments(self.call, args, kwargs)
        query, value, cache = given["query"], given["value"], given["cache"]
        mask = given["query_mask"] if given["mask"] is None else given["mask"]
        self._check_masks(query, value, cache, mask, given["value_mask"])
        if self.attention.on_grid:
            return keras.layers.Layer.compute_output_spec(self, *args, **kwargs)
        output = keras.KerasTensor(self.compute_output_shape(query.shape), self.compute_dtype)
        keys, weights, projections = query if value is None else value, None, None
        batch, length = query.shape[:2]
        slots = keys.shape[1] if cache is None else cache.keys.shape[2]
        if given["return_attention_scores"]:
            weights = keras.KerasTensor((batch, self.num_heads, length, slots), dtype="float32")
        if given["return_projections"]:
            sizes = {"queries": (self.num_heads, length), "keys": (self.num_key_value_heads, slots)}
            projections = {
                name: keras.KerasTensor((batch, *size, self.head_dim), self.compute_dtype)
                for name, size in sizes.items()
            }
        return pack_outputs(output, weights, projections, cache)
