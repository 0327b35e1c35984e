"""A linear recurrence of each feature by itself, with gates (RG-LRU)."""

from typing import ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.config import LinearRecurrence
from keras_transformer.layers.arguments import initial_stack
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.mixers.causal_convolution import recent_states
from keras_transformer.layers.mixers.recurrent import RecurrentMixer, chunk_size, chunks, only
from keras_transformer.layers.remat import no_inner_remat

# Factor of the logarithm of the decays (De et al. 2024, section 2.4).
_STRENGTH = 8.0
# Smallest and largest initial decay of a state, to the power of `_STRENGTH` (section 2.4).
_DECAYS = (0.9, 0.999)
# Largest derivative of the square root.
_STEEPEST = 1000.0


@keras.saving.register_keras_serializable(package="keras_transformer")
class GatedLinearRecurrence(RecurrentMixer):
    """Let each state fade by a factor that depends on the token, and add the token to it.

    With gates `r` and `i`, sigmoids of projections of the token `x`, and a trained `decay`:
    `a = exp(-8 softplus(decay) r)` and `state = a state + sqrt(1 - a^2) i x`. The first token of a
    text is added as `i x`. The tokens go through a short convolution first, and the states are
    multiplied by an activated projection of the inputs. Several tokens are computed in chunks: by
    an associative scan within a chunk, as the recurrence from chunk to chunk.

    Args:
        part: `config.LinearRecurrence`.
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

    Returns:
        Float `(batch, length, dim)`; in a tuple with it, the updated cache if one was given.

    Raises:
        ValueError: if `causal` is False.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import LinearRecurrence
    from keras_transformer.layers.mixers.linear_recurrence import GatedLinearRecurrence

    mixer = GatedLinearRecurrence(LinearRecurrence(state_dim=24, num_heads=4))
    assert mixer(np.random.rand(2, 7, 16)).shape == (2, 7, 16)
    ```

    Source: De et al. 2024, "Griffin: Mixing Gated Linear Recurrences with Local Attention for
    Efficient Language Models", sections 2.3 and 2.4.
    """

    part_type: ClassVar = LinearRecurrence

    def build(self, inputs_shape):
        part, width = self.part, self.part.state_dim
        inner = (*inputs_shape[:-1], width)
        self.input_dense = self.add_dense(inputs_shape, width, "input", bias=True)
        self.gate_dense = self.add_dense(inputs_shape, width, "gate", bias=True)
        self.convolution = self.add_convolution(
            inner, part.convolution_size, "short_convolution", bias=True
        )
        self.input_gate, self.recurrence_gate = (
            self._gate(name, width) for name in ("input_gate", "recurrence_gate")
        )
        rates = -np.log(np.linspace(*_DECAYS, width)) / _STRENGTH
        self.decay = self.add_heads("decay", np.log(np.expm1(rates)))  # softplus makes the rates
        self.output_dense = self.add_dense(inner, inputs_shape[-1], "output", bias=True)
        self.fixed = {"dim": inputs_shape[-1]}

    def _gate(self, name: str, width: int) -> "_HeadDense":
        with no_inner_remat():
            gate = _HeadDense(
                self.part.num_heads,
                self.kernel_initializer.clone(),
                name=name,
                dtype=self.dtype_policy,
            )
        gate.build((None, None, width))
        return gate

    def mix(self, x, padding=None, packs=None, states=None):
        last, state, begun = states or (None, None, None)
        part = self.part
        gate = get_activation(part.activation)(self.gate_dense(x))
        recent, last = recent_states(
            self.input_dense(x), part.convolution_size, padding, packs, last
        )
        x = self.convolution(recent)
        shares, rates = (
            ops.sigmoid(ops.cast(dense(x), "float32"))
            for dense in (self.input_gate, self.recurrence_gate)
        )
        fading = -_STRENGTH * ops.softplus(self.decay) * rates
        first, begun = first_tokens(ops.shape(x)[:2], padding, packs, begun)
        first = first[..., None]
        added = ops.cast(x, "float32") * shares
        added = added * ops.where(first, 1.0, bounded_sqrt(-ops.expm1(2.0 * fading)))
        factors = ops.where(first, 0.0, ops.exp(fading))
        if padding is not None:
            added = only(padding[..., None], added)
            factors = ops.where(padding[..., None], factors, 1.0)
        if state is not None and ops.shape(x)[1] == 1:
            y, state = one_step(factors, added, state)
        else:
            y, state = in_chunks(factors, added, part.chunk_size, state)
        y = ops.cast(y, self.compute_dtype)
        return self.output_dense(y * gate), (last, state, begun)


class _HeadDense(keras.layers.Layer):
    """A dense layer for each of several equal parts of the features."""

    def __init__(self, heads: int, kernel_initializer, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.kernel_initializer = heads, kernel_initializer

    def build(self, input_shape):
        width = input_shape[-1] // self.heads
        shape = (self.heads, width, width)
        self.kernel = self.add_weight(shape, self._initial, name="kernel")
        self.bias = self.add_weight(shape[:2], "zeros", name="bias")

    def _initial(self, shape, dtype=None):
        return initial_stack(self.kernel_initializer, shape, dtype)

    def call(self, x):
        *rows, width = ops.shape(x)
        x = ops.reshape(x, (*rows, self.heads, width // self.heads))
        x = ops.einsum("blhi,hij->blhj", x, self.kernel) + self.bias
        return ops.reshape(x, (*rows, width))


def first_tokens(shape: tuple, padding=None, packs=None, begun=None) -> tuple:
    """Return which tokens are the first of their text, and which rows have begun behind the last.

    Args:
        shape: `(batch, length)`.
        padding: bool `(batch, length)`, True for real tokens, or None.
        packs: int `(batch, length)`, the packed document of each token, or None.
        begun: float `(batch, 1)`, 1 for rows that had a real token before. Defaults to zeros.

    Returns:
        Bool `(batch, length)`, and float `(batch, 1)`.
    """
    real = ops.ones(shape, "bool") if padding is None else ops.cast(padding, "bool")
    counts = ops.cumsum(ops.cast(real, "int32"), axis=1)
    if begun is not None:
        counts = counts + ops.cast(begun, "int32")
    first = ops.equal(counts, 1)
    if packs is not None:
        others = ops.not_equal(packs[:, 1:], packs[:, :-1])
        first = ops.logical_or(first, ops.pad(others, [[0, 0], [1, 0]]))
    seen = ops.cast(counts[:, -1:] > 0, "float32")
    return ops.logical_and(first, real), seen


def bounded_sqrt(x):
    """Return the square root of numbers from 0 to 1, with a derivative of at most 1,000.

    Source: De et al. 2024, appendix A.
    """
    steep = (0.5 / _STEEPEST) ** 2  # where the derivative is largest
    x_fixed = ops.stop_gradient(x)
    near = ops.sqrt(x_fixed) + _STEEPEST * (x - x_fixed)
    return ops.where(x > steep, ops.sqrt(ops.maximum(x, steep)), near)


def one_step(factors, added, state) -> tuple:
    """Return the state behind one token, as its output and as the state: the recurrence itself.

    Args:
        factors: float `(batch, 1, dim)`, by which the states fade.
        added: float `(batch, 1, dim)`.
        state: float `(batch, dim)`.

    Returns:
        Float `(batch, 1, dim)` and `(batch, dim)`.
    """
    state = factors[:, 0] * state + added[:, 0]
    return state[:, None], state


def in_chunks(factors, added, size: int, state=None) -> tuple:
    """Return the states behind each of many tokens, and behind the last one.

    They equal those of `one_step` for each token in turn. Within a chunk of `size` tokens they are
    computed by an associative scan in `log2(size)` steps: each joins the tokens so far with as many
    before them.

    Args:
        factors: float `(batch, length, dim)`, by which the states fade.
        added: float `(batch, length, dim)`.
        size: int, tokens of a chunk.
        state: float `(batch, dim)`, before the first token. Defaults to zeros.

    Returns:
        Float `(batch, length, dim)` and `(batch, dim)`.

    Source: Hillis and Steele 1986, "Data Parallel Algorithms".
    """
    batch, length, width = ops.shape(factors)
    size = chunk_size(size, length)
    # What fills up the last chunk leaves the states as they are.
    filled = 1.0 - chunks(ops.ones_like(factors[:1, :, :1]), size)
    factors, added = chunks(factors, size) + filled, chunks(added, size)
    step = 1
    while step < size:
        before = [each[:, :, :-step] for each in (factors, added)]
        start = factors[:, :, :step]
        added = added + factors * ops.concatenate([ops.zeros_like(start), before[1]], axis=2)
        factors = factors * ops.concatenate([ops.ones_like(start), before[0]], axis=2)
        step *= 2
    if state is None:
        state = ops.zeros((batch, width), "float32")

    def go_on(state, chunk):
        return chunk[0] * state + chunk[1], state

    # One tensor: with several, Keras's scan on TensorFlow needs to know the number of chunks.
    in_turn = ops.transpose(ops.stack([factors[:, :, -1], added[:, :, -1]]), (2, 0, 1, 3))
    state, begun = ops.scan(go_on, state, in_turn)
    y = added + factors * ops.transpose(begun, (1, 0, 2))[:, :, None]
    return ops.reshape(y, (batch, -1, width))[:, :length], state
