"""Multi-head attention: self, cross, causal, grouped, cached, with any score function."""

import functools
from collections.abc import Callable
from typing import ClassVar

import keras
from keras import ops

from keras_transformer.checking import check_bool, check_int, known_shape, show_shape
from keras_transformer.config_checks import check_pattern, check_query_key_norm
from keras_transformer.layers import scores
from keras_transformer.layers.arguments import (
    ChecksCall,
    SavesArguments,
    check_shapes,
    named_arguments,
    own_layer,
    refuse_unused,
    with_further,
)
from keras_transformer.layers.attending import Attends
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.disentangled import position_projections, with_relative_scores
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.masking import Visibility, is_zero
from keras_transformer.layers.normalization import make_head_normalization, make_normalization
from keras_transformer.layers.position import RotaryEmbedding, sequence_positions
from keras_transformer.layers.position_bias import PairBias
from keras_transformer.layers.remat import Rematerializable, one_piece


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(ChecksCall, SavesArguments, Rematerializable, Attends, keras.layers.Layer):
    """Attention of every query to every visible key, in several heads.

    One layer serves self-attention (give `query` alone), cross-attention (give `value`, and `key`
    if it differs) and cached decoding (give `cache`). With the score `"scaled_dot"` or `"dot"`
    the fused kernel of the backend is used, unless the weights are asked for or dropped out.

    Args:
        num_heads: int, number of query heads.
        head_dim: int, width of one head.
        num_key_value_heads: int, heads of keys and values, shared by groups of query heads.
            Defaults to `num_heads`.
        output_dim: int, width of the output. Defaults to that of the query.
        score: the score function, each on the projected query `q` and key `k` of a head:
            `"scaled_dot"`: `q.k / sqrt(head_dim)` (Vaswani et al. 2017, section 3.2.1);
            `"dot"`: `q.k` and `"general"`: `q W k` (Luong et al. 2015, equation 8);
            `"additive"`: `v.tanh(q + k)` (Bahdanau et al. 2014, appendix A.1.2);
            `"cosine"`: content-based, `strength * cos(q, k)` (Graves et al. 2014, section 3.3.1);
            `"location"`: `W q`, one score a slot, whatever the key (Luong et al. 2015, eq. 9);
            or a function or layer of your own, of queries `(batch, num_heads, query_length,
            head_dim)` and keys `(batch, num_heads, key_length, head_dim)` to scores `(batch,
            num_heads, query_length, key_length)`. A layer belongs to one attention: a second one
            that is given it has a copy, with weights of its own.
        causal: bool, a query sees only the keys up to its own position.
        window: int, a query sees only keys less than this many places away. Long sequences are
            attended to in blocks, at a cost that grows with the length and not with its square.
        window_dilation: int, the step between the places of a window, `window - 1` on each side.
        global_tokens: int, number of first tokens of a row that see all and are seen by all,
            whatever the `window`. Others are given as `visibility.global_positions`.
        global_projection: bool, global tokens attend by projections of their own (Longformer).
        block_size: int, in place of a window: a query sees the keys of its own block of so many
            places, of the one before and the one behind, of the first and of the last. These two
            see all (BigBird).
        random_blocks: int, number of further blocks, drawn for each block and head in training;
            otherwise the first block stands in their place, as in Transformers. In sequences of
            no more than `(5 + 2 * random_blocks) * block_size` tokens all see all.
        global_block_size: int, beside its window a query sees a key of each block of so many
            tokens, the normalized sum of their states (LongT5).
        rotary: dict, the options of the `RotaryEmbedding` of queries and keys, `{}` for its
            defaults. Defaults to no rotation.
        max_sequence_length: int, number of slots of `"location"`.
        use_bias: bool, biases of query, key and value.
        key_bias: bool, bias of the key, which changes no weight. Defaults to `use_bias`.
        output_bias: bool, bias of the output. Defaults to `use_bias`.
        query_key_norm: a name in `config.NORMALIZATIONS`, of each head's queries and keys. Defaults
            to no normalization.
        query_key_norm_across_heads: bool, of those of all heads together (OLMo 2).
        query_key_norm_per_head: bool, a LayerNorm with a weight for each head (Cohere).
        disentangled: str, scores of queries with positions and of positions with keys too, see
            `RelativeEmbedding`: of its states by the `"shared"` projections, or by their `"own"`.
        normalization_epsilon: float, of `query_key_norm`.
        score_scale: float, factor of `"scaled_dot"`. Defaults to `head_dim ** -0.5`.
        attention_soft_cap: float, bounds the scores by `cap * tanh(scores / cap)` (Gemma 2, Riviere
            et al. 2024, section 2). Defaults to no bound.
        attention_sinks: bool, each head has a score of its own for attending to nothing (gpt-oss,
            Agarwal et al. 2025, section 2.2).
        dropout: float, rate on the attention weights.
        kernel_initializer: initializer of the kernels.
        seed: int, for the dropout.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        query: float `(batch, query_length, dim)`.
        value: float `(batch, key_length, dim)`. Defaults to `query`.
        key: float `(batch, key_length, dim)`. Defaults to `value`.
        mask: bool `(batch, query_length)`, the real tokens of `query`.
        value_mask: bool `(batch, key_length)`, the real tokens of `value`. Layers that make Keras
            masks give both; Keras calls the first one `query_mask` where other tensors than
            `query` are given.
        visibility: `Visibility`, what further decides which keys a query sees: packed documents,
            positions, an explicit mask. Its `padding` takes the place of the masks.
        bias: float `(batch or 1, num_heads or 1, query_length, key_length)`, added to the scores.
        relative: `RelativeStates`, for `disentangled`.
        cache: `Slots` for keys and values. Self-attention writes the new ones behind those that it
            holds and reads all. Cross-attention writes those of `value` and, without it, reads
            what an earlier call wrote.
        return_attention_scores: bool.
        return_projections: bool.

    Returns:
        Float `(batch, query_length, output_dim)`. In a tuple with it, if asked for, the attention
        weights `(batch, num_heads, query_length, key_length)` in float32; a dict of the `queries`
        and `keys` as the score function is given them, normalized and rotated, `(batch, heads,
        length, head_dim)`; and, if one was given, the updated cache.

    Raises:
        ValueError: for numbers of heads that do not divide, an option that is out of range, an
            unknown score, a location score of more slots than it has, arrays that do not fit each
            other, and an argument that has no effect beside the others.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import MultiHeadAttention

    x = np.random.rand(2, 10, 64).astype("float32")
    attention = MultiHeadAttention(num_heads=8, head_dim=8, causal=True)
    y, weights = attention(x, return_attention_scores=True)
    assert y.shape == (2, 10, 64) and weights.shape == (2, 8, 10, 10)
    ```

    Source: Vaswani et al. 2017, section 3.2; grouped heads: Ainslie et al. 2023, section 2.2;
    normalized queries and keys: Dehghani et al. 2023, section 2.
    """

    option_rules: ClassVar = {
        "causal": check_bool,
        "output_dim": functools.partial(check_int, at_least=1),
        "query_key_norm": "normalization",
    }
    axes: ClassVar = {
        "query": ("batch", "query_length", "query_dim"),
        "value": ("batch or 1", "key_length", "value_dim"),
        "key": ("batch or 1", "key_length", "key_dim"),
    }

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_key_value_heads: int | None = None,
        output_dim: int | None = None,
        score: str | Callable = "scaled_dot",
        causal: bool = False,
        window: int | None = None,
        window_dilation: int = 1,
        global_tokens: int = 0,
        global_projection: bool = False,
        block_size: int | None = None,
        random_blocks: int = 0,
        global_block_size: int | None = None,
        rotary: dict | None = None,
        max_sequence_length: int | None = None,
        use_bias: bool = True,
        key_bias: bool | None = None,
        output_bias: bool | None = None,
        query_key_norm: str | None = None,
        query_key_norm_across_heads: bool = False,
        query_key_norm_per_head: bool = False,
        disentangled: str | None = None,
        normalization_epsilon: float = 1e-6,
        score_scale: float | None = None,
        attention_soft_cap: float | None = None,
        attention_sinks: bool = False,
        dropout: float = 0.0,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_key_value_heads = num_key_value_heads or num_heads
        if num_heads % self.num_key_value_heads:
            raise ValueError(
                "`num_heads` must be a multiple of `num_key_value_heads`, received "
                f"{num_heads} and {num_key_value_heads}."
            )
        self.output_dim = output_dim
        self.score = score = own_layer(score)
        self.causal = causal
        self.window, self.window_dilation = window, window_dilation
        self.global_tokens, self.global_projection = global_tokens, global_projection
        self.block_size, self.random_blocks = block_size, random_blocks
        self.global_block_size = global_block_size
        check_pattern(self, causal, rotary is not None)
        self.rotary = rotary
        self.max_sequence_length = max_sequence_length
        self.use_bias = use_bias
        self.key_bias = use_bias if key_bias is None else key_bias
        self.output_bias = use_bias if output_bias is None else output_bias
        self.query_key_norm = query_key_norm
        self.query_key_norm_across_heads = query_key_norm_across_heads
        self.query_key_norm_per_head = query_key_norm_per_head
        check_query_key_norm(self, query_key_norm)
        self.disentangled = disentangled
        self.normalization_epsilon = normalization_epsilon
        self.attention_soft_cap, self.attention_sinks = attention_soft_cap, attention_sinks
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self.supports_masking = True
        self._make_projections(use_bias)
        if disentangled and score_scale is None:
            score_scale = (3 * head_dim) ** -0.5  # of a sum of three products
        with one_piece():
            self.score_function = scores.get(
                score,
                num_heads,
                head_dim,
                max_sequence_length,
                score_scale,
                dtype=self.dtype_policy,
            )
            self.dropout_layer = Dropout(dropout, seed=seed, dtype=self.dtype_policy)
            self.group_norm = None
            if global_block_size is not None:
                self.group_norm = make_normalization(
                    "rms_norm", normalization_epsilon, name="group_norm", dtype=self.dtype_policy
                )
            self.query_norm, self.key_norm = map(self._head_norm, ("query_norm", "key_norm"))
            self.rotary_embedding = None
            if rotary is not None:
                self.rotary_embedding = RotaryEmbedding(**rotary, dtype=self.dtype_policy)

    def _make_projections(self, use_bias: bool):
        self.query_dense = self._projection(self.num_heads * self.head_dim, "query", use_bias)
        shared_dim = self.num_key_value_heads * self.head_dim
        self.key_dense = self._projection(shared_dim, "key", self.key_bias)
        self.value_dense = self._projection(shared_dim, "value", use_bias)
        self.global_denses = [
            self._projection(dense.units, f"{dense.name}_global", use_bias)
            for dense in (self.query_dense, self.key_dense, self.value_dense)
            if self.global_projection
        ]
        self.position_projections = position_projections(self)

    def _head_norm(self, name: str) -> keras.layers.Layer | None:
        if self.query_key_norm is None:
            return None
        make = make_head_normalization if self.query_key_norm_per_head else make_normalization
        return make(
            self.query_key_norm, self.normalization_epsilon, name=name, dtype=self.dtype_policy
        )

    def _projection(self, units: int, name: str, use_bias: bool) -> Dense:
        # A fresh initializer each: one instance would give all kernels of a shape one value.
        initializer = self.kernel_initializer.clone()
        with one_piece():
            return Dense(
                units,
                use_bias=use_bias,
                kernel_initializer=initializer,
                name=name,
                dtype=self.dtype_policy,
            )

    def build(self, query_shape, value_shape=None, key_shape=None):
        value_shape = value_shape or query_shape
        self.query_dense.build(query_shape)
        self.key_dense.build(key_shape or value_shape)
        self.value_dense.build(value_shape)
        for layer in (*self.global_denses, self.group_norm):
            if layer is not None:
                layer.build(query_shape)
        self.score_function.build(None)
        if self.attention_sinks:
            self.sinks = self.add_weight(name="sinks", shape=(self.num_heads,), initializer="zeros")
        for dense in self.position_projections if self.disentangled == "own" else ():
            dense.build(query_shape)
        for norm, dense in ((self.query_norm, self.query_dense), (self.key_norm, self.key_dense)):
            if norm is not None:
                width = dense.units if self.query_key_norm_across_heads else self.head_dim
                norm.build((None, None, dense.units // width, width))
        self.output_dense = self._projection(
            self.output_dim or query_shape[-1], "output", self.output_bias
        )
        self.output_dense.build((*query_shape[:-1], self.num_heads * self.head_dim))
        shapes = (query_shape, value_shape, key_shape or value_shape)
        names = ("query_dim", "value_dim", "key_dim")
        self.fixed = {name: shape[-1] for name, shape in zip(names, shapes, strict=True)}

    def check_axes(self, given):
        query, value = given.get("query"), given.get("value")
        if value is None and given.get("cache") is None:  # the query's states are the values
            given = {**given, "value": query}
        super().check_axes(given)
        shape = known_shape(value)
        if shape is not None and isinstance(shape[1], int) and shape[1] == 0:
            raise ValueError(
                f"`value` of {type(self).__name__} has no keys to attend to: its shape is "
                f"{show_shape(shape)}."
            )

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
        training: bool = False,
    ):
        own_keys = self._has_own_keys(value, cache)
        mask = query_mask if mask is None else mask
        self._check_used(query, value, key, mask, value_mask, visibility, bias, cache, relative)
        visibility = Visibility.given(visibility, mask if own_keys else value_mask)
        first_slot = cache.next if own_keys and cache is not None else 0
        # Behind a cache's first tokens there are others to attend to than those of the call.
        from_cache = cache is not None and not is_zero(cache.next)
        positions = visibility.query_positions
        if positions is None and from_cache and own_keys and self.rotary is not None:
            positions = first_slot + sequence_positions(query)
        key_positions = positions if own_keys else visibility.key_positions
        padding = None if from_cache else visibility.padding
        lengths = self._row_lengths(query if value is None else value, key_positions, padding)
        rotation = {"positions": positions, "lengths": lengths}
        queries = self._normalized_and_rotated(
            self.query_dense(query), self.num_heads, self.query_norm, rotation
        )
        if own_keys or value is not None:
            rotation["positions"] = key_positions
            keys, values = self._keys_and_values(query, value, key, rotation)
            bias = with_relative_scores(self, queries, keys, relative, cache, bias)
            if cache is not None:
                cache = cache.write(keys, values)
                cache = cache if own_keys else cache.full()
        if from_cache:
            keys, values = cache.read(self.compute_dtype)
        elif visibility.key_positions is None:
            visibility = visibility._replace(key_positions=key_positions)
        if cache is None:
            # A window counts the places in the sequence; in a cache, which has gaps, positions.
            visibility = visibility._replace(query_positions=None, key_positions=None)
        # With a cache an explicit mask says it, if there is one.
        causal = self.causal and (cache is None or (own_keys and visibility.explicit is None))
        visibility = visibility._replace(causal=causal, first_slot=first_slot, **self._pattern)
        if not from_cache:
            visibility = visibility.with_global_positions()
        given = (query, queries, keys, values, visibility, bias)
        may_cut = own_keys and not (from_cache or return_attention_scores)
        attend = functools.partial(self._attend, from_cache, return_attention_scores, training)
        attended, weights = self._attend_to_pattern(attend, *given, may_cut, training)
        shape = ops.shape(attended)
        output = self.output_dense(
            ops.reshape(attended, (shape[0], shape[1], self.num_heads * self.head_dim))
        )
        projections = self._projections(queries, keys, from_cache) if return_projections else None
        return with_further(output, weights, projections, cache)

    def _has_own_keys(self, value, cache) -> bool:
        """Whether keys are made of the queries: self-attention."""
        return value is None and (cache is None or cache.next is not None)

    def _check_used(self, query, value, key, mask, value_mask, visibility, bias, cache, relative):
        """ValueError for arguments that would change nothing, or do not fit."""
        own_keys, visibility = self._has_own_keys(value, cache), Visibility.given(visibility)
        visibility.check_used(self, own_keys, cached=cache is not None)
        keys = query if value is None and cache is None else value
        masks = {"mask": mask, "value_mask": value_mask}
        shown = None if isinstance(bias, PairBias) else bias
        buckets = None if relative is None else relative.buckets
        check_shapes(query, keys, **masks, bias=shown, buckets=buckets, **visibility.tensors())
        if cache is not None:
            cache.check_fit(known_shape(query), self.num_key_value_heads, self.head_dim)
        if own_keys:
            reason = "there is no `value`. The `mask` of the queries is that of the keys."
            refuse_unused(reason, value_mask=value_mask)
        elif value is None:
            refuse_unused("the keys are those of the cache. Give `value` too.", key=key)

    def _keys_and_values(self, query, value, key, rotation):
        value = query if value is None else value
        key = value if key is None else key
        keys = self._normalized_and_rotated(
            self.key_dense(key), self.num_key_value_heads, self.key_norm, rotation
        )
        return keys, self._split(self.value_dense(value), self.num_key_value_heads)

    def compute_mask(self, query, mask=None, **kwargs):
        return mask

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def compute_output_spec(self, *args, **kwargs):
        given = named_arguments(self.call, args, kwargs)
        query, value, cache = given["query"], given["value"], given["cache"]
        mask = given["query_mask"] if given["mask"] is None else given["mask"]
        names = ("key", "value_mask", "visibility", "bias", "relative")
        key, value_mask, visibility, bias, relative = map(given.get, names)
        self._check_used(query, value, key, mask, value_mask, visibility, bias, cache, relative)
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
        return with_further(output, weights, projections, cache)
