"""Generalized delta rule: an associative memory whose rows fade and are taken from separately."""

import math
from typing import ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.config import GeneralizedDelta
from keras_transformer.layers.arguments import pack_outputs
from keras_transformer.layers.attention.masking import AttentionMask
from keras_transformer.layers.mixers.causal_convolution import recent_states
from keras_transformer.layers.mixers.recurrent import (
    Boundaries,
    RecurrentMixer,
    chunk_size,
    chunks,
    decays,
    only,
)
from keras_transformer.layers.remat import no_inner_remat

# Added to the squared length of a key that is taken from the memory.
_EPSILON = 1e-12
# The largest logarithm of fading, with the minus sign: no row fades faster in one token.
_FASTEST = math.exp(-0.5)
# Initial values: of the decay before its sigmoid, and of the scale of the keys that are taken.
_DECAYS = (-6.5, -1.5)
_REMOVAL = 0.85


@keras.saving.register_keras_serializable(package="keras_transformer")
class GeneralizedDeltaRule(RecurrentMixer):
    """Let the rows of each head's memory fade, take from it, add a value, and read it.

    For each head, with a matrix `S` of `head_dim` by `head_dim`, factors `w` and shares `a` of its
    rows, a query `q`, a value `v`, and keys `k` and `c`, `c` of length 1, which all depend on the
    token: `S = diag(w) S - (a c) (S^T c)^T + k v^T` and `y = S^T q`. The output is normalized for
    each head, `(q . (bonus k)) v` is added, and it is multiplied by a gate and projected. Each
    projection reads the token with a trained share of the token before.

    With `value_rank` the values are mixed with those of the first layer, which returns them.
    Several tokens are computed in chunks, within which what is taken solves a triangular system of
    equations.

    Args:
        part: `config.GeneralizedDelta`.
        norm: `config.Norm` of the block, which this mixer does not use.
        causal: bool, must be True: a token sees only itself and the tokens before it.
        kernel_initializer: initializer of the kernels.
        seed: int, which this mixer does not use.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, dim)`.
        mask: bool `(batch, length)`, True for real tokens. Padding leaves the states as they are.
        visibility: `AttentionMask`, with padding and packed documents.
        cache: `MixerStates`. Padding must then be behind the real tokens, except in the first call.
        earlier: float, the values that the first layer returned for the same tokens.
        return_for_later: bool, whether to return the values, for later layers.

    Returns:
        Float `(batch, length, dim)`; in a tuple with it, the values of the first layer if asked
        for, and the updated cache if one was given.

    Raises:
        ValueError: if `causal` is False, or `earlier` is missing.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import GeneralizedDelta
    from keras_transformer.layers.mixers.generalized_delta import GeneralizedDeltaRule

    first = GeneralizedDeltaRule(GeneralizedDelta(head_dim=8))
    later = GeneralizedDeltaRule(GeneralizedDelta(head_dim=8, value_rank=4))
    x, values = first(np.random.rand(2, 7, 16), return_for_later=True)
    assert later(x, earlier=values).shape == (2, 7, 16)
    ```

    Source: Peng et al. 2025, "RWKV-7 Goose with Expressive Dynamic State Evolution", section 4.
    """

    part_type: ClassVar = GeneralizedDelta

    def build(self, inputs_shape):
        part, width = self.part, inputs_shape[-1]
        first = {"removal_scale": _REMOVAL, "rate_scale": 1.0, "mixing": 1.0}

        def vector(name):
            initial = keras.initializers.Constant(first.get(name, 0.0))
            return self.add_weight((width,), initial, name=name)

        half = keras.initializers.Constant(0.5)
        self.shares = {
            name: self.add_weight((width,), half, name=f"{name}_share") for name in part.shifted
        }
        self.decay = self.add_heads("decay", np.linspace(*_DECAYS, width))
        self.rate, self.removal_scale, self.rate_scale = map(vector, part.vectors[1:])
        self.mixing = None if part.value_rank is None else vector("mixing")
        heads = (width // part.head_dim, part.head_dim)
        self.bonus = self.add_weight(heads, "zeros", name="bonus")
        self.denses = {
            name: self.add_dense(inputs_shape, width, name) for name in ("query", "key", "value")
        }
        for name, rank in part.ranks.items():
            narrow = (*inputs_shape[:-1], rank)
            self.denses[f"{name}_down"] = self.add_dense(inputs_shape, rank, f"{name}_down")
            self.denses[f"{name}_up"] = self.add_dense(narrow, width, f"{name}_up")
        with no_inner_remat():
            self.norm = _HeadNormalization(
                heads[0], part.epsilon, name="norm", dtype=self.dtype_policy
            )
        self.norm.build(inputs_shape)
        self.output_dense = self.add_dense(inputs_shape, width, "output")
        self.fixed = {"dim": width}

    def call(
        self,
        inputs,
        mask=None,
        visibility=None,
        cache=None,
        earlier=None,
        return_for_later: bool = False,
        training: bool = False,
    ):
        if earlier is None and self.part.takes_earlier:
            raise ValueError(
                "A generalized delta rule with a `value_rank` needs `earlier`, the values that the "
                "first layer returns with `return_for_later=True`."
            )
        visibility = AttentionMask.given(visibility, mask)
        x, padding, states = inputs, visibility.padding, None
        if cache is not None:
            x, states = cache.unfolded(inputs)
            padding = cache.padding
        y, states, values = self._mix(x, padding, visibility.query_pack, states, earlier)
        if cache is not None:
            y, cache = cache.folded(y, states)
        return pack_outputs(y, values if return_for_later else None, cache)

    def _mix(self, x, padding, packs, states, earlier) -> tuple:
        """Return what `RecurrentMixer.mix` returns, and the projected values."""
        last, memory = states or (None, None)
        part, shape = self.part, tuple(ops.shape(x)[:2])
        (x, before), last = recent_states(x, 2, padding, packs, last)
        mixed = {name: x + (before - x) * share for name, share in self.shares.items()}

        def narrow(name, of, activation=None):
            hidden = self.denses[f"{name}_down"](mixed[of])
            return self.denses[f"{name}_up"](hidden if activation is None else activation(hidden))

        decay = ops.cast(narrow("decay", "decay", ops.tanh), "float32") + self.decay
        fading = -_FASTEST * ops.sigmoid(decay)
        query, key, value = (self.denses[name](mixed[name]) for name in ("query", "key", "value"))
        values = value
        if self.mixing is not None:
            share = ops.sigmoid(narrow("mixing", "value") + self.mixing)
            value = value + (ops.cast(earlier, value.dtype) - value) * share
        rate = ops.sigmoid(narrow("rate", "rate") + self.rate)
        gate = narrow("gate", "gate", ops.sigmoid)
        removal = key * self.removal_scale
        key = key * (1 + (rate - 1) * self.rate_scale)
        heads = (*shape, *self.bonus.shape)
        query, key, value, fading, rate, removal = (
            ops.reshape(ops.cast(each, "float32"), heads)
            for each in (query, key, value, fading, rate, removal)
        )
        squares = ops.sum(ops.square(removal), axis=-1, keepdims=True)
        removal = removal * ops.rsqrt(squares + _EPSILON)
        if padding is not None:
            real = padding[..., None, None]
            key, fading, removal = (only(real, each) for each in (key, fading, removal))
        given = (query, key, value, fading, removal, rate)
        if memory is not None and shape[1] == 1:
            y, memory = one_step(*given, memory)
        else:
            y, memory = in_chunks(*given, part.chunk_size, memory, packs)
        direct = ops.sum(query * key * ops.cast(self.bonus, "float32"), axis=-1, keepdims=True)
        y = self.norm(y) + ops.reshape(direct * value, (*shape, x.shape[-1]))
        y = ops.cast(y, self.compute_dtype) * gate
        return self.output_dense(y), (last, memory), values


class _HeadNormalization(keras.layers.Layer):
    """Normalize each head to mean 0 and variance 1, with a weight and a bias of each feature."""

    def __init__(self, heads: int, epsilon: float, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.heads, self.epsilon = heads, epsilon

    def build(self, input_shape):
        self.gamma = self.add_weight(input_shape[-1:], "ones", name="gamma")
        self.beta = self.add_weight(input_shape[-1:], "zeros", name="beta")

    def call(self, states):
        mean = ops.mean(states, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(states - mean), axis=-1, keepdims=True)
        x = (states - mean) * ops.rsqrt(variance + self.epsilon)
        x = ops.reshape(x, (*ops.shape(x)[:2], self.heads * x.shape[-1]))
        return x * ops.cast(self.gamma, "float32") + ops.cast(self.beta, "float32")


def one_step(query, key, value, fading, removal, rate, memory) -> tuple:
    """Return the output of one token, and the memory behind it: the recurrence itself.

    Args:
        query: float `(batch, 1, heads, head_dim)`.
        key: float `(batch, 1, heads, head_dim)`, under which the value is added.
        value: float `(batch, 1, heads, head_dim)`.
        fading: float `(batch, 1, heads, head_dim)`, the logarithms of the factors of the rows.
        removal: float `(batch, 1, heads, head_dim)`, the key that is taken from the memory.
        rate: float `(batch, 1, heads, head_dim)`, the shares of the rows that are taken.
        memory: float `(batch, heads, head_dim, head_dim)`.

    Returns:
        Float `(batch, 1, heads, head_dim)`, and the new memory.
    """
    query, key, value, fading, removal, rate = (
        each[:, 0] for each in (query, key, value, fading, removal, rate)
    )
    known = ops.sum(memory * removal[..., None], axis=-2)
    memory = memory * ops.exp(fading)[..., None]
    memory = memory - (removal * rate)[..., None] * known[..., None, :]
    memory = memory + key[..., None] * value[..., None, :]
    return ops.sum(memory * query[..., None], axis=-2)[:, None], memory


def in_chunks(
    query, key, value, fading, removal, rate, size: int, memory=None, packs=None
) -> tuple:
    """Return the outputs of many tokens, and the memory behind them.

    They equal those of `one_step` for each token in turn. What the tokens of a chunk find under the
    keys that they take depends on the earlier ones: the solution of a triangular system, linear in
    the memory that the chunk begins with. From chunk to chunk the memory is multiplied by one
    matrix.

    Args:
        query: float `(batch, length, heads, head_dim)`, as the next five.
        key: as in `one_step`.
        value: as in `one_step`.
        fading: as in `one_step`.
        removal: as in `one_step`.
        rate: as in `one_step`.
        size: int, tokens of a chunk.
        memory: float `(batch, heads, head_dim, head_dim)`, before the first token. Defaults to
            zeros.
        packs: int `(batch, length)`, the packed document of each token: no memory passes from one
            to another.

    Returns:
        Float `(batch, length, heads, head_dim)`, and the memory behind the last token.

    Source: Peng et al. 2025, section 4.1; the chunks: Yang et al. 2024, "Parallelizing Linear
    Transformers with the Delta Rule over Sequence Length", section 3.
    """
    batch, length = ops.shape(query)[:2]
    heads, width = query.shape[2:]
    size = chunk_size(size, length)
    # Each in the order (batch, chunks, heads, size, features).
    query, key, value, fading, removal, rate = (
        ops.transpose(chunks(each, size), (0, 1, 3, 2, 4))
        for each in (query, key, value, fading, removal, rate)
    )
    taken = -removal * rate
    limits = Boundaries.of(packs, size)
    same = None if packs is None else limits.same[:, :, None]
    before, after = (None if each is None else each[:, :, None, :, None] for each in limits[1:3])
    sums = ops.cumsum(fading, axis=-2)
    # A key is taken from the memory as it is before it fades for the token.
    earlier = _later(sums)
    since, since_earlier = (only(before, ops.exp(each)) for each in (sums, earlier))
    until = only(after, ops.exp(sums[..., -1:, :] - sums))
    total = ops.exp(sums[..., -1, :])
    if packs is not None:
        total = only(limits.through[..., None, None], total)
    factors = decays(ops.swapaxes(fading, -1, -2))

    def products(x, keys):
        return ops.einsum("...id,...jd,...dij->...ij", x, keys, factors)

    ahead = ops.concatenate([removal[..., 1:, :], removal[..., :1, :]], axis=-2)
    finds_taken, finds_key = (only(same, _later(products(ahead, each))) for each in (taken, key))
    reads_taken, reads_key = (only(same, products(query, each)) for each in (taken, key))
    # What each token finds: `found + known @ memory`.
    system = ops.eye(size, dtype=key.dtype) - finds_taken
    sides = ops.concatenate([ops.matmul(finds_key, value), removal * since_earlier], axis=-1)
    solved = ops.solve_triangular(system, sides, lower=True)
    found, known = solved[..., :width], solved[..., width:]
    kept_taken, kept_key = (ops.swapaxes(each * until, -1, -2) for each in (taken, key))
    passed = total[..., None] * ops.eye(width) + ops.matmul(kept_taken, known)
    added = ops.matmul(kept_taken, found) + ops.matmul(kept_key, value)
    if memory is None:
        memory = ops.zeros((batch, heads, width, width), "float32")

    def go_on(memory, chunk):
        return ops.matmul(chunk[..., :width], memory) + chunk[..., width:], memory

    # One tensor: with several, Keras's scan on TensorFlow needs to know the number of chunks.
    in_turn = ops.transpose(ops.concatenate([passed, added], axis=-1), (1, 0, 2, 3, 4))
    memory, begun = ops.scan(go_on, memory, in_turn)
    begun = ops.transpose(begun, (1, 0, 2, 3, 4))
    y = ops.matmul(query * since, begun) + ops.matmul(reads_key, value)
    y = y + ops.matmul(reads_taken, found + ops.matmul(known, begun))
    y = ops.reshape(ops.transpose(y, (0, 1, 3, 2, 4)), (batch, -1, heads, width))
    return y[:, :length], memory


def _later(x):
    """Move each row of `(..., rows, columns)` one further, with zeros in the first."""
    return ops.concatenate([ops.zeros_like(x[..., :1, :]), x[..., :-1, :]], axis=-2)
