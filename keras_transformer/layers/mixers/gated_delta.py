"""Gated delta rule: a recurrence that replaces old values in an associative memory."""

from typing import ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.config import GatedDelta
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.mixers.causal_convolution import recent_states
from keras_transformer.layers.mixers.recurrent import (
    Boundaries,
    GatedNormalization,
    RecurrentMixer,
    chunk_size,
    chunks,
    decayed_products,
    decays,
    initial_steps,
    only,
)
from keras_transformer.layers.remat import no_inner_remat

# Added to the squared length of a query or key, as in the published implementation.
_EPSILON = 1e-6


@keras.saving.register_keras_serializable(package="keras_transformer")
class GatedDeltaRule(RecurrentMixer):
    """Let the memory of each head fade, replace the value of each token's key, and read it.

    For each head, with a matrix `S` of `key_dim` by `value_dim`, a factor `a` and a strength `b`
    that depend on the token: `S = a S + k (b (v - a S^T k))^T` and `y = S^T q`. In Kimi Delta
    Attention `a` is a diagonal matrix, with a factor for each feature of keys. Queries, keys and
    values pass a short convolution each and an activation; queries and keys have length 1, and
    queries are divided by the root of `key_dim`. The result is normalized for each head, multiplied
    by a gate, and projected. Several tokens are computed in chunks, within which the replacements
    are a triangular system of equations.

    Args:
        part: `config.GatedDelta`.
        norm: `config.Norm` of the block, whose epsilon the norm of the heads has unless the part
            gives another.
        causal: bool, must be True: a token sees only itself and the tokens before it.
        kernel_initializer: initializer of the kernels.
        seed: int, which this mixer does not use.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, dim)`.
        mask: bool `(batch, length)`, True for real tokens. Padding leaves the states as they are.
        visibility: `AttentionMask`, with padding and packed documents.
        cache: `MixerStates`. Padding must then be behind the real tokens, except in the first call.

    Returns:
        Float `(batch, length, dim)`; in a tuple with it, the updated cache if one was given.

    Raises:
        ValueError: if `causal` is False.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import GatedDelta
    from keras_transformer.layers.mixers.gated_delta import GatedDeltaRule

    part = GatedDelta(num_key_heads=2, num_value_heads=4, key_dim=8, value_dim=6)
    assert GatedDeltaRule(part)(np.random.rand(2, 7, 16)).shape == (2, 7, 16)
    ```

    Source: Yang et al. 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule", sections 3.1
    to 3.4; factors of features: Kimi Team 2025, "Kimi Linear", section 3.
    """

    part_type: ClassVar = GatedDelta

    def build(self, inputs_shape):
        part = self.part
        heads, sizes = part.num_value_heads, part.sizes(inputs_shape[-1])
        widths = [sizes[f"state_{name}"] for name in ("keys", "keys", "values")]
        names = ("query", "key", "value")
        self.denses = [
            self.add_dense(inputs_shape, width, name)
            for name, width in zip(names, widths, strict=True)
        ]
        self.convolutions = [
            self.add_convolution(
                (*inputs_shape[:-1], width), part.convolution_size, f"{name}_convolution"
            )
            for name, width in zip(names, widths, strict=True)
        ]
        self.gate_denses = self._projection(inputs_shape, widths[-1], "gate")
        self.step_denses = self._projection(inputs_shape, part.num_decays, "step")
        self.strength_dense = self.add_dense(inputs_shape, heads, "strength")
        self.decay = self.add_heads("decay", np.log(np.arange(1, heads + 1)))
        self.step_bias = self.add_heads("step_bias", initial_steps(part.num_decays))
        with no_inner_remat():
            self.norm = GatedNormalization(
                heads,
                part.epsilon or self.epsilon,
                gate_first=False,
                shared=True,
                activation=part.gate_activation,
                name="norm",
                dtype=self.dtype_policy,
            )
        inner = (*inputs_shape[:-1], widths[-1])
        self.norm.build(inner)
        self.output_dense = self.add_dense(inner, inputs_shape[-1], "output")
        self.fixed = {"dim": inputs_shape[-1]}

    def _projection(self, inputs_shape, units: int, name: str) -> list:
        """Return one dense layer, or with a `rank` the two of a narrow projection."""
        if self.part.rank is None:
            return [self.add_dense(inputs_shape, units, name)]
        narrow = (*inputs_shape[:-1], self.part.rank)
        down = self.add_dense(inputs_shape, self.part.rank, f"{name}_down")
        return [down, self.add_dense(narrow, units, name)]

    def mix(self, x, padding=None, packs=None, states=None):
        last, memory = states or (None, None)
        part, shape = self.part, tuple(ops.shape(x)[:2])
        gate = steps = x
        for dense in self.gate_denses:
            gate = dense(gate)
        for dense in self.step_denses:
            steps = dense(steps)
        steps = ops.softplus(ops.cast(steps, "float32") + self.step_bias)
        strength = part.strength * ops.sigmoid(ops.cast(self.strength_dense(x), "float32"))
        if padding is not None:
            steps, strength = (only(padding[..., None], each) for each in (steps, strength))
        x = ops.concatenate([dense(x) for dense in self.denses], axis=-1)
        recent, last = recent_states(x, part.convolution_size, padding, packs, last)
        found, first = [], 0
        for convolution, width in zip(
            self.convolutions, (part.key_dim, part.key_dim, part.value_dim), strict=True
        ):
            count = convolution.kernel.shape[-1]
            mine = convolution([each[..., first : first + count] for each in recent])
            mine = get_activation(part.activation)(ops.cast(mine, "float32"))
            found.append(ops.reshape(mine, (*shape, count // width, width)))
            first += count
        each = part.num_value_heads // part.num_key_heads
        query, key = (ops.repeat(_unit(y), each, axis=2) for y in found[:2])
        heads = part.num_value_heads
        steps = ops.reshape(steps, (*shape, heads, part.num_decays // heads))
        fading = -ops.exp(self.decay)[:, None] * steps
        given = (query * part.key_dim**-0.5, key, found[2], fading, strength)
        if memory is not None and shape[1] == 1:
            y, memory = one_step(*given, memory)
        else:
            y, memory = in_chunks(*given, part.chunk_size, memory, packs)
        y = ops.reshape(y, (*shape, part.num_value_heads * part.value_dim))
        return self.output_dense(self.norm(y, gate)), (last, memory)


def _products(x, keys, fading, same):
    """Return the products of queries or keys with all keys of a chunk, as these have faded."""
    if fading.shape[-1] > 1:
        return decayed_products(x, keys, fading, same)
    return ops.matmul(x, ops.swapaxes(keys, -1, -2)) * decays(fading[..., 0], same)


def _unit(x):
    return x * ops.rsqrt(ops.sum(ops.square(x), axis=-1, keepdims=True) + _EPSILON)


def one_step(query, key, value, fading, strength, memory) -> tuple:
    """Return the output of one token, and the memory behind it: the recurrence itself.

    Args:
        query: float `(batch, 1, heads, key_dim)`.
        key: float `(batch, 1, heads, key_dim)`.
        value: float `(batch, 1, heads, value_dim)`.
        fading: float `(batch, 1, heads, 1 or key_dim)`, the logarithm of the factor of the memory,
            or of its rows.
        strength: float `(batch, 1, heads)`.
        memory: float `(batch, heads, key_dim, value_dim)`.

    Returns:
        Float `(batch, 1, heads, value_dim)`, and the new memory.
    """
    query, key, value = (each[:, 0] for each in (query, key, value))
    memory = memory * ops.exp(fading[:, 0])[..., None]
    known = ops.sum(memory * key[..., None], axis=-2)
    change = (value - known) * strength[:, 0, :, None]
    memory = memory + key[..., None] * change[..., None, :]
    return ops.sum(memory * query[..., None], axis=-2)[:, None], memory


def in_chunks(query, key, value, fading, strength, size: int, memory=None, packs=None) -> tuple:
    """Return the outputs of many tokens, and the memory behind them.

    They equal those of `one_step` for each token in turn. What the tokens of a chunk write depends
    on what the earlier ones wrote: the solution of a triangular system, linear in the memory that
    the chunk begins with. From chunk to chunk the memory is multiplied by one matrix.

    Args:
        query: float `(batch, length, heads, key_dim)`.
        key: float `(batch, length, heads, key_dim)`.
        value: float `(batch, length, heads, value_dim)`.
        fading: float `(batch, length, heads, 1 or key_dim)`.
        strength: float `(batch, length, heads)`.
        size: int, tokens of a chunk.
        memory: float `(batch, heads, key_dim, value_dim)`, before the first token. Defaults to
            zeros.
        packs: int `(batch, length)`, the packed document of each token: no memory passes from one
            to another.

    Returns:
        Float `(batch, length, heads, value_dim)`, and the memory behind the last token.

    Source: Yang et al. 2024, section 3.3.
    """
    batch, length = ops.shape(query)[:2]
    heads, key_dim, value_dim = query.shape[2], key.shape[3], value.shape[3]
    size = chunk_size(size, length)
    # Each in the order (batch, chunks, heads, size, features).
    query, key, value, fading = (
        ops.transpose(chunks(each, size), (0, 1, 3, 2, 4)) for each in (query, key, value, fading)
    )
    strength = ops.transpose(chunks(strength, size), (0, 1, 3, 2))
    limits = Boundaries.of(packs, size)
    same = None if packs is None else limits.same[:, :, None]
    before, after = (None if each is None else each[:, :, None, :, None] for each in limits[1:3])
    sums = ops.cumsum(fading, axis=-2)
    since, until = only(before, ops.exp(sums)), only(after, ops.exp(sums[..., -1:, :] - sums))
    total = ops.exp(sums[..., -1, :])
    if packs is not None:
        total = only(limits.through[..., None, None], total)
    by_pairs, scores = (_products(each, key, fading, same) for each in (key, query))
    # What each token writes: `written - erased @ memory`.
    pairs = by_pairs * strength[..., None]
    places = ops.arange(size, dtype="int32")
    system = only(places[:, None] > places[None], pairs) + ops.eye(size, dtype=pairs.dtype)
    sides = ops.concatenate([value, key * since], axis=-1) * strength[..., None]
    solved = ops.solve_triangular(system, sides, lower=True)
    written, erased = solved[..., :value_dim], solved[..., value_dim:]
    kept = ops.swapaxes(key * until, -1, -2)
    passed = total[..., None] * ops.eye(key_dim) - ops.matmul(kept, erased)
    added = ops.matmul(kept, written)
    if memory is None:
        memory = ops.zeros((batch, heads, key_dim, value_dim), "float32")

    def go_on(memory, chunk):
        return ops.matmul(chunk[..., :key_dim], memory) + chunk[..., key_dim:], memory

    # One tensor: with several, Keras's scan on TensorFlow needs to know the number of chunks.
    in_turn = ops.transpose(ops.concatenate([passed, added], axis=-1), (1, 0, 2, 3, 4))
    memory, begun = ops.scan(go_on, memory, in_turn)
    begun = ops.transpose(begun, (1, 0, 2, 3, 4))
    y = ops.matmul(query * since, begun)
    y = y + ops.matmul(scores, written - ops.matmul(erased, begun))
    y = ops.reshape(ops.transpose(y, (0, 1, 3, 2, 4)), (batch, -1, heads, value_dim))
    return y[:, :length], memory
