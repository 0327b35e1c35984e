"""The weighted sum of the values of all heads, which the attention layers share."""

import functools
from typing import Any

import keras
from keras import ops

from keras_transformer.config import Mixer
from keras_transformer.kernels import attention as kernels
from keras_transformer.layers.arguments import check_shapes
from keras_transformer.layers.attention.chunks import attend_in_chunks, attend_in_row_groups
from keras_transformer.layers.attention.masking import AttentionMask
from keras_transformer.layers.attention.score_bias import LazyBias

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
