"""Selective state spaces: a recurrence with a matrix of states for each head (Mamba 2)."""

from typing import ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.config import StateSpace
from keras_transformer.layers.mixers.causal_convolution import recent_states
from keras_transformer.layers.mixers.recurrent import (
    Boundaries,
    GatedNormalization,
    RecurrentMixer,
    chunk_size,
    chunks,
    decays,
    initial_steps,
    only,
)
from keras_transformer.layers.remat import no_inner_remat


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelectiveStateSpace(RecurrentMixer):
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

    part_type: ClassVar = StateSpace

    def build(self, inputs_shape):
        part, heads = self.part, self.part.num_heads
        projected = part.sizes(inputs_shape[-1])["projected_dim"]
        mixed, inner = ((*inputs_shape[:-1], n) for n in (part.mixed_dim, part.inner_dim))
        self.input_dense = self.add_dense(inputs_shape, projected, "input", part.bias)
        self.convolution = self.add_convolution(
            mixed, part.convolution_size, "short_convolution", part.convolution_bias
        )
        self.decay = self.add_heads("decay", np.log(np.arange(1, heads + 1)))
        self.skip = self.add_heads("skip", np.ones((heads,)))
        self.step_bias = self.add_heads("step_bias", initial_steps(heads))
        self.norm = None
        if part.gated_norm != "none":
            with no_inner_remat():
                self.norm = GatedNormalization(
                    part.num_groups,
                    self.epsilon,
                    gate_first=part.gated_norm == "after_gate",
                    shared=False,
                    name="norm",
                    dtype=self.dtype_policy,
                )
            self.norm.build(inner)
        self.output_dense = self.add_dense(inner, inputs_shape[-1], "output", part.bias)
        self.fixed = {"dim": inputs_shape[-1]}

    def mix(self, x, padding=None, packs=None, states=None):
        last, matrices = states or (None, None)
        part, groups = self.part, self.part.num_groups
        x = self.input_dense(x)
        if part.projection_scales is not None:
            width = groups * part.state_dim
            sizes = (part.inner_dim, part.inner_dim, width, width, part.num_heads)
            scales = np.repeat(np.asarray(part.projection_scales, "float32"), sizes)
            x = x * ops.convert_to_tensor(scales, x.dtype)
        shape = tuple(ops.shape(x)[:2])
        inner, mixed = part.inner_dim, part.inner_dim + part.mixed_dim
        gate, x, steps = x[..., :inner], x[..., inner:mixed], x[..., mixed:]
        recent, last = recent_states(x, part.convolution_size, padding, packs, last)
        x = ops.cast(ops.silu(self.convolution(recent)), "float32")
        width = groups * part.state_dim
        into, out_of = (
            ops.reshape(each, (*shape, groups, part.state_dim))
            for each in (x[..., inner : inner + width], x[..., inner + width :])
        )
        x = ops.reshape(x[..., :inner], (*shape, part.num_heads, part.head_dim))
        steps = ops.softplus(ops.cast(steps, "float32") + self.step_bias)
        if part.least_step is not None:
            steps = ops.maximum(steps, part.least_step)
        steps = only(None if padding is None else padding[..., None], steps)
        given = (x * steps[..., None], -ops.exp(self.decay) * steps, into, out_of)
        if matrices is not None and shape[1] == 1:
            y, matrices = one_step(*given, matrices)
        else:
            y, matrices = in_chunks(*given, part.chunk_size, matrices, packs)
        y = ops.reshape(y + self.skip[:, None] * x, (*shape, inner))
        if self.norm is None:
            y = ops.cast(y, self.compute_dtype) * ops.silu(gate)
        else:
            y = self.norm(y, gate)
        return self.output_dense(y), (last, matrices)


def one_step(x, fading, into, out_of, states) -> tuple:
    """Return the output of one token, and the states behind it: the recurrence itself.

    Args:
        x: float `(batch, 1, heads, head_dim)`, what is added to the states.
        fading: float `(batch, 1, heads)`, the logarithm of the factor of the states.
        into: float `(batch, 1, groups, state_dim)`, by which `x` is spread over the states.
        out_of: float `(batch, 1, groups, state_dim)`, by which the states are read.
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
        into: float `(batch, length, groups, state_dim)`.
        out_of: float `(batch, length, groups, state_dim)`.
        size: int, tokens of a chunk.
        states: float `(batch, heads, head_dim, state_dim)`, the states before the first token.
            Defaults to zeros.
        packs: int `(batch, length)`, the packed document of each token: no state passes from one to
            another.

    Returns:
        Float `(batch, length, heads, head_dim)`, and the states behind the last token.

    Source: Dao and Gu 2024, section 6.
    """
    batch, length = ops.shape(x)[:2]
    heads, groups, width, state_dim = x.shape[2], into.shape[2], x.shape[3], into.shape[3]
    each = heads // groups
    size = chunk_size(size, length)
    # Each in the order (batch, chunks, groups, heads of a group, size, features).
    fading = chunks(ops.reshape(fading, (batch, length, groups, each)), size)
    fading = ops.transpose(fading, (0, 1, 3, 4, 2))
    x = ops.transpose(
        chunks(ops.reshape(x, (batch, length, groups, each, width)), size), (0, 1, 3, 4, 2, 5)
    )
    into, out_of = (ops.transpose(chunks(y, size), (0, 1, 3, 2, 4)) for y in (into, out_of))
    limits = Boundaries.of(packs, size)
    same, before, after = (None if each is None else each[:, :, None, None] for each in limits[:3])
    between = None if packs is None else limits.between[:, None, None]
    # Pairs within a chunk: attention with decays in place of a softmax.
    scores = ops.matmul(out_of, ops.swapaxes(into, -1, -2))[:, :, :, None]
    y = ops.matmul(scores * decays(fading, same), x)
    # The states that each chunk leaves, and those that it begins with.
    sums = ops.cumsum(fading, axis=-1)
    rest = only(after, ops.exp(sums[..., -1:] - sums))
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
    kept = only(before, ops.exp(sums))[..., None]
    y = y + kept * ops.matmul(out_of[:, :, :, None], ops.swapaxes(found, -1, -2))
    y = ops.reshape(ops.transpose(y, (0, 1, 4, 2, 3, 5)), (batch, -1, heads, width))
    return y[:, :length], last
