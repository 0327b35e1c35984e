"""Mixer of latent attention: all heads read keys and values from one compressed vector a token."""

import functools
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.config import LatentAttention, Norm
from keras_transformer.distribution.layout import over_heads, over_tokens
from keras_transformer.kernels import attention as kernels
from keras_transformer.layers.arguments import (
    ChecksCall,
    SavesArguments,
    call_unchecked,
    known_shape,
    layer_of,
    named_arguments,
    pack_outputs,
    part_of,
)
from keras_transformer.layers.attention import scores
from keras_transformer.layers.attention.key_value_cache import KeyValueCache
from keras_transformer.layers.attention.masking import AttentionMask, is_static_zero
from keras_transformer.layers.attention.multi_head_attention import (
    AttentionCore,
    check_mask_and_bias,
    heads_first,
    masked,
    softmax,
)
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.normalization import make_normalization, normalized
from keras_transformer.layers.position import row_lengths, sequence_positions
from keras_transformer.layers.remat import Rematerializable, no_inner_remat
from keras_transformer.support.checking import check_bool


class _UpProjection(Dense):
    """Projection of latent vectors to all heads, which decoding applies to the queries instead.

    It stays in floating point in a quantized model, since decoding uses its transpose.
    """

    def quantize(self, mode=None, type_check: bool = True, config=None):
        pass

    def by_head(self, heads: int):
        """Return the kernel `(rank, heads, width)` in the compute dtype, with its adapter."""
        kernel = ops.cast(ops.convert_to_tensor(self.kernel), self.compute_dtype)
        return ops.reshape(kernel, (kernel.shape[0], heads, -1))


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadLatentAttention(
    AttentionCore, ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer
):
    """Attention whose keys and values are projected from one narrow latent vector for each token.

    `latent = norm(W_down x)`, and each head has keys `W_key latent` and values `W_value latent`.
    Positions are in further features: each head's query has some of its own, and the key's are
    projected from `x`, rotated, and shared by all heads. A cache keeps only the latent vector and
    the rotated key, `kv_lora_rank + qk_rope_head_dim` numbers for each token. Once it holds tokens,
    `W_key` is applied to the queries and `W_value` to the weighted sum of the latent vectors, which
    gives the same result without the keys and values of heads.

    Args:
        part: `config.LatentAttention`.
        norm: `config.Norm` of the block, whose type the norms of latent vectors have.
        causal: bool, whether a query sees only the keys up to its own position.
        kernel_initializer: initializer of the kernels.
        seed: int, seed of the dropout.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, dim)`.
        mask: bool `(batch, length)`, True for real tokens.
        visibility: `AttentionMask`, further limits on the keys that a query sees: packed documents,
            positions, an explicit mask.
        cache: `KeyValueCache` of one head, to which the latent vectors and rotated keys of this
            call are appended, with their two halves as keys and values.
        return_attention_scores: bool, whether to return the attention weights.
        return_projections: bool, whether to return the queries and keys.

    Returns:
        Float `(batch, length, dim)`. In a tuple with it, if asked for, the attention weights
        `(batch, num_heads, length, key_length)` in float32; a dict of the `queries` and `keys`
        `(batch, heads, length, width)` whose products are the scores, with a cache that holds
        tokens `kv_lora_rank + qk_rope_head_dim` wide and with one head of keys; and the updated
        cache, if a cache was given.

    Raises:
        ValueError: if arrays do not fit each other, or an argument would be ignored.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import LatentAttention, Rotary
    from keras_transformer.layers.mixers.latent_attention import MultiHeadLatentAttention

    part = LatentAttention(
        num_heads=4, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=2, v_head_dim=5,
        position=Rotary(interleaved=True),
    )
    attention = MultiHeadLatentAttention(part, causal=True)
    assert attention(np.random.rand(2, 7, 16)).shape == (2, 7, 16)
    heads, width, _ = part.cached(hidden_dim=16)
    assert 2 * heads * width == 8 + 2  # numbers of a token in a cache
    ```

    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.
    """

    option_rules: ClassVar = {"causal": check_bool}
    axes: ClassVar = {"inputs": ("batch", "length", "dim")}

    def __init__(
        self,
        part: LatentAttention,
        norm: Norm | dict | None = None,
        causal: bool = False,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part = part_of("part", part, LatentAttention)
        self.norm = part_of("norm", norm or Norm(type="rms_norm"), Norm)
        self.causal = causal
        self.dropout = part.dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True
        heads, width = part.num_heads, part.qk_head_dim
        self.query_down = self.query_norm = self.rotary_embedding = None
        if part.q_lora_rank is not None:
            self.query_down = self._projection(part.q_lora_rank, "query_down", part.bias)
            self.query_norm = self._norm("query_norm")
        self.query_dense = self._projection(heads * width, "query", False)
        latent = part.kv_lora_rank + part.qk_rope_head_dim
        self.latent_dense = self._projection(latent, "latent", part.bias)
        self.latent_norm = self._norm("latent_norm")
        up = functools.partial(self._projection, use_bias=False, layer=_UpProjection)
        self.key_dense = up(heads * part.qk_nope_head_dim, "key")
        self.value_dense = up(heads * part.v_head_dim, "value")
        with no_inner_remat():
            self.score_function = scores.get(
                "scaled_dot", heads, width, scale=part.scale, dtype=self.dtype_policy
            )
            self.dropout_layer = Dropout(part.dropout, seed=seed, dtype=self.dtype_policy)
            if part.position is not None:
                rotation = layer_of(part.position)
                self.rotary_embedding = rotation.from_part(part.position, dtype=self.dtype_policy)

    def _projection(self, units: int, name: str, use_bias: bool, layer: type = Dense) -> Dense:
        with no_inner_remat():
            return layer(
                units,
                use_bias=use_bias,
                kernel_initializer=self.kernel_initializer.clone(),
                name=name,
                dtype=self.dtype_policy,
            )

    def _norm(self, name: str) -> keras.layers.Layer:
        with no_inner_remat():
            return make_normalization(
                self.norm.type, self.part.norm_epsilon, name=name, dtype=self.dtype_policy
            )

    def build(self, inputs_shape):
        part = self.part
        if self.rotary_embedding is not None:
            self.rotary_embedding.check_width(part.qk_rope_head_dim)
        of_queries = inputs_shape
        if self.query_down is not None:
            of_queries = (*inputs_shape[:-1], part.q_lora_rank)
            self.query_down.build(inputs_shape)
            self.query_norm.build(of_queries)
        self.query_dense.build(of_queries)
        self.latent_dense.build(inputs_shape)
        latent = (*inputs_shape[:-1], part.kv_lora_rank)
        for layer in (self.latent_norm, self.key_dense, self.value_dense):
            layer.build(latent)
        self.score_function.build(None)
        self.output_dense = self._projection(inputs_shape[-1], "output", part.bias)
        self.output_dense.build((*inputs_shape[:-1], part.num_heads * part.v_head_dim))
        self.fixed = {"dim": inputs_shape[-1]}

    def check_call(self, given):
        super().check_call(given)
        inputs, cache = given.get("inputs"), given.get("cache")
        keys = inputs if cache is None else None
        check_mask_and_bias(self.part, self.causal, inputs, keys, given, own_keys=True)
        if cache is not None:
            heads, width, _ = self.part.cached(self.fixed.get("dim", 0))
            cache.check_fit(known_shape(inputs), heads, width)

    def call(
        self,
        inputs,
        mask=None,
        visibility=None,
        cache=None,
        return_attention_scores: bool = False,
        return_projections: bool = False,
        training: bool = False,
    ):
        visibility = AttentionMask.given(visibility, mask)
        first_slot = 0 if cache is None else cache.next
        from_cache = not is_static_zero(first_slot)
        rotate = self._rotation(inputs, visibility, first_slot, from_cache)
        queries = self._queries(inputs, rotate, training)
        latent, shared_key = self._latent(inputs, rotate, training)
        if cache is not None:
            cache = cache.write_halves(ops.concatenate([latent, shared_key[:, :, 0]], axis=-1))
        # With a cache, an explicit mask already includes causality.
        visibility = visibility._replace(
            causal=self.causal and (cache is None or visibility.explicit is None),
            first_slot=first_slot,
            query_positions=None,
            key_positions=None,
        )
        if from_cache:
            attended, weights, projections = self._absorbed(queries, cache, visibility, training)
        else:
            keys, values = self._heads(latent, shared_key)
            projections = {"queries": heads_first(queries), "keys": heads_first(keys)}
            attended, weights = self._of_heads(
                (queries, keys, values), visibility, return_attention_scores, training
            )
        shape = ops.shape(attended)
        width = self.part.num_heads * self.part.v_head_dim
        output = self.output_dense(ops.reshape(attended, (shape[0], shape[1], width)))
        weights = weights if return_attention_scores else None
        return pack_outputs(output, weights, projections if return_projections else None, cache)

    def _rotation(self, inputs, visibility: AttentionMask, first_slot, from_cache: bool):
        """Return the function that rotates states `(batch, length, heads, qk_rope_head_dim)`."""
        rotary = self.rotary_embedding
        if rotary is None:
            return lambda states: states
        positions, lengths = visibility.query_positions, None
        if positions is None and from_cache:
            positions = first_slot + sequence_positions(inputs)
        if rotary.by_length:
            known = sequence_positions(inputs) if positions is None else positions
            lengths = row_lengths(known, None if from_cache else visibility.padding)
        return lambda states: call_unchecked(rotary, states, positions=positions, lengths=lengths)

    def _queries(self, inputs, rotate, training: bool):
        """Return the queries `(batch, length, num_heads, qk_head_dim)`."""
        if self.query_down is not None:
            inputs = normalized(self.query_norm, self.query_down(inputs), training)
        queries = self._split(self.query_dense(inputs), self.part.qk_head_dim)
        plain, turned = _cut(queries, self.part.qk_nope_head_dim)
        return ops.concatenate([plain, rotate(turned)], axis=-1)

    def _latent(self, inputs, rotate, training: bool) -> tuple:
        """Return latent vectors `(batch, length, kv_lora_rank)`, and the key of all heads."""
        latent, key = _cut(self.latent_dense(inputs), self.part.kv_lora_rank)
        return normalized(self.latent_norm, latent, training), rotate(key[:, :, None])

    def _heads(self, latent, shared_key) -> tuple:
        """Return the keys and values of all heads, `(batch, length, num_heads, width)`."""
        keys = self._split(self.key_dense(latent), self.part.qk_nope_head_dim)
        shape = (*ops.shape(keys)[:3], self.part.qk_rope_head_dim)
        keys = ops.concatenate([keys, ops.broadcast_to(shared_key, shape)], axis=-1)
        return keys, self._split(self.value_dense(latent), self.part.v_head_dim)

    def _split(self, states, width: int):
        shape = ops.shape(states)
        return ops.reshape(states, (shape[0], shape[1], self.part.num_heads, width))

    def _of_heads(self, heads: tuple, visibility, scores_wanted: bool, training: bool) -> tuple:
        """Return the weighted sum `(batch, length, num_heads, v_head_dim)`, and the weights.

        The kernels take heads of one width: narrower ones are padded with zeros.
        """
        width = max(self.part.qk_head_dim, self.part.v_head_dim)
        heads = [_widened(x, width) for x in heads]
        heads = over_heads(*heads)
        attended, weights = self._attend(False, scores_wanted, training, *heads, visibility, None)
        attended = over_tokens(attended)
        return attended[..., : self.part.v_head_dim], weights

    def _absorbed(self, queries, cache: KeyValueCache, visibility, training: bool) -> tuple:
        """Return the weighted sum, the weights, and the queries and keys, from a cache alone."""
        heads, rank = self.part.num_heads, self.part.kv_lora_rank
        halves = cache.read(self.compute_dtype)  # (batch, 1, slots, half)
        plain, turned = _cut(queries, self.part.qk_nope_head_dim)
        of_latent = ops.einsum("blhn,rhn->bhlr", plain, self.key_dense.by_head(heads))
        queries = ops.concatenate([of_latent, heads_first(turned)], axis=-1)
        batch, _, length, width = ops.shape(queries)
        slots = ops.shape(halves[0])[2]
        # All heads share the cache, and become rows of one product.
        rows = ops.reshape(queries * self.score_function.scale, (batch, 1, heads * length, width))
        few = isinstance(length, int) and heads * length <= 1
        logits = sum(
            ops.cast(kernels.products(x, half, few), "float32")
            for x, half in zip(ops.split(rows, 2, axis=-1), halves, strict=True)
        )
        logits = ops.reshape(logits, (batch, heads, length, slots))
        weights = softmax(masked(logits, visibility.mask(length, slots)))
        dropped = self.dropout_layer(ops.cast(weights, halves[0].dtype), training=training)
        dropped = ops.reshape(dropped, (batch, 1, heads * length, slots))
        # The features of the rotated key come last, and are cut off.
        summed = ops.concatenate([ops.matmul(dropped, half) for half in halves], axis=-1)
        summed = ops.reshape(summed[..., :rank], (batch, heads, length, rank))
        attended = ops.einsum("bhlr,rhv->blhv", summed, self.value_dense.by_head(heads))
        projections = {"queries": queries, "keys": ops.concatenate(halves, axis=-1)}
        return attended, weights, projections

    def compute_mask(self, inputs, mask=None, **kwargs):
        return mask

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)

    def compute_output_spec(self, *args, **kwargs):
        given: dict[str, Any] = named_arguments(self.call, args, kwargs)
        inputs, cache = given["inputs"], given["cache"]
        if cache is not None or given["return_projections"]:
            return keras.layers.Layer.compute_output_spec(self, *args, **kwargs)
        output, weights = keras.KerasTensor(inputs.shape, self.compute_dtype), None
        if given["return_attention_scores"]:
            batch, length, _ = inputs.shape
            shape = (batch, self.part.num_heads, length, length)
            weights = keras.KerasTensor(shape, "float32")
        return pack_outputs(output, weights)


def _cut(states, width: int) -> tuple:
    """Return the first `width` features of the last axis, and the others."""
    return states[..., :width], states[..., width:]


def _widened(states, width: int):
    """Append zeros to the last axis, up to this width."""
    missing = width - states.shape[-1]
    return ops.pad(states, [(0, 0)] * 3 + [(0, missing)]) if missing else states
