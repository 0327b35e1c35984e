"""Positions: added to the embeddings, or rotated into queries and keys."""

import math
from collections.abc import Sequence
from typing import ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import known_shape
from keras_transformer.config import ROTARY_SCALINGS
from keras_transformer.layers.arguments import ChecksCall, SavesArguments, checked_options
from keras_transformer.layers.embedding import Embedding
from keras_transformer.layers.remat import Rematerializable


def sequence_positions(inputs):
    """Positions 0, 1, 2, ... of the second axis of `inputs`, int `(1, length)`."""
    return ops.expand_dims(ops.arange(ops.shape(inputs)[1], dtype="int32"), 0)


def row_lengths(positions, padding=None):
    """How many tokens each row has, int `(batch,)`: by the positions of those that are real."""
    if padding is not None:
        positions = ops.where(ops.cast(padding, "bool"), positions, 0)
    return ops.max(positions, axis=1) + 1


def _for_each_row(table, inputs):
    """The vectors `(batch or 1, length, dim)` of positions for every row of `inputs`.

    Keras's merging layers take a batch of 1 in one input for the batch of the output.
    """
    shape = ops.shape(inputs)
    return ops.broadcast_to(table, (shape[0], shape[1], table.shape[-1]))


# Arrays of layers whose positions are added.
_ADDED = {"inputs": ("batch", "length", "dim"), "positions": ("batch or 1", "length")}


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPosition(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Sine and cosine waves of geometrically growing wavelength, to add to the embeddings.

    `PE(pos, 2i) = sin(pos / max_wavelength^(2i/d))`, `PE(pos, 2i+1)` the cosine of the same.

    Args:
        max_wavelength: float, the longest wavelength divided by 2 pi.
        interleaved: bool, sines and cosines alternate; False for all sines before all cosines.
        offset: int, added to every position. Some published models count from 2.
        inclusive: bool, the last wavelength is the longest one: the exponent is `2i/(d-2)`.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`, for its shape and dtype. `hidden_dim` even.
        positions: optional int `(batch or 1, length)`. Defaults to 0, 1, 2, ...

    Returns:
        Float `(batch, length, hidden_dim)`: what the caller adds to `inputs`.

    Raises:
        ValueError: if `hidden_dim` is odd, `inputs` have another rank, or an option is out of
            range.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import SinusoidalPosition

    table = SinusoidalPosition()(np.zeros((1, 50, 8), "float32"))
    assert np.allclose(table[0, 3, :2], [np.sin(3), np.cos(3)], atol=1e-6)
    ```

    Source: Vaswani et al. 2017, section 3.5.
    """

    option_rules: ClassVar = {
        "max_wavelength": "rotary_base",
        "interleaved": "sinusoidal_interleaved",
        "offset": "position_offset",
        "inclusive": "sinusoidal_inclusive",
    }
    axes = _ADDED

    def __init__(
        self,
        max_wavelength: float = 10000.0,
        interleaved: bool = True,
        offset: int = 0,
        inclusive: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.max_wavelength = max_wavelength
        self.interleaved = interleaved
        self.offset = offset
        self.inclusive = inclusive
        self.supports_masking = True

    def build(self, inputs_shape=None, positions_shape=None):
        pass  # There are no weights.

    def check_axes(self, given):
        super().check_axes(given)
        *_, dim = known_shape(given.get("inputs")) or (None,)
        if dim is not None and dim % 2:
            raise ValueError(f"Sinusoidal positions need an even last dimension, received {dim}.")
        if self.inclusive and dim is not None and dim < 4:
            raise ValueError(f"`inclusive` needs a last dimension of at least 4, received {dim}.")

    def call(self, inputs, positions=None):
        dim = inputs.shape[-1]
        positions = sequence_positions(inputs) if positions is None else positions
        positions = positions if self.offset == 0 else positions + self.offset
        longest = self.max_wavelength ** (dim / (dim - 2) if self.inclusive else 1.0)
        # In float32: at position 500 bfloat16 would already be wrong by a whole step.
        waves = _angles(positions, _frequencies(dim, longest))
        table = ops.stack([ops.sin(waves), ops.cos(waves)], axis=-1 if self.interleaved else -2)
        shape = ops.shape(waves)
        table = ops.cast(ops.reshape(table, (shape[0], shape[1], dim)), inputs.dtype)
        return _for_each_row(table, inputs)

    def compute_output_shape(self, inputs_shape, positions_shape=None):
        return inputs_shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPosition(ChecksCall, Rematerializable, Embedding):
    """A trained vector per position, to add to the embeddings.

    Args:
        max_sequence_length: int, number of positions.
        hidden_dim: int, width of a vector.
        offset: int, rows of the table before that of position 0. Some published models have them.
        **kwargs: as in `keras.layers.Embedding`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`, for its batch and length.
        positions: optional int `(batch or 1, length)`. Defaults to 0, 1, 2, ...

    Returns:
        Float `(batch, length, hidden_dim)`: what the caller adds to `inputs`.

    Raises:
        ValueError: if the sequence is longer than `max_sequence_length`, `inputs` have another
            shape, or an option is out of range.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import LearnedPosition

    assert LearnedPosition(64, 8)(np.zeros((2, 10, 8))).shape == (2, 10, 8)
    ```

    Source: Gehring et al. 2017, "Convolutional Sequence to Sequence Learning", section 3.1.
    """

    option_rules: ClassVar = {"offset": "position_offset"}
    axes = _ADDED

    def __init__(self, max_sequence_length: int, hidden_dim: int, offset: int = 0, **kwargs):
        given = {"max_sequence_length": max_sequence_length, "hidden_dim": hidden_dim}
        given = checked_options(type(self), {**given, "offset": offset})
        max_sequence_length, hidden_dim, offset = given.values()
        super().__init__(max_sequence_length + offset, hidden_dim, **kwargs)
        self.offset = offset
        self.fixed = {"dim": hidden_dim}
        self.uncounted = 0  # so many tokens of a sequence have no position of their own
        self.supports_masking = True

    def compute_mask(self, inputs, mask=None):
        return mask  # Of what the vectors are added to: a sum has a mask if all its terms have one.

    def call(self, inputs, positions=None):
        return _for_each_row(super().call(self._checked(inputs, positions)), inputs)

    def quantized_call(self, inputs, positions=None):
        # Keras calls this one instead of `call` once the layer is quantized.
        table = super().quantized_call(self._checked(inputs, positions))
        return _for_each_row(table, inputs)

    def _checked(self, inputs, positions):
        """The positions to look up, if there is a vector for each."""
        length, longest = inputs.shape[1], self.input_dim - self.offset
        counted = length - self.uncounted if isinstance(length, int) else 0  # on JAX it is symbolic
        if counted > longest:
            raise ValueError(
                f"The sequence has {counted} tokens, but there are learned positions for "
                f"{longest} only. Truncate the input, or raise `max_sequence_length`."
            )
        return (sequence_positions(inputs) if positions is None else positions) + self.offset

    def compute_output_shape(self, inputs_shape, positions_shape=None):
        return (*inputs_shape[:2], self.output_dim)

    def compute_output_spec(self, inputs, positions=None):
        shape = self.compute_output_shape(inputs.shape)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict:
        config = super().get_config()
        config["max_sequence_length"] = config.pop("input_dim") - self.offset
        config["hidden_dim"] = config.pop("output_dim")
        return {**config, "offset": self.offset}


@keras.saving.register_keras_serializable(package="keras_transformer")
class RotaryEmbedding(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Rotates pairs of features of queries and keys by an angle that grows with the position.

    Feature `i` is paired with `i + dim / 2`, or interleaved `2 i` with `2 i + 1`. The product of a
    rotated query and a rotated key depends on the distance of their positions alone.

    Args:
        base: float, wavelength base.
        dim: int, the number of features that are rotated, the first ones. None for all. Of an odd
            number one more is rotated, but the wavelengths are those of the number itself.
        scaling: str, how the angles grow more slowly for sequences longer than in training. A pair
            that turns often within `original_length` tells near positions apart and stays as it
            is; one that turns seldom has its angle divided by `factor`:
            `"linear"`: every angle is divided (Chen et al. 2023, section 3.2);
            `"llama3"`: below `min_turns` turns divided, above `max_turns` not, and between them
            in proportion to the turns (Grattafiori et al. 2024, section 3.4.3);
            `"yarn"`: likewise in proportion to the pair's number, and scores are raised by
            `(0.1 ln(factor) + 1)^2` (Peng et al. 2023, sections 3.2 to 3.4);
            `"dynamic"`: in rows longer than `original_length` the base grows with the length;
            `"longrope"`: each pair's angle is divided by a factor of its own, and in rows longer
            than `original_length` by another one; scores are raised by
            `1 + ln(factor) / ln(original_length)` (Ding et al. 2024, section 3).
            With the last two, tokens in a cache keep the angles that they got when their row was
            shorter, as in Transformers, but for its Phi-3, which computes the cache anew where the
            row passes `original_length`.
        factor: float, how many times longer the sequences are.
        min_turns, max_turns: float, numbers of turns within `original_length`.
        original_length: int, the longest sequence in training.
        truncate: bool, of `"yarn"`: the pairs that the proportion is between are whole numbers.
        interleaved: bool, neighbouring features are pairs (GPT-J).
        short_factors, long_factors: list of float, the divisors of each pair, of `"longrope"`.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, heads, head_dim)`.
        positions: optional int `(batch, length)`. Defaults to 0, 1, 2, ...
        lengths: optional int `(batch,)`, how many tokens each row has so far, for `"dynamic"` and
            `"longrope"`. Defaults to its greatest position and 1.

    Returns:
        Float, the shape of `inputs`.

    Raises:
        ValueError: for `inputs` of another rank; for more features to rotate than there are, or
            an odd number of all; for an option that is out of range; for an unknown scaling, one
            without `original_length`, or a factor without scaling; for factors that are not one for
            each pair, or not of `"longrope"`; for `"llama3"` without turns between its bounds.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import RotaryEmbedding

    x = np.ones((1, 4, 2, 8), "float32")
    y = RotaryEmbedding()(x)
    assert np.allclose(y[:, 0], x[:, 0])  # position 0 is not rotated
    ```

    Source: Su et al. 2021, "RoFormer", section 3.2.2 and equation 34.
    """

    option_rules: ClassVar = {
        name: f"rotary_{name}"
        for name in (
            "base", "dim", "scaling", "factor", "min_turns", "max_turns", "original_length",
            "truncate", "interleaved", "short_factors", "long_factors",
        )
    }  # fmt: skip
    axes: ClassVar = {
        "inputs": ("batch", "length", "heads", "head_dim"),
        "positions": ("batch or 1", "length"),
        "lengths": ("batch or 1",),
    }

    def __init__(
        self,
        base: float = 10000.0,
        dim: int | None = None,
        scaling: str | None = None,
        factor: float = 1.0,
        min_turns: float = 1.0,
        max_turns: float = 32.0,
        original_length: int | None = None,
        truncate: bool = True,
        interleaved: bool = False,
        short_factors: Sequence[float] | None = None,
        long_factors: Sequence[float] | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        known = ", ".join(map(repr, ROTARY_SCALINGS))
        if scaling not in (None, *ROTARY_SCALINGS):
            raise ValueError(
                f"Unknown scaling {scaling!r} of rotary positions. Known are: {known}."
            )
        if scaling is None and factor != 1:
            raise ValueError(
                f"factor={factor} of rotary positions does nothing without `scaling`: give it, one "
                f"of {known}."
            )
        if scaling not in (None, "linear") and not original_length:
            raise ValueError(f"scaling={scaling!r} of rotary positions needs `original_length`.")
        if scaling == "llama3" and min_turns >= max_turns:
            raise ValueError(
                "scaling='llama3' of rotary positions needs `min_turns` below `max_turns`, "
                f"received {min_turns} and {max_turns}."
            )
        given = [x is not None for x in (short_factors, long_factors)]
        if given != [scaling == "longrope"] * 2:
            raise ValueError(
                "`short_factors` and `long_factors` of rotary positions belong to "
                f"scaling='longrope', which needs both. Received scaling={scaling!r}."
            )
        self.base = base
        self.dim = dim
        self.scaling = scaling
        self.factor = factor
        self.min_turns = min_turns
        self.max_turns = max_turns
        self.original_length = original_length
        self.truncate = truncate
        self.interleaved = interleaved
        self.short_factors = short_factors
        self.long_factors = long_factors
        # Whether the angles of all tokens depend on how many there are.
        self.by_length = scaling in ("dynamic", "longrope")
        self.built = True  # There is nothing to build, and `quantize` wants all built.

    def check_axes(self, given):
        super().check_axes(given)
        *_, width = known_shape(given.get("inputs")) or (None,)
        dim = width if self.dim is None else self.dim
        if width is not None and 2 * -(-dim // 2) > width:
            raise ValueError(
                f"Rotary positions need an even number of features, at most the head size {width}, "
                f"received {dim}."
            )

    def call(self, inputs, positions=None, lengths=None):
        width = inputs.shape[-1]
        dim = width if self.dim is None else self.dim
        frequencies = self.frequencies(dim)
        pairs = len(frequencies)
        positions = sequence_positions(inputs) if positions is None else positions
        if self.by_length:
            lengths = row_lengths(positions) if lengths is None else lengths
            frequencies = self._of_lengths(lengths, frequencies, dim)
        angles = ops.expand_dims(_angles(positions, frequencies), 2)
        x = ops.cast(inputs, "float32")
        turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
        first, second = turned[..., :pairs], turned[..., pairs:]
        if self.interleaved:
            first, second = turned[..., ::2], turned[..., 1::2]
        sin, cos = ops.sin(angles), ops.cos(angles)
        raised = self.raised
        if raised != 1:
            sin, cos = sin * raised, cos * raised
        parts = [first * cos - second * sin, second * cos + first * sin]
        if self.interleaved:
            parts = [ops.reshape(ops.stack(parts, axis=-1), ops.shape(turned))]
        rotated = ops.concatenate([*parts, rest] if 2 * pairs < width else parts, axis=-1)
        return ops.cast(rotated, inputs.dtype)

    def frequencies(self, dim: int) -> np.ndarray:
        """The angle of each pair of `dim` features from one position to the next, `(pairs,)`.

        Where the length of a row decides, those before it does.
        """
        frequencies = _frequencies(dim, self.base)
        if self.scaling is None or self.by_length:
            return frequencies
        kept = np.zeros(len(frequencies))  # the share of a frequency that is not divided
        if self.scaling == "llama3":
            turns = self.original_length * frequencies / (2 * math.pi)
            kept = (turns - self.min_turns) / (self.max_turns - self.min_turns)
        elif self.scaling == "yarn":

            def pair_that_turns(turns):
                wavelength = self.original_length / (turns * 2 * math.pi)
                return dim * math.log(wavelength) / (2 * math.log(self.base))

            first, last = map(pair_that_turns, (self.max_turns, self.min_turns))
            if self.truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, dim - 1)
            kept = 1 - (np.arange(len(frequencies)) - first) / max(last - first, 0.001)
        kept = np.clip(kept, 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)

    def _of_lengths(self, lengths, frequencies: np.ndarray, dim: int):
        """The frequencies in rows of these lengths, float32 `(batch, 1, pairs)`."""
        longer = ops.cast(lengths, "float32")[:, None, None] / self.original_length
        if self.scaling == "dynamic":
            growth = self.factor * ops.maximum(longer, 1.0) - (self.factor - 1)
            exponents = -np.arange(0, dim, 2) / max(dim - 2, 1)
            # As tensors: with an array a traced product would be a constant on PyTorch.
            exponents, plain = (
                ops.convert_to_tensor(x, "float32") for x in (exponents, frequencies)
            )
            return ops.power(growth, exponents) * plain
        of_pairs = []
        for factors in (self.long_factors, self.short_factors):
            if len(factors) != len(frequencies):
                raise ValueError(
                    f"`short_factors` and `long_factors` of rotary positions must have "
                    f"{len(frequencies)} numbers, one for each pair, received {len(factors)}."
                )
            of_pairs.append(ops.convert_to_tensor(frequencies / np.array(factors), "float32"))
        return ops.where(longer > 1.0, *of_pairs)

    @property
    def raised(self) -> float:
        """What queries and keys each are multiplied by."""
        if self.factor <= 1 or self.scaling not in ("yarn", "longrope"):
            return 1.0
        if self.scaling == "yarn":
            return 0.1 * math.log(self.factor) + 1
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))

    def compute_output_shape(self, inputs_shape, positions_shape=None):
        return inputs_shape


def _frequencies(dim: int, base: float) -> np.ndarray:
    """The angle of each pair of features from one position to the next, `(dim / 2,)`."""
    return np.power(base, -np.arange(0, dim, 2, dtype="float64") / dim)


def _angles(positions, frequencies: np.ndarray):
    """Position times frequency in float32, `(batch, length, dim / 2)`."""
    frequencies = ops.convert_to_tensor(frequencies, dtype="float32")
    return ops.expand_dims(ops.cast(positions, "float32"), -1) * frequencies
