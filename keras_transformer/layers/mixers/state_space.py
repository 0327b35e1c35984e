"""Selective state spaces: a recurrence with a matrix of states for each head (Mamba 2)."""

from typing import ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.config import Norm, StateSpace
from keras_transformer.layers.arguments import ChecksCall, SavesArguments, pack_outputs
from keras_transformer.layers.attention.masking import AttentionMask
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.mixers.causal_convolution import CausalConvolution, recent_states
from keras_transformer.layers.parts import part_of
from keras_transformer.layers.remat import Rematerializable, no_inner_remat
from keras_transformer.support.checking import check_bool

# Initial steps, from the smallest to the largest, as in section 3.6 of the first Mamba.
_STEPS = (1e-3, 1e-1)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelectiveStateSpace(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Let the states of each head fade, add each token to them, and read them out.

    For each head, with a step `d`, a decay `a` and vectors `b` and `c` that depend on the token,
    `state = exp(-a d) state + d x b^T` and `y = state c + skip x`. Several tokens are computed in
    chunks: as attention with decays within a chunk, as the recurrence from chunk to chunk. The
    result is multiplied by a gate, normalized for each group of heads, and projected.

    Args:
        part: `config.StateSpace`.
        norm: `config.Norm` of the block, whose epsilon the norm behind the gate has too.
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
    from keras_transformer.config import StateSpace
    from keras_transformer.layers.mixers.state_space import SelectiveStateSpace

    mixer = SelectiveStateSpace(StateSpace(num_heads=4, head_dim=8, state_dim=6))
    assert mixer(np.random.rand(2, 7, 16)).shape == (2, 7, 16)
    ```

    Source: Dao and Gu 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms
    Through Structured State Space Duality", sections 6 and 7.
    """

    option_rules: ClassVar = {"causal": check_bool}
    axes: ClassVar = {"inputs": ("batch", "length", "dim")}

    def __init__(
        self,
        part: StateSpace,
        norm: Norm | None = None,
        causal: bool = True,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part_of("part", part, StateSpace)
        self.epsilon = (norm or Norm()).epsilon
        if not causal:
            raise ValueError(
                "A state space sees only earlier tokens, so it is for decoders: received "
                "causal=False."
            )
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def _projection(self, units: int, name: str) -> Dense:
        with no_inner_remat():
            return Dense(
                units,
                use_bias=self.part.bias,
                kernel_initializer=self.kernel_initializer.clone(),
                name=name,
                dtype=self.dtype_policy,
            )

    def _vector(self, name: str, values: np.ndarray):
        """Add a number for each head, which stays in float32: the recurrence needs its digits."""

        def initial(shape, dtype=None):
            return ops.cast(ops.convert_to_tensor(values.astype("float32")), dtype or "float32")

        return self.add_weight(values.shape, initial, "float32", name=name, autocast=False)

    def build(self, inputs_shape):
        part = self.part
        self.input_dense = self._projection(part.sizes(inputs_shape[-1])["projected_dim"], "input")
        self.input_dense.build(inputs_shape)
        with no_inner_remat():
            self.convolution = CausalConvolution(
                part.convolution_size,
                part.convolution_bias,
                name="convolution",
                dtype=self.dtype_policy,
            )
            self.norm = GatedNormalization(
                part.num_groups, self.epsilon, name="norm", dtype=self.dtype_policy
            )
        self.convolution.build((*inputs_shape[:-1], part.mixed_dim))
        heads = part.num_heads
        self.decay = self._vector("decay", np.log(np.arange(1, heads + 1)))
        self.skip = self._vector("skip", np.ones((heads,)))
        steps = np.geomspace(*_STEPS, heads)
        self.step_bias = self._vector("step_bias", steps + np.log(-np.expm1(-steps)))
        inner = (*inputs_shape[:-1], part.inner_dim)
        self.norm.build(inner)
        self.output_dense = self._projection(inputs_shape[-1], "output")
        self.output_dense.build(inner)
        self.fixed = {"dim": inputs_shape[-1]}

    def call(self, inputs, mask=None, visibility=None, cache=None, training: bool = False):
        visibility = AttentionMask.given(visibility, mask)
        x, padding, packs = inputs, visibility.padding, visibility.query_pack
        before = states = None
        if cache is not None:
            padding = cache.padding
            x, (before, states) = cache.unfolded(x)
        part, heads, groups = self.part, self.part.num_heads, self.part.num_groups
        x = self.input_dense(x)
        shape = tuple(ops.shape(x)[:2])
        inner, mixed = part.inner_dim, part.inner_dim + part.mixed_dim
        gate, x, steps = x[..., :inner], x[..., inner:mixed], x[..., mixed:]
        recent, before = recent_states(x, part.convolution_size, padding, packs, before)
        x = ops.cast(ops.silu(self.convolution(recent)), "float32")
        of_groups = (*shape, groups, part.state_dim)
        into = ops.reshape(x[..., inner : -groups * part.state_dim], of_groups)
        out_of = ops.reshape(x[..., -groups * part.state_dim :], of_groups)
        x = ops.reshape(x[..., :inner], (*shape, heads, part.head_dim))
        steps = ops.softplus(ops.cast(steps, "float32") + self.step_bias)
        if padding is not None:
            steps = ops.where(padding[..., None], steps, 0.0)
        fading = -ops.exp(self.decay) * steps
        scaled = x * steps[..., None]
        if states is not None and shape[1] == 1:
            y, states = one_step(scaled, fading, into, out_of, states)
        else:
            size = part.chunk_size
            y, states = in_chunks(scaled, fading, into, out_of, size, states, packs)
        y = ops.reshape(y + self.skip[:, None] * x, (*shape, inner))
        y = self.output_dense(self.norm(y, gate))
        if cache is not None:
            y, cache = cache.folded(y, (before, states))
        return pack_outputs(y, cache)

    def compute_mask(self, inputs, mask=None, **kwargs):
        return mask

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)


class GatedNormalization(keras.layers.Layer):
    """Multiply by the SiLU of a gate, then divide each group of features by its root mean square.

    Args:
        groups: int, number of groups.
        epsilon: float, added to the mean square.
        **kwargs: as in `keras.layers.Layer`.
    """

    def __init__(self, groups: int, epsilon: float, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.groups, self.epsilon = groups, epsilon

    def build(self, input_shape):
        self.scale = self.add_weight(input_shape[-1:], "ones", name="scale")

    def call(self, states, gate):
        gate = ops.cast(gate, "float32")
        x = ops.cast(states, "float32") * ops.silu(gate)
        *rows, width = ops.shape(x)
        x = ops.reshape(x, (*rows, self.groups, width // self.groups))
        squares = ops.mean(ops.square(x), axis=-1, keepdims=True)
        x = ops.reshape(x * ops.rsqrt(squares + self.epsilon), (*rows, width))
        return ops.cast(x * ops.cast(self.scale, "float32"), self.compute_dtype)


def one_step(x, fading, into, out_of, states) -> tuple:
    """Return the output of one token, and the states behind it: the recurrence itself.

    Args:
        x: float `(batch, 1, heads, head_dim)`, what is added to the states.
        fading: float `(batch, 1, heads)`, the logarithm of the factor of the states.
        into, out_of: float `(batch, 1, groups, state_dim)`.
        states: float `(batch, heads, head_dim, state_dim)`.

    Returns:
        Float `(batch, 1, heads, head_dim)`, and the new states.
    """
    heads, groups = x.shape[2], into.shape[2]
    into, out_of = (
        ops.repeat(each[:, 0], heads // groups, axis=1)[:, :, None] for each in (into, out_of)
    )
    factor = ops.exp(fading[:, 0])[..., None, None]
    states = states * factor + x[:, 0, :, :, None] * into
    return ops.sum(states * out_of, axis=-1)[:, None], states


def in_chunks(x, fading, into, out_of, size: int, states=None, packs=None) -> tuple:
    """Return the outputs of many tokens, and the states behind them.

    They equal those of `one_step` for each token in turn. Within a chunk of `size` tokens all pairs
    are computed by products of matrices; between chunks only the states are passed on.

    Args:
        x: float `(batch, length, heads, head_dim)`.
        fading: float `(batch, length, heads)`.
        into, out_of: float `(batch, length, groups, state_dim)`.
        size: int, tokens of a chunk.
        states: float `(batch, heads, head_dim, state_dim)`, the states before the first token. None
            for zeros.
        packs: int `(batch, length)`, the packed document of each token: no state passes from one to
            another.

    Returns:
        Float `(batch, length, heads, head_dim)`, and the states behind the last token.

    Source: Dao and Gu 2024, section 6.
    """
    batch, length = ops.shape(x)[:2]
    heads, groups, width, state_dim = x.shape[2], into.shape[2], x.shape[3], into.shape[3]
    each = heads // groups
    size = min(size, length) if isinstance(length, int) else size
    # Each in the order (batch, chunks, groups, heads of a group, size, features).
    fading = chunks(ops.reshape(fading, (batch, length, groups, each)), size)
    fading = ops.transpose(fading, (0, 1, 3, 4, 2))
    x = ops.transpose(
        chunks(ops.reshape(x, (batch, length, groups, each, width)), size), (0, 1, 3, 4, 2, 5)
    )
    into, out_of = (ops.transpose(chunks(y, size), (0, 1, 3, 2, 4)) for y in (into, out_of))
    before = after = same = between = None
    if packs is not None:
        packs = chunks(packs, size, last=True)
        ends = packs[:, :, -1]
        begins = ops.concatenate([packs[:, :1, 0], ends], axis=1)
        same = ops.equal(packs[:, :, :, None], packs[:, :, None])[:, :, None, None]
        before = ops.equal(packs, begins[:, :-1, None])[:, :, None, None]
        after = ops.equal(packs, ends[..., None])[:, :, None, None]
        between = ops.equal(begins[:, :, None], begins[:, None])[:, None, None]
    # Pairs within a chunk: attention with decays in place of a softmax.
    scores = ops.matmul(out_of, ops.swapaxes(into, -1, -2))[:, :, :, None]
    y = ops.matmul(scores * decays(fading, same), x)
    # The states that each chunk leaves, and those that it begins with.
    sums = ops.cumsum(fading, axis=-1)
    rest = _only(after, ops.exp(sums[..., -1:] - sums))
    left = ops.matmul(ops.swapaxes(x * rest[..., None], -1, -2), into[:, :, :, None])
    shape = (batch, -1, groups, each, width * state_dim)
    left = ops.transpose(ops.reshape(left, shape), (0, 2, 3, 1, 4))
    first = ops.zeros_like(left[:, :, :, :1])
    if states is not None:
        first = ops.reshape(states, (batch, groups, each, 1, width * state_dim))
    total = ops.transpose(sums[..., -1], (0, 2, 3, 1))
    total = ops.concatenate([ops.zeros_like(total[..., :1]), total], axis=-1)
    found = ops.matmul(decays(total, between), ops.concatenate([first, left], axis=3))
    last = ops.reshape(found[:, :, :, -1], (batch, heads, width, state_dim))
    shape = (batch, -1, groups, each, width, state_dim)
    found = ops.reshape(ops.transpose(found[:, :, :, :-1], (0, 3, 1, 2, 4)), shape)
    kept = _only(before, ops.exp(sums))[..., None]
    y = y + kept * ops.matmul(out_of[:, :, :, None], ops.swapaxes(found, -1, -2))
    y = ops.reshape(ops.transpose(y, (0, 1, 4, 2, 3, 5)), (batch, -1, heads, width))
    return y[:, :length], last


def chunks(x, size: int, last: bool = False):
    """Cut `(batch, length, ...)` into `(batch, chunks, size, ...)`, filled up with zeros.

    With `last` it is filled up with the last value of each row.
    """
    batch, length = ops.shape(x)[:2]
    count = (length + size - 1) // size
    if not (isinstance(length, int) and length % size == 0):
        if last:
            x = ops.concatenate([x, *[x[:, -1:]] * (size - 1)], axis=1)
        else:
            x = ops.pad(x, [[0, 0], [0, size - 1]] + [[0, 0]] * (len(x.shape) - 2))
        x = x[:, : count * size]
    return ops.reshape(x, (batch, -1, size, *x.shape[2:]))


def decays(fading, same=None):
    """Return the factors between all pairs of tokens, `(..., length, length)`, 0 for later ones.

    Factor `[i, j]` is the product of the factors of the tokens behind `j` up to `i`.

    Args:
        fading: float `(..., length)`, the logarithms of the factors of the tokens.
        same: bool `(..., length, length)`, the pairs of one document, or None.
    """
    places = ops.arange(ops.shape(fading)[-1], dtype="int32")
    later = places[:, None] > places[None]
    # Summed for each pair: differences of sums over the whole chunk would lose digits.
    sums = ops.cumsum(ops.where(later, fading[..., None], 0.0), axis=-2)
    seen = places[:, None] >= places[None]
    return _only(seen if same is None else ops.logical_and(seen, same), ops.exp(sums))


def _only(seen, x):
    return x if seen is None else ops.where(seen, x, 0.0)
