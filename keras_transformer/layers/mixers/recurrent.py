"""Base class of recurrent mixers, and sequences in chunks."""

from typing import ClassVar, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.config import Mixer, Norm
from keras_transformer.layers.arguments import ChecksCall, SavesArguments, pack_outputs, part_of
from keras_transformer.layers.attention.masking import AttentionMask
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.mixers.causal_convolution import CausalConvolution
from keras_transformer.layers.remat import Rematerializable, no_inner_remat
from keras_transformer.support.checking import check_bool

# Smallest and largest initial step of a head (Gu and Dao 2023, "Mamba", section 3.6).
_STEPS = (1e-3, 1e-1)


class RecurrentMixer(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Base class of mixers with states of fixed size.

    A subclass sets `part_type`, makes its layers in `build`, and defines `mix`, which does not know
    of caches and branches.

    Args:
        part: the part of the mixer.
        norm: `config.Norm` of the block, whose epsilon the norm of the output has too.
        causal: bool, must be True: a token sees only itself and the tokens before it.
        kernel_initializer: initializer of the kernels.
        seed: int, which these mixers do not use.
        **kwargs: as in `keras.layers.Layer`.
    """

    part_type: ClassVar[type[Mixer]] = Mixer
    option_rules: ClassVar = {"causal": check_bool}
    axes: ClassVar = {"inputs": ("batch", "length", "dim")}

    def __init__(
        self,
        part: Mixer,
        norm: Norm | None = None,
        causal: bool = True,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part_of("part", part, self.part_type)
        self.epsilon = (norm or Norm()).epsilon
        if not causal:
            raise ValueError(
                f"{type(self).__name__} sees only earlier tokens, so it is for decoders: received "
                "causal=False."
            )
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def add_dense(self, inputs_shape, units: int, name: str, bias: bool = False) -> Dense:
        """Return a built projection."""
        with no_inner_remat():
            dense = Dense(
                units,
                use_bias=bias,
                kernel_initializer=self.kernel_initializer.clone(),
                name=name,
                dtype=self.dtype_policy,
            )
        dense.build(inputs_shape)
        return dense

    def add_convolution(self, inputs_shape, size: int, name: str, bias: bool = False):
        """Return a built `CausalConvolution`."""
        with no_inner_remat():
            convolution = CausalConvolution(size, bias, name=name, dtype=self.dtype_policy)
        convolution.build(inputs_shape)
        return convolution

    def add_heads(self, name: str, values: np.ndarray):
        """Add a number for each head, which stays in float32: the recurrence needs its digits."""

        def initial(shape, dtype=None):
            return ops.convert_to_tensor(values.astype(dtype or "float32"))

        return self.add_weight(values.shape, initial, "float32", name=name, autocast=False)

    def call(self, inputs, mask=None, visibility=None, cache=None, training: bool = False):
        visibility = AttentionMask.given(visibility, mask)
        if cache is None:
            return self.mix(inputs, visibility.padding, visibility.query_pack)[0]
        x, states = cache.unfolded(inputs)
        y, states = self.mix(x, cache.padding, visibility.query_pack, states)
        return pack_outputs(*cache.folded(y, states))

    def mix(self, x, padding=None, packs=None, states=None) -> tuple:
        """Return the outputs of tokens, and the states behind the last one.

        Args:
            x: float `(batch, length, dim)`.
            padding: bool `(batch, length)`, True for real tokens, or None.
            packs: int `(batch, length)`, the packed document of each token, or None.
            states: tuple of tensors `(batch, *shape)` with the shapes that the part lists, or None
                before the first token.
        """
        raise NotImplementedError

    def compute_mask(self, inputs, mask=None, **kwargs):
        return mask

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)


class GatedNormalization(keras.layers.Layer):
    """Divide each group of features by its root mean square, and multiply by an activated gate.

    Args:
        groups: int, number of groups.
        epsilon: float, added to the mean square.
        gate_first: bool, multiply by the gate before the norm (Mamba 2).
        shared: bool, all groups have one weight (gated delta rule).
        activation: str, activation of the gate.
        **kwargs: as in `keras.layers.Layer`.
    """

    def __init__(
        self,
        groups: int,
        epsilon: float,
        gate_first: bool,
        shared: bool,
        activation: str = "silu",
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)
        self.activation = get_activation(activation)
        self.groups, self.epsilon = groups, epsilon
        self.gate_first, self.shared = gate_first, shared

    def build(self, input_shape):
        width = input_shape[-1] // self.groups
        shape = (width,) if self.shared else (input_shape[-1],)
        self.scale = self.add_weight(shape, "ones", name="scale")

    def call(self, states, gate):
        gate = self.activation(ops.cast(gate, "float32"))
        x = ops.cast(states, "float32")
        x = x * gate if self.gate_first else x
        *rows, width = ops.shape(x)
        x = ops.reshape(x, (*rows, self.groups, width // self.groups))
        x = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + self.epsilon)
        scale = ops.cast(self.scale, "float32")
        x = ops.reshape(x * scale if self.shared else x, (*rows, width))
        x = x if self.shared else x * scale
        return ops.cast(x if self.gate_first else x * gate, self.compute_dtype)


def initial_steps(heads: int) -> np.ndarray:
    """Return biases whose softplus are steps spaced evenly in logarithm, `(heads,)`."""
    steps = np.geomspace(*_STEPS, heads)
    return steps + np.log(-np.expm1(-steps))


class Boundaries(NamedTuple):
    """Which tokens of chunks belong to one packed document; all None without packed documents.

    Fields:
        same: bool `(batch, chunks, size, size)`, pairs within a chunk.
        before: bool `(batch, chunks, size)`, tokens that see the states that the chunk begins with.
        after: bool `(batch, chunks, size)`, tokens that the states behind the chunk see.
        through: bool `(batch, chunks)`, chunks that begin and end with one document.
        between: bool `(batch, chunks + 1, chunks + 1)`, ends of chunks, the start of the row first.
    """

    same: tuple | None = None
    before: tuple | None = None
    after: tuple | None = None
    through: tuple | None = None
    between: tuple | None = None

    @classmethod
    def of(cls, packs, size: int) -> "Boundaries":
        """Return the boundaries of documents `(batch, length)` in chunks of `size` tokens."""
        if packs is None:
            return cls()
        packs = chunks(packs, size, last=True)
        ends = packs[:, :, -1]
        starts = ops.concatenate([packs[:, :1, 0], ends], axis=1)
        return cls(
            same=ops.equal(packs[:, :, :, None], packs[:, :, None]),
            before=ops.equal(packs, starts[:, :-1, None]),
            after=ops.equal(packs, ends[..., None]),
            through=ops.equal(starts[:, :-1], ends),
            between=ops.equal(starts[:, :, None], starts[:, None]),
        )


def chunks(x, size: int, last: bool = False):
    """Cut `(batch, length, ...)` into `(batch, chunks, size, ...)`, filled up with zeros.

    With `last` it is filled up with the last value of each row.
    """
    batch, length = ops.shape(x)[:2]
    if not (isinstance(length, int) and length % size == 0):
        if last:
            x = ops.concatenate([x, *[x[:, -1:]] * (size - 1)], axis=1)
        else:
            x = ops.pad(x, [[0, 0], [0, size - 1]] + [[0, 0]] * (len(x.shape) - 2))
        x = x[:, : (length + size - 1) // size * size]
    return ops.reshape(x, (batch, -1, size, *x.shape[2:]))


def chunk_size(size: int, length) -> int:
    """Return the size of chunks: not more than the length, if that is known."""
    return min(size, length) if isinstance(length, int) else size


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
    return only(seen if same is None else ops.logical_and(seen, same), ops.exp(sums))


def decayed_products(x, keys, fading, same=None):
    """Return products of all pairs of tokens whose features fade, `(..., length, length)`.

    Product `[i, j]` is the sum over the features of `x[i]`, `keys[j]` and the product of the
    factors of the tokens behind `j` up to `i`; 0 for later `j`.

    Args:
        x: float `(..., length, dim)`.
        keys: float `(..., length, dim)`.
        fading: float `(..., length, dim)`, the logarithms of the factors of the tokens.
        same: bool `(..., length, length)`, the pairs of one document, or None.
    """
    fading = ops.swapaxes(fading, -1, -2)
    same = None if same is None else ops.expand_dims(same, -3)
    return ops.einsum("...id,...jd,...dij->...ij", x, keys, decays(fading, same))


def only(seen, x):
    """Return `x` where `seen` is True or None, and 0 elsewhere."""
    return x if seen is None else ops.where(seen, x, 0.0)
