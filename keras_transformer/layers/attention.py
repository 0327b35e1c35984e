"""Multi-head attention: self, cross, causal, grouped, cached, with any score function."""

from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.layers import scores
from keras_transformer.layers.arguments import (
    NamesArguments,
    SavesArguments,
    check_positions,
    check_shapes,
    deserialized,
    named_arguments,
    refuse_unused,
)
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.masking import Visibility
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.position import RotaryEmbedding
from keras_transformer.layers.remat import Rematerializable, one_piece


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(NamesArguments, SavesArguments, Rematerializable, keras.layers.Layer):
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
            num_heads, query_length, key_length)`.
        causal: bool, a query sees only keys up to its own place.
        window: int, a query sees only keys less than this many positions away.
        rotary: dict, rotates queries and keys: the options of `RotaryEmbedding`, `{}` for its
            defaults. None for not.
        max_sequence_length: int, number of slots of `"location"`.
        use_bias: bool, biases of query, key and value.
        output_bias: bool, bias of the output. Defaults to `use_bias`.
        query_key_norm: `"layer_norm"` or `"rms_norm"`, on each head's queries and keys. None for
            not.
        normalization_epsilon: float, of `query_key_norm`.
        attention_soft_cap: float, what scores stay below: `cap * tanh(scores / cap)` (Gemma 2,
            Riviere et al. 2024, section 2). None for no cap.
        dropout: float, rate on the attention weights.
        kernel_initializer: initializer of the kernels.
        seed: int, for the dropout.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        query: float `(batch, query_length, dim)`.
        value: float `(batch, key_length, dim)`. Defaults to `query`.
        key: float `(batch, key_length, dim)`. Defaults to `value`.
        mask: bool `(batch, query_length)`, the real tokens of `query`.
        value_mask: bool `(batch, key_length)`, the real tokens of `value`. Both masks come by
            themselves from layers that make Keras masks; Keras names the first `query_mask`
            when other tensors than `query` are given too.
        attention_mask: bool `(batch, query_length, key_length)`, True where allowed. With a cache
            it says all, causality too; without it a causal query sees the slots up to its own.
        bias: float `(batch or 1, num_heads or 1, query_length, key_length)`, added to the scores.
        positions: int `(batch, query_length)`, for `rotary` and `window`.
        key_positions: int `(batch, key_length)`, likewise. Defaults to `positions` in
            self-attention, where with a cache it is for `window` alone: the keys in the cache
            are rotated already.
        pack_ids: int `(batch, query_length)`, which packed document a token is of: only keys of
            the same are seen.
        value_pack_ids: int `(batch, key_length)`, likewise of the keys. Defaults to `pack_ids`.
        cache: `layers.slots.Slots` for keys and values. Self-attention writes the new ones
            from slot `cache_index` on and reads all. Cross-attention writes those of `value`
            and, without it, reads what an earlier call wrote.
        cache_index: int or int scalar tensor, the first slot to write. Only of an int is it
            known while a function is compiled which slots are filled; then no others are read.
        return_attention_scores: bool.

    Returns:
        Float `(batch, query_length, output_dim)`; then, if asked for, the attention weights
        `(batch, num_heads, query_length, key_length)` in float32; then, if a cache was given,
        the updated cache.

    Raises:
        ValueError: for head numbers that do not divide, an unknown score, a location score on
            more slots than it has; for an argument that has no effect beside the others.

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

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_key_value_heads: int | None = None,
        output_dim: int | None = None,
        score: str | Callable = "scaled_dot",
        causal: bool = False,
        window: int | None = None,
        rotary: dict | None = None,
        max_sequence_length: int | None = None,
        use_bias: bool = True,
        output_bias: bool | None = None,
        query_key_norm: str | None = None,
        normalization_epsilon: float = 1e-6,
        attention_soft_cap: float | None = None,
        dropout: float = 0.0,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_key_value_heads = num_key_value_heads or num_heads
        if num_heads < 1 or head_dim < 1 or num_heads % self.num_key_value_heads:
            raise ValueError(
                "`num_heads` and `head_dim` must be positive and `num_heads` a multiple of "
                f"`num_key_value_heads`, received {num_heads}, {head_dim}, {num_key_value_heads}."
            )
        self.output_dim = output_dim
        self.score = score = deserialized(score)
        self.causal = causal
        self.window = window
        self.rotary = rotary
        self.max_sequence_length = max_sequence_length
        self.use_bias = use_bias
        self.output_bias = use_bias if output_bias is None else output_bias
        self.query_key_norm = query_key_norm
        self.normalization_epsilon = normalization_epsilon
        self.attention_soft_cap = attention_soft_cap
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self.supports_masking = True

        self.query_dense = self._projection(self.num_heads * head_dim, "query", use_bias)
        shared_dim = self.num_key_value_heads * head_dim
        self.key_dense = self._projection(shared_dim, "key", use_bias)
        self.value_dense = self._projection(shared_dim, "value", use_bias)
        with one_piece():
            self.score_function = scores.get(
                score, num_heads, head_dim, max_sequence_length, dtype=self.dtype_policy
            )
            self.dropout_layer = Dropout(dropout, seed=seed, dtype=self.dtype_policy)
            self.rotary_embedding = self.query_norm = self.key_norm = None
            if rotary is not None:
                self.rotary_embedding = RotaryEmbedding(**rotary, dtype=self.dtype_policy)
            if query_key_norm is not None:
                self.query_norm, self.key_norm = (
                    make_normalization(
                        query_key_norm, normalization_epsilon, name=name, dtype=self.dtype_policy
                    )
                    for name in ("query_norm", "key_norm")
                )

    def _projection(self, units: int, name: str, use_bias: bool) -> keras.layers.Dense:
        # A fresh initializer each: one instance would give all kernels of a shape one value.
        initializer = self.kernel_initializer.clone()
        with one_piece():
            return keras.layers.Dense(
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
        self.score_function.build(None)
        for norm in (self.query_norm, self.key_norm):
            if norm is not None:
                norm.build((None, None, None, self.head_dim))
        self.output_dense = self._projection(
            self.output_dim or query_shape[-1], "output", self.output_bias
        )
        self.output_dense.build((*query_shape[:-1], self.num_heads * self.head_dim))

    def call(
        self,
        query,
        value=None,
        key=None,
        mask=None,
        query_mask=None,
        value_mask=None,
        attention_mask=None,
        bias=None,
        positions=None,
        key_positions=None,
        pack_ids=None,
        value_pack_ids=None,
        cache=None,
        cache_index=None,
        return_attention_scores: bool = False,
        training: bool = False,
    ):
        self._check_used(
            query, value, key, mask, query_mask, value_mask, attention_mask, bias, positions,
            key_positions, pack_ids, value_pack_ids, cache, cache_index,
        )  # fmt: skip
        self_attention = value is None and (cache is None or cache_index is not None)
        queries = self._split(self.query_dense(query), self.num_heads)
        queries = self._normalized_and_rotated(queries, self.query_norm, positions)
        # Behind a cache's first tokens there are others to attend to than those of the call.
        from_cache = cache is not None and not _is_first(self_attention, value, cache_index)
        if value is not None or self_attention:
            rotation = positions if self_attention else key_positions
            keys, values = self._keys_and_values(query, value, key, rotation)
            if cache is not None:
                cache = cache.write(keys, values, cache_index if self_attention else 0)
        if from_cache:
            known = self_attention and isinstance(cache_index, int)
            filled = cache_index + query.shape[1] if known else None
            keys, values = cache.read(self.compute_dtype, filled)
        if self_attention and key_positions is None:
            key_positions = positions

        mask = query_mask if mask is None else mask
        visibility = Visibility(
            # With a cache `attention_mask` says it, if there is one.
            causal=self.causal and (cache is None or (self_attention and attention_mask is None)),
            first_slot=cache_index if cache is not None and self_attention else 0,
            padding=mask if self_attention else value_mask,
            window=self.window,
            query_pack=pack_ids,
            key_pack=value_pack_ids,
            query_positions=positions,
            key_positions=key_positions,
            explicit=attention_mask,
        )
        weights = None
        dropped = training and self.dropout > 0
        plain = self.score_function.scale is not None and self.attention_soft_cap is None
        kernel = plain and not (dropped or return_attention_scores)
        if kernel and not from_cache and _has_kernel(queries.dtype):
            attended = self._attend_fused(queries, keys, values, visibility, bias)
        else:
            if not from_cache:
                keys, values = _heads_first(keys), _heads_first(values)
            attended, weights = self._attend(queries, keys, values, visibility, bias, training)
        shape = ops.shape(attended)
        output = self.output_dense(
            ops.reshape(attended, (shape[0], shape[1], self.num_heads * self.head_dim))
        )
        result = (output,)
        if return_attention_scores:
            result += (weights,)
        if cache is not None:
            result += (cache,)
        return result if len(result) > 1 else output

    def _check_used(
        self, query, value, key, mask, query_mask, value_mask, attention_mask, bias, positions,
        key_positions, pack_ids, value_pack_ids, cache, cache_index, **_,
    ):  # fmt: skip
        """ValueError for arguments that would change nothing, or do not fit."""
        if cache is None:
            refuse_unused("it is the slot of a `cache`.", cache_index=cache_index)
            check_positions(self, positions, key_positions, self_attention=value is None)
        elif value is not None:
            refuse_unused("`value` is written from slot 0 on.", cache_index=cache_index)
        elif cache_index is None:
            refuse_unused("the keys are those of the cache. Give `value` too.", key=key)
        if value is None and (cache is None or cache_index is not None):
            reason = "there is no `value`. The `mask` of the queries is that of the keys."
            refuse_unused(reason, value_mask=value_mask)
        if pack_ids is None:
            refuse_unused("`pack_ids` are not given.", value_pack_ids=value_pack_ids)
        check_shapes(
            query, query if value is None and cache is None else value, mask=mask,
            query_mask=query_mask, value_mask=value_mask, attention_mask=attention_mask, bias=bias,
            positions=positions, key_positions=key_positions, pack_ids=pack_ids,
            value_pack_ids=value_pack_ids,
        )  # fmt: skip

    def _keys_and_values(self, query, value, key, positions):
        value = query if value is None else value
        key = value if key is None else key
        keys = self._split(self.key_dense(key), self.num_key_value_heads)
        keys = self._normalized_and_rotated(keys, self.key_norm, positions)
        return keys, self._split(self.value_dense(value), self.num_key_value_heads)

    def _normalized_and_rotated(self, states, norm, positions):
        states = states if norm is None else norm(states)
        if self.rotary_embedding is None:
            return states
        return self.rotary_embedding(states, positions=positions)

    def _attend_fused(self, queries, keys, values, visibility, bias):
        """The weighted sum of the values, all `(batch, length, heads, head_dim)`, in one kernel."""
        if self.num_key_value_heads == 1:
            # The kernels share key heads among groups, but TensorFlow's not a single one.
            keys, values = (ops.repeat(x, self.num_heads, axis=2) for x in (keys, values))
        options = {"scale": self.score_function.scale}
        if visibility.is_causality_alone and bias is None:
            return ops.dot_product_attention(queries, keys, values, is_causal=True, **options)
        allowed = visibility.mask(ops.shape(queries)[1], ops.shape(keys)[1])
        if bias is not None and allowed is not None:
            # Not every backend's kernel takes both: the mask goes into the bias.
            bias = ops.where(allowed, ops.cast(bias, queries.dtype), _lowest(queries.dtype))
            allowed = None
        return ops.dot_product_attention(queries, keys, values, bias=bias, mask=allowed, **options)

    def _attend(self, queries, keys, values, visibility, bias, training):
        """The weighted sum, and the weights; keys and values `(batch, heads, length, head_dim)`."""
        allowed = visibility.mask(ops.shape(queries)[1], ops.shape(keys)[2])
        logits = ops.cast(self.score_function(_heads_first(queries), keys), "float32")
        if self.attention_soft_cap is not None:
            logits = self.attention_soft_cap * ops.tanh(logits / self.attention_soft_cap)
        if bias is not None:
            logits = logits + ops.cast(bias, "float32")
        if allowed is not None:
            logits = ops.where(allowed, logits, _lowest("float32"))
        # Keras warns of a softmax of one number.
        one = logits.shape[-1] == 1
        weights = ops.ones_like(logits) if one else ops.softmax(logits, axis=-1)
        dropped = self.dropout_layer(ops.cast(weights, values.dtype), training=training)
        # Groups of query heads that share a value head are rows of one product.
        shape, groups = ops.shape(dropped), ops.shape(values)[1]
        dropped = ops.reshape(dropped, (shape[0], groups, -1, shape[3]))
        attended = ops.reshape(ops.matmul(dropped, values), (*shape[:3], self.head_dim))
        return _heads_first(attended), weights

    def _split(self, states, heads: int):
        shape = ops.shape(states)
        return ops.reshape(states, (shape[0], shape[1], heads, self.head_dim))

    def compute_mask(self, query, mask=None, **kwargs):
        return mask

    def compute_output_spec(self, *args, **kwargs):
        given = named_arguments(self.call, args, kwargs)
        self._check_used(**given)
        query, value, cache = given["query"], given["value"], given["cache"]
        output_dim = self.output_dim or query.shape[-1]
        output = keras.KerasTensor((*query.shape[:-1], output_dim), dtype=self.compute_dtype)
        result = (output,)
        keys = query if value is None else value
        if given["return_attention_scores"]:
            slots = keys.shape[1] if cache is None else cache.keys.shape[2]
            shape = (query.shape[0], self.num_heads, query.shape[1], slots)
            result += (keras.KerasTensor(shape, dtype="float32"),)
        if cache is not None:
            result += (cache,)
        return result if len(result) > 1 else output


def _heads_first(states):
    """Heads and length swapped, either way."""
    return ops.transpose(states, (0, 2, 1, 3))


def _is_first(self_attention: bool, value, cache_index) -> bool:
    """Whether the tokens of the call are the first ones of the cache, as far as is known."""
    if self_attention:
        return isinstance(cache_index, int) and cache_index == 0
    return value is not None


def _has_kernel(dtype) -> bool:
    """JAX's asks for a product of float16 that compiled programs on a CPU do not have."""
    if keras.backend.backend() != "jax" or keras.backend.standardize_dtype(dtype) != "float16":
        return True
    import jax

    return jax.default_backend() != "cpu"


def _lowest(dtype: str) -> float:
    """A score so low that its weight is 0, yet finite: a row without any key stays finite."""
    return -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e30
