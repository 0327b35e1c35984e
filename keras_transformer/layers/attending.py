"""What projected queries attend to: the pattern, and the weighted sum of the values."""

import functools
import zlib

import keras
from keras import ops

from keras_transformer.kernels import attention
from keras_transformer.layers import further_keys, sparse
from keras_transformer.layers.blocks import goes_in_turns, in_groups, in_turns
from keras_transformer.layers.position import row_lengths, sequence_positions
from keras_transformer.layers.position_bias import PairBias
from keras_transformer.structure import block_of


class Attends:
    """Mixin for an attention layer: what its queries attend to, once all is projected.

    It reads the layers and the options of `MultiHeadAttention`.
    """

    @property
    def _pattern(self) -> dict[str, int | None]:
        """What the layer says of the places that are seen, as fields of `Visibility`."""
        return {
            "window": self.window,
            "dilation": self.window_dilation,
            "global_tokens": self.global_tokens,
            "block_size": self.block_size,
            "random_blocks": self.random_blocks,
        }

    def _attend_to_pattern(
        self, attend, query, queries, keys, values, visibility, bias, may_cut, training
    ):
        """The weighted sum, and the weights; of the pairs of the pattern alone where that saves."""
        own = visibility.global_positions is not None and self.global_projection
        of_global = functools.partial(self._of_global, query) if own else None
        cut = None
        if may_cut and self.score_function.of_contents and isinstance(bias, PairBias | None):
            shape = ops.shape(query)[:2]
            cut = sparse.Sparse.of(visibility, *shape, always=self.group_norm is not None)
        if cut is None and self.group_norm is not None:
            raise ValueError(
                "Attention with `global_block_size` is of whole sequences and gives no weights: "
                "call it without a cache, an explicit mask and `return_attention_scores`."
            )
        if cut is not None:
            seed = zlib.crc32(_place(self.path).encode()) if training else None
            given = (queries, keys, values, visibility, bias, cut, of_global, seed)
            if self.group_norm is not None:
                given = (*given, self._of_groups(query, visibility, bias, cut))

            def attend_near(*given):
                return attend(*given)[0]

            return sparse.attend_in_blocks(attend_near, *given), None
        bias = bias.whole(query) if isinstance(bias, PairBias) else bias
        bias = sparse.bias_of_pairs(bias, visibility, queries, keys)
        attended, weights = attend(queries, keys, values, visibility, bias)
        if own:
            places = visibility.global_positions
            rows, seen = sparse.attend_from_global(attend, *of_global(places), visibility, bias)
            attended = sparse.put_at(places, rows, attended)
            if weights is not None:
                first = (ops.swapaxes(x, 1, 2) for x in (seen, weights))
                weights = ops.swapaxes(sparse.put_at(places, *first), 1, 2)
        return attended, weights

    def _of_groups(self, query, visibility, bias, cut):
        """Keys and values of the sums of the states of each `global_block_size` tokens, if any."""
        if isinstance(cut.length, int) and cut.length < self.global_block_size:
            return ()
        sums, groups = further_keys.in_groups(query, self.global_block_size, visibility.padding)
        sums = self.group_norm(sums)
        heads = self.num_key_value_heads
        keys, values = (
            self._split(dense(sums), heads) for dense in (self.key_dense, self.value_dense)
        )
        return (further_keys.group_keys(cut, keys, values, groups, bias),)

    def _of_global(self, query, places):
        """Queries of the global tokens, and keys and values of all, by their own projections."""
        given = (further_keys.gathered(query, places), query, query)
        heads = (self.num_heads, self.num_key_value_heads, self.num_key_value_heads)
        norms = (self.query_norm, self.key_norm, None)
        parts = zip(self.global_denses, given, heads, norms, strict=True)
        return [
            self._normalized_and_rotated(dense(x), n, norm, None) for dense, x, n, norm in parts
        ]

    def _attend(self, from_cache, scores_wanted, training, queries, keys, values, visibility, bias):
        """The weighted sum of the values, all `(batch, length, heads, head_dim)`, and the weights.

        From a cache keys and values are `(batch, heads, length, head_dim)`. The weights are None
        where a kernel keeps none.
        """
        dropped = training and self.dropout > 0
        dot = self.score_function.scale is not None
        plain = dot and self.attention_soft_cap is None and not self.attention_sinks
        by_kernel = plain and not (scores_wanted or from_cache) and attention.takes(queries.dtype)
        by_kernel = by_kernel and (not dropped or attention.takes_dropout(queries))
        attend = functools.partial(self._attend_stepwise, training=training)
        if by_kernel:
            attend = functools.partial(self._attend_fused, dropout=self.dropout if dropped else 0)
        elif not from_cache:
            keys, values = _heads_first(keys), _heads_first(values)
        sinks = (ops.cast(self.sinks, "float32"),) if self.attention_sinks else ()
        may_cut = dot and bias is None and not scores_wanted
        draw = self.dropout_layer.next_seeds if dropped else None
        if may_cut and goes_in_turns(visibility, queries, by_kernel):
            shared = (keys, values, *sinks)
            return in_turns(attend, queries, shared, visibility, draw), None
        if sinks:
            attend = functools.partial(attend, sinks=sinks[0])
        if not (scores_wanted or from_cache):
            slots = keys.shape[1 if by_kernel else 2]
            return in_groups(attend, queries, keys, values, visibility, bias, slots, draw), None
        attended, weights = attend(queries, keys, values, visibility=visibility, bias=bias)
        return attended, weights if scores_wanted else None

    def _attend_fused(self, queries, keys, values, *, visibility, bias=None, seed=None, dropout):
        """The weighted sum of the values, all `(batch, length, heads, head_dim)`, in one kernel."""
        given = (queries, keys, values)
        options = {"scale": self.score_function.scale, "dropout": dropout}
        if visibility.is_causality_alone and bias is None:
            return attention.attention(*given, is_causal=True, **options), None
        allowed = visibility.mask(ops.shape(queries)[1], ops.shape(keys)[1])
        if bias is not None and allowed is not None:
            # Not every backend's kernel takes both: the mask goes into the bias.
            bias = ops.where(allowed, ops.cast(bias, queries.dtype), _lowest(queries.dtype))
            allowed = None
        return attention.attention(*given, bias=bias, mask=allowed, **options), None

    def _attend_stepwise(
        self, queries, keys, values, sinks=None, *, visibility, bias=None, seed=None, training
    ):
        """The weighted sum, and the weights; keys and values `(batch, heads, length, head_dim)`."""
        allowed = visibility.mask(ops.shape(queries)[1], ops.shape(keys)[2])
        queries = _heads_first(queries)
        logits = ops.cast(self.score_function(queries, keys), "float32")
        if self.attention_soft_cap is not None:
            logits = self.attention_soft_cap * ops.tanh(logits / self.attention_soft_cap)
        if bias is not None:
            logits = logits + ops.cast(bias, "float32")
        if allowed is not None:
            logits = ops.where(allowed, logits, _lowest("float32"))
        # Keras warns of a softmax of one number.
        one = logits.shape[-1] == 1
        weights = ops.ones_like(logits) if one else ops.softmax(logits, axis=-1)
        if sinks is not None:
            # The softmax with one score more, of which no value is added.
            total = ops.logsumexp(logits, axis=-1, keepdims=True)
            weights = weights * ops.sigmoid(total - sinks[:, None, None])
        cast = ops.cast(weights, values.dtype)
        dropped = self.dropout_layer(cast, training=training, seed=seed)
        # Groups of query heads that share a value head are rows of one product.
        shape, groups = ops.shape(dropped), ops.shape(values)[1]
        dropped = ops.reshape(dropped, (shape[0], groups, -1, shape[3]))
        attended = ops.reshape(ops.matmul(dropped, values), (*shape[:3], self.head_dim))
        return _heads_first(attended), weights

    def _projections(self, queries, keys, from_cache) -> dict:
        """What is multiplied for the scores, `(batch, heads, length, head_dim)`."""
        return {
            "queries": _heads_first(queries),
            "keys": keys if from_cache else _heads_first(keys),
        }

    def _row_lengths(self, keys, positions, padding):
        """How many tokens each row has, where the angles depend on it."""
        if self.rotary_embedding is None or not self.rotary_embedding.by_length:
            return None
        return row_lengths(sequence_positions(keys) if positions is None else positions, padding)

    def _normalized_and_rotated(self, states, heads, norm, rotation):
        if norm is not None and self.query_key_norm_across_heads:
            states, norm = norm(states), None
        states = self._split(states, heads)
        states = states if norm is None else norm(states)
        if self.rotary_embedding is None:
            return states
        return self.rotary_embedding(states, **rotation)

    def _split(self, states, heads: int):
        shape = ops.shape(states)
        return ops.reshape(states, (shape[0], shape[1], heads, self.head_dim))


def _place(path: str) -> str:
    """Where a layer stands in its stack: other than those of its neighbours, in any process."""
    stack, number = block_of(path) or (path, "")
    return f"{stack.rpartition('/')[2]}/layer_{number}" if number != "" else path


def _heads_first(states):
    """Heads and length swapped, either way."""
    return ops.transpose(states, (0, 2, 1, 3))


def _lowest(dtype: str) -> float:
    """A score so low that its weight is 0, yet finite: a row without any key stays finite."""
    return -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e30
