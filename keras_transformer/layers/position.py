"""Positions: added to the embeddings, or rotated into queries and keys."""

import functools
import math
from collections.abc import Sequence
from typing import ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.config import (
    ROTARY_SCALINGS,
    Axial,
    GridRotary,
    Learned,
    QueryGrowth,
    Rotary,
    RotaryAxes,
    Side,
    Sinusoidal,
)
from keras_transformer.config.positions import PRECISIONS
from keras_transformer.kernels.indexing import look_up
from keras_transformer.kernels.rotary import rotate
from keras_transformer.layers.arguments import (
    ChecksCall,
    SavesArguments,
    checked_options,
    known_shape,
    part_of,
)
from keras_transformer.layers.embedding import Embedding
from keras_transformer.layers.remat import Rematerializable
from keras_transformer.support.checking import check_int


def sequence_positions(inputs):
    """Return the positions 0, 1, 2, ... of the second axis of `inputs`, int `(1, length)`."""
    return ops.expand_dims(ops.arange(ops.shape(inputs)[1], dtype="int32"), 0)


def row_lengths(positions, padding=None):
    """Return the number of tokens of each row, int `(batch,)`, from its real tokens' positions."""
    if padding is not None:
        positions = ops.where(ops.cast(padding, "bool"), positions, 0)
    return ops.max(positions, axis=1) + 1


def _for_each_row(table, inputs):
    """Broadcast the vectors `(batch or 1, length, dim)` of positions to the rows of `inputs`.

    Keras's merging layers would take a batch of 1 in one input for the batch of the output.
    """
    shape = ops.shape(inputs)
    return ops.broadcast_to(table, (shape[0], shape[1], table.shape[-1]))


# Axes of the call arguments of layers that add positions.
_ADDED = {"inputs": ("batch", "length", "dim"), "positions": ("batch or 1", "length")}


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPosition(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Sine and cosine waves of geometrically growing wavelengths, to add to the embeddings.

    `PE(pos, 2i) = sin(pos / max_wavelength^(2i/d))`, and `PE(pos, 2i+1)` is the cosine of the same.

    Args:
        max_wavelength: float, the longest wavelength divided by 2 pi.
        interleaved: bool, whether sines and cosines alternate. False puts all sines first.
        offset: int, added to every position. Some published models count from 2.
        inclusive: bool, whether the last wavelength is the longest: the exponent is `2i/(d-2)`.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`, for its shape and dtype, with an even width.
        positions: optional int `(batch or 1, length)`. Defaults to 0, 1, 2, ...

    Returns:
        Float `(batch, length, hidden_dim)`, to be added to `inputs`.

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

    @classmethod
    def from_part(cls, part: Sinusoidal, side: Side, **kwargs) -> "SinusoidalPosition":
        """Make the layer for a part of a config; `kwargs` are the other arguments of the layer."""
        kwargs.pop("embeddings_initializer", None)
        values = {"interleaved": part.interleaved, "inclusive": part.inclusive}
        return cls(offset=part.offset, **values, **kwargs)

    def build(self, inputs_shape=None, positions_shape=None):
        pass  # There are no weights.

    def check_call(self, given):
        super().check_call(given)
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
        # In float32: at position 500, bfloat16 would be off by a whole step.
        waves = _angles(positions, _frequencies(dim, longest))
        table = ops.stack([ops.sin(waves), ops.cos(waves)], axis=-1 if self.interleaved else -2)
        shape = ops.shape(waves)
        table = ops.cast(ops.reshape(table, (shape[0], shape[1], dim)), inputs.dtype)
        return _for_each_row(table, inputs)

    def table(self, length: int, dim: int) -> np.ndarray:
        """Return the vectors of the first positions, float32 `(length, dim)`, from exact angles.

        `call` computes the angles in float32, whose error grows with the position.
        """
        longest = self.max_wavelength ** (dim / (dim - 2) if self.inclusive else 1.0)
        angles = np.outer(np.arange(length) + self.offset, _frequencies(dim, longest))
        waves = np.stack([np.sin(angles), np.cos(angles)], axis=-1 if self.interleaved else -2)
        return waves.reshape(length, dim).astype("float32")

    def compute_output_shape(self, inputs_shape, positions_shape=None):
        return inputs_shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPosition(ChecksCall, Rematerializable, Embedding):
    """Trained vector per position, to add to the embeddings.

    Args:
        max_sequence_length: int, number of positions.
        hidden_dim: int, width of a vector.
        offset: int, number of table rows before the row of position 0, as in some published models.
        **kwargs: as in `keras.layers.Embedding`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`, for its batch and length.
        positions: optional int `(batch or 1, length)`. Defaults to 0, 1, 2, ...

    Returns:
        Float `(batch, length, hidden_dim)`, to be added to `inputs`.

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
        self.uncounted = 0  # number of tokens of a sequence without a position of their own
        self.supports_masking = True

    @classmethod
    def from_part(cls, part: Learned, side: Side, **kwargs) -> "LearnedPosition":
        """Make the layer for a part of a config; `kwargs` are the other arguments of the layer."""
        return cls(
            side.num_positions, side.added_dim, part.offset, name="position_embedding", **kwargs
        )

    def compute_mask(self, inputs, mask=None):
        return mask  # The embeddings' mask: a sum has a mask only if all its terms have one.

    def call(self, inputs, positions=None):
        return _for_each_row(super().call(self._checked(inputs, positions)), inputs)

    def quantized_call(self, inputs, positions=None):
        # Keras calls this instead of `call` once the layer is quantized.
        table = super().quantized_call(self._checked(inputs, positions))
        return _for_each_row(table, inputs)

    def _checked(self, inputs, positions):
        """Return the positions to look up. Raises ValueError if the sequence is too long."""
        length, longest = inputs.shape[1], self.input_dim - self.offset
        counted = length - self.uncounted if isinstance(length, int) else 0  # may be symbolic
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
class AxialPosition(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Trained vectors of the row and the column of a position, to add to the embeddings.

    The first half of the features is the row's vector, the second the column's.

    Args:
        rows: int, number of rows of the grid of positions.
        columns: int, number of columns: position `p` is in row `p // columns`.
        embeddings_initializer: initializer of the vectors.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`, for its shape and dtype, with an even width.
        positions: optional int `(batch or 1, length)`. Defaults to 0, 1, 2, ...

    Returns:
        Float `(batch, length, hidden_dim)`, to be added to `inputs`.

    Raises:
        ValueError: if the sequence has more positions than the grid, or the width is odd.

    Example:
    ```python
    from keras_transformer.layers.position import AxialPosition
    from keras import ops

    added = AxialPosition(rows=2, columns=3)(ops.zeros((1, 6, 8)))
    assert bool(ops.all(added[0, 0, :4] == added[0, 2, :4]))  # both in the first row
    ```

    Source: Kitaev et al. 2020, "Reformer", section 5, with the published model's axial positions.
    """

    option_rules: ClassVar = {
        name: functools.partial(check_int, at_least=1) for name in ("rows", "columns")
    }
    axes = _ADDED

    def __init__(self, rows: int, columns: int, embeddings_initializer="uniform", **kwargs):
        super().__init__(**kwargs)
        self.counts = (rows, columns)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.supports_masking = True

    @classmethod
    def from_part(cls, part: Axial, side: Side, **kwargs) -> "AxialPosition":
        """Make the layer for a part of a config; `kwargs` are the other arguments of the layer."""
        return cls(part.rows, part.columns, name="position_embedding", **kwargs)

    def build(self, inputs_shape, positions_shape=None):
        if inputs_shape[-1] % 2:
            raise ValueError(f"Axial positions need an even width, received {inputs_shape[-1]}.")
        self.rows, self.columns = (
            self.add_weight((count, inputs_shape[-1] // 2), self.embeddings_initializer, name=name)
            for count, name in zip(self.counts, ("rows", "columns"), strict=True)
        )

    def call(self, inputs, positions=None):
        rows, columns = self.counts
        length = inputs.shape[1]
        if positions is None and isinstance(length, int) and length > rows * columns:
            raise ValueError(
                f"The sequence has {length} tokens, but there are axial positions for "
                f"{rows * columns} only. Truncate the input, or enlarge the grid."
            )
        places = sequence_positions(inputs) if positions is None else positions
        places = ops.clip(places, 0, rows * columns - 1)
        halves = (look_up(self.rows, places // columns), look_up(self.columns, places % columns))
        return _for_each_row(ops.cast(ops.concatenate(halves, axis=-1), inputs.dtype), inputs)

    def compute_output_shape(self, inputs_shape, positions_shape=None):
        return inputs_shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class RotaryEmbedding(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Rotate pairs of features of queries and keys by an angle proportional to the position.

    Feature `i` is paired with `i + dim / 2`, or if interleaved `2 i` with `2 i + 1`. The product of
    a rotated query and a rotated key depends only on the distance of their positions.

    Args:
        base: float, base of the wavelengths.
        dim: int, number of features to rotate, from the first. None rotates all. If it is odd, one
            more feature is rotated, with the wavelengths of the odd number.
        scaling: str, slows the growth of the angles for sequences longer than in training. Pairs
            that turn often within `original_length` distinguish near positions and stay unchanged;
            for pairs that turn seldom the angle is divided by `factor`:
            `"linear"`: every angle is divided (Chen et al. 2023, section 3.2);
            `"llama3"`: angles below `min_turns` turns are divided, above `max_turns` they are not,
            and in between the turns interpolate (Grattafiori et al. 2024, section 3.4.3);
            `"yarn"`: between the two bounds the number of the pair interpolates, and scores are
            multiplied by `(0.1 ln(factor) + 1)^2` (Peng et al. 2023, sections 3.2 to 3.4);
            `"dynamic"`: in rows longer than `original_length` the base grows with the length;
            `"longrope"`: each pair's angle is divided by its own factor, and by another one in rows
            longer than `original_length`; scores are multiplied by
            `1 + ln(factor) / ln(original_length)` (Ding et al. 2024, section 3).
            With the last two, tokens in a cache keep the angles from when their row was shorter, as
            in Transformers, except for its Phi-3, which recomputes the cache when the row passes
            `original_length`.
        factor: float, ratio of the new to the original sequence length.
        min_turns, max_turns: float, numbers of turns within `original_length`.
        original_length: int, the longest sequence in training.
        truncate: bool, whether `"yarn"` rounds the bounds of its interpolation to whole pairs.
        interleaved: bool, whether neighbouring features form pairs (GPT-J).
        precision: str, `"float32"`, or `"float16"` to round the angles per position to it (ESM-2).
            Without scaling only.
        short_factors, long_factors: list of float, the divisors of each pair for `"longrope"`.
        attention_factor: float, factor of the rotated queries and keys for `"yarn"` and
            `"longrope"`. Defaults to the square root of the factor of the scores above.
        query_growth: float, `scaled_queries` multiplies the query of position `p` by
            `1 + query_growth * ln(1 + floor(p / original_length))`. None leaves queries unchanged.
        direction: str, `"counterclockwise"`, or `"clockwise"`, by negative angles (nanochat).
        pairs: int, number of pairs that are rotated, the first ones. None rotates all.
        position_axes: `config.RotaryAxes`, which pairs each axis of the positions rotates. None if
            positions have one number.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, heads, head_dim)`.
        positions: optional int `(batch, length)`, or with `position_axes` also `(batch, length,
            axes)`. Defaults to 0, 1, 2, ...
        lengths: optional int `(batch,)`, number of tokens of each row so far, for `"dynamic"` and
            `"longrope"`. Defaults to the row's greatest position plus 1.

    Returns:
        Float, the shape of `inputs`.

    Raises:
        ValueError: if `inputs` have another rank, `dim` exceeds the number of features or all
            features are rotated and their number is odd, an option is out of range, the scaling is
            unknown or lacks `original_length`, a factor is given without scaling, the factors are
            not one per pair or not for `"longrope"`, `"llama3"` has no turns between its bounds,
            or `attention_factor` or `query_growth` lack the scaling that they belong to.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import RotaryEmbedding

    x = np.ones((1, 4, 2, 8), "float32")
    y = RotaryEmbedding()(x)
    assert np.allclose(y[:, 0], x[:, 0])  # position 0 is not rotated
    ```

    Source: Su et al. 2021, "RoFormer", section 3.2.2 and equation 34; several axes: Wang et al.
    2024, "Qwen2-VL", section 2.1.
    """

    option_rules: ClassVar = {
        name: f"rotary_{name}"
        for name in (
            "base", "dim", "scaling", "factor", "min_turns", "max_turns", "original_length",
            "truncate", "interleaved", "precision", "short_factors", "long_factors",
            "attention_factor", "query_growth", "direction",
        )
    } | dict.fromkeys(("pairs", "position_axes"), lambda name, value: value)  # fmt: skip
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
        precision: str = "float32",
        short_factors: Sequence[float] | None = None,
        long_factors: Sequence[float] | None = None,
        attention_factor: float | None = None,
        query_growth: float | None = None,
        direction: str = "counterclockwise",
        pairs: int | None = None,
        position_axes: RotaryAxes | dict | None = None,
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
                f"factor={factor} of rotary positions does nothing without `scaling`. Give one of "
                f"{known}."
            )
        if scaling not in (None, "linear") and not original_length:
            raise ValueError(f"scaling={scaling!r} of rotary positions needs `original_length`.")
        if scaling == "llama3" and min_turns >= max_turns:
            raise ValueError(
                "scaling='llama3' of rotary positions needs `min_turns` below `max_turns`, "
                f"received {min_turns} and {max_turns}."
            )
        if precision not in PRECISIONS:
            raise ValueError(
                f"`precision` must be one of {', '.join(map(repr, PRECISIONS))}, received "
                f"{precision!r}."
            )
        if scaling is not None and precision != "float32":
            raise ValueError(
                f"precision={precision!r} and scaling={scaling!r} of rotary positions cannot be "
                "combined."
            )
        given = [x is not None for x in (short_factors, long_factors)]
        if given != [scaling == "longrope"] * 2:
            raise ValueError(
                "`short_factors` and `long_factors` of rotary positions belong to "
                f"scaling='longrope', which needs both. Received scaling={scaling!r}."
            )
        if attention_factor is not None and scaling not in ("yarn", "longrope"):
            raise ValueError(
                "`attention_factor` of rotary positions needs scaling='yarn' or 'longrope', "
                f"received scaling={scaling!r}."
            )
        if query_growth is not None and not original_length:
            raise ValueError("`query_growth` of rotary positions needs `original_length`.")
        self.base = base
        self.dim = dim
        self.scaling = scaling
        self.factor = factor
        self.min_turns = min_turns
        self.max_turns = max_turns
        self.original_length = original_length
        self.truncate = truncate
        self.interleaved = interleaved
        self.precision = precision
        self.short_factors = short_factors
        self.long_factors = long_factors
        self.attention_factor = attention_factor
        self.query_growth = query_growth
        self.direction = direction
        self.pairs = pairs
        self.position_axes = position_axes
        if position_axes is not None:
            self.position_axes = part_of("position_axes", position_axes, RotaryAxes)
        # Whether the angles of all tokens depend on the number of tokens.
        self.by_length = scaling in ("dynamic", "longrope")
        self.built = True  # There is nothing to build, but `quantize` requires built layers.

    @classmethod
    def from_part(cls, part: Rotary, **kwargs) -> "RotaryEmbedding":
        """Make the layer for a part of a config; `kwargs` are the other arguments of the layer."""
        names = ("base", "dim", "interleaved", "direction", "precision", "pairs", "position_axes")
        values = {name: getattr(part, name) for name in names}
        if part.scaling is not None:
            values |= part.scaling.values()
            values["scaling"] = values.pop("method")
            values["min_turns"] = values.pop("low_freq_factor")
            values["max_turns"] = values.pop("high_freq_factor")
        return cls(**values, **kwargs)

    def check_call(self, given):
        of_axes = self.position_axes is not None and len(known_shape(given.get("positions")) or ())
        super().check_call({**given, "positions": None} if of_axes == 3 else given)
        *_, width = known_shape(given.get("inputs")) or (None,)
        if width is not None:
            self.check_width(width)

    def check_width(self, width: int) -> None:
        """Raise ValueError if heads of this width cannot be rotated."""
        dim = width if self.dim is None else self.dim
        if 2 * -(-dim // 2) > width:
            raise ValueError(
                f"Rotary positions need an even number of features, at most the head size {width}, "
                f"received {dim}."
            )

    def call(self, inputs, positions=None, lengths=None):
        width = inputs.shape[-1]
        dim = width if self.dim is None else self.dim
        frequencies = self.frequencies(dim)
        positions = sequence_positions(inputs) if positions is None else positions
        if self.by_length:
            lengths = row_lengths(positions) if lengths is None else lengths
            frequencies = self._of_lengths(lengths, frequencies, dim)
        if self.position_axes is not None and len(positions.shape) == 3:
            axes = ops.convert_to_tensor(self.position_axes.of_pairs, "int32")
            angles = ops.cast(ops.take(positions, axes, axis=-1), "float32")
            angles = angles * ops.convert_to_tensor(frequencies, dtype="float32")
        else:
            angles = _angles(positions, frequencies)
        apart = self.position_axes is not None and self.position_axes.order == "apart"
        states, whole = inputs, ops.shape(inputs)
        if apart:  # the features of each axis are rotated like those of a head
            count = len(self.position_axes.pairs)
            rows, length = ops.shape(angles)[:2]
            angles = ops.reshape(angles, (rows, length, count, angles.shape[-1] // count))
            states = ops.reshape(inputs, (*whole[:3], count, width // count))
        angles = ops.expand_dims(angles, 2)
        sin, cos = ops.sin(angles), ops.cos(angles)
        sin = -sin if self.direction == "clockwise" else sin
        raised = self.raised
        if raised != 1:
            sin, cos = sin * raised, cos * raised
        rotated = rotate(states, sin, cos, self.interleaved)
        return ops.reshape(rotated, whole) if apart else rotated

    def scaled_queries(self, queries, positions=None):
        """Return rotated queries `(batch, length, heads, head_dim)` times their `query_growth`.

        `positions`, int `(batch or 1, length)`, default to 0, 1, 2, ...
        """
        positions = sequence_positions(queries) if positions is None else positions
        return _grown(queries, positions // self.original_length, self.query_growth)

    def frequencies(self, dim: int) -> np.ndarray:
        """Return the angle of each pair of `dim` features per position, `(pairs,)`.

        If the angles depend on the length of a row, these are the angles of short rows.
        """
        if self.position_axes is not None and self.position_axes.order in ("separate", "apart"):
            each = (_frequencies(2 * count, self.base) for count in self.position_axes.pairs)
            return np.concatenate(list(each))
        frequencies = _frequencies(dim, self.base)
        if self.position_axes is not None:
            frequencies = frequencies[self.position_axes.wavelengths]
        if self.pairs is not None:
            frequencies[self.pairs :] = 0.0
        if self.precision == "float16":
            return frequencies.astype("float32").astype("float16").astype("float64")
        if self.scaling is None or self.by_length:
            return frequencies
        kept = np.zeros(len(frequencies))  # share of a frequency that is not divided
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
        """Return the frequencies in rows of these lengths, float32 `(batch, 1, pairs)`."""
        longer = ops.cast(lengths, "float32")[:, None, None] / self.original_length
        if self.scaling == "dynamic":
            growth = self.factor * ops.maximum(longer, 1.0) - (self.factor - 1)
            exponents = -np.arange(0, dim, 2) / max(dim - 2, 1)
            # Tensors: with a NumPy array a traced product would be a constant on PyTorch.
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
        """Factor by which queries and keys are multiplied."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1 or self.scaling not in ("yarn", "longrope"):
            return 1.0
        if self.scaling == "yarn":
            return 0.1 * math.log(self.factor) + 1
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))

    def compute_output_shape(self, inputs_shape, positions_shape=None):
        return inputs_shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class GrowingQueries(SavesArguments, keras.layers.Layer):
    """Multiply queries by a factor that grows with their position; rotate nothing.

    Args:
        rate: float, growth of the factor.
        length: int, number of tokens from which on the factor is larger than 1.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, heads, head_dim)`, which are returned as they are.
        positions, lengths: as in `RotaryEmbedding`, not used.

    Example:
    ```python
    from keras_transformer.layers.position import GrowingQueries
    from keras import ops

    queries = GrowingQueries(rate=0.5, length=2).scaled_queries(ops.ones((1, 3, 1, 4)))
    assert float(queries[0, 0, 0, 0]) == 1 and float(queries[0, 1, 0, 0]) > 1
    ```

    Source: Nakanishi 2025, "Scalable-Softmax Is Superior for Attention", arXiv 2501.19399, as Llama
    4 approximates it.
    """

    option_rules: ClassVar = {
        "rate": "rotary_query_growth", "length": functools.partial(check_int, at_least=1),
    }  # fmt: skip
    by_length = False

    def __init__(self, rate: float, length: int, **kwargs):
        super().__init__(**kwargs)
        self.rate, self.length = rate, length
        self.built = True

    @classmethod
    def from_part(cls, part: QueryGrowth, **kwargs) -> "GrowingQueries":
        """Make the layer for a part of a config; `kwargs` are the other arguments of the layer."""
        return cls(part.rate, part.length, **kwargs)

    def check_width(self, width: int) -> None:
        """Accept heads of any width."""

    def call(self, inputs, positions=None, lengths=None):
        return inputs

    def scaled_queries(self, queries, positions=None):
        """Return queries `(batch, length, heads, head_dim)` times their factors.

        `positions`, int `(batch or 1, length)`, default to 0, 1, 2, ...
        """
        positions = sequence_positions(queries) if positions is None else positions
        return _grown(queries, (positions + 1) // self.length, self.rate)

    def compute_output_shape(self, inputs_shape, positions_shape=None):
        return inputs_shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class GridRotaryEmbedding(SavesArguments, keras.layers.Layer):
    """Rotate pairs of features by angles proportional to the row and the column of a place.

    Rows and columns are counted from -1 to 1 over their grid. Feature `i` is paired with `i +
    head_dim / 2`. The first half of the pairs is rotated by the row, the second half by the column.

    Args:
        base: float, base of the wavelengths: pair `i` of `n` for rows turns `base ** (-i / n)`
            times from the middle of the grid to its last edge.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, heads, head_dim)`, whose width is a multiple of 4.
        positions: int `(batch or 1, length, 4)`, the row and the column of each place, and the rows
            and columns of its grid. The middle of a grid is not rotated, so a token without a place
            is `[0, 0, 1, 1]`.
        lengths: as in `RotaryEmbedding`, not used.

    Returns:
        Float, the shape of `inputs`.

    Raises:
        ValueError: if there are no positions, or the width is not a multiple of 4.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers.position import GridRotaryEmbedding

    x, places = np.ones((1, 2, 1, 8), "float32"), np.array([[[0, 0, 1, 1], [2, 0, 3, 5]]])
    y = GridRotaryEmbedding()(x, positions=places)
    assert np.allclose(y[:, 0], x[:, 0]) and not np.allclose(y[:, 1], x[:, 1])
    ```

    Source: Siméoni et al. 2025, "DINOv3", section 3.2; rotations over an image: Heo et al. 2024,
    "Rotary Position Embedding for Vision Transformer".
    """

    option_rules: ClassVar = {"base": "rotary_base"}
    by_length = False

    def __init__(self, base: float = 100.0, **kwargs):
        super().__init__(**kwargs)
        self.base = base
        self.built = True

    @classmethod
    def from_part(cls, part: GridRotary, **kwargs) -> "GridRotaryEmbedding":
        """Make the layer for a part of a config; `kwargs` are the other arguments of the layer."""
        return cls(part.base, **kwargs)

    def check_width(self, width: int) -> None:
        """Raise ValueError if heads of this width cannot be rotated."""
        if width % 4:
            raise ValueError(
                f"A rotation over a grid needs heads of a multiple of 4 features, received {width}."
            )

    def call(self, inputs, positions=None, lengths=None):
        if positions is None:
            raise ValueError("A rotation over a grid needs `positions`, which a `PatchStem` makes.")
        self.check_width(inputs.shape[-1])
        turns = 2 * math.pi * _frequencies(inputs.shape[-1] // 2, self.base)
        # The center of each place, from -1 to 1 over the rows and over the columns.
        places, sizes = (ops.cast(positions[..., i : i + 2], "float32") for i in (0, 2))
        centers = 2 * ((places + 0.5) / sizes) - 1
        angles = ops.expand_dims(centers, -1) * ops.convert_to_tensor(turns, "float32")
        shape = ops.shape(angles)
        angles = ops.reshape(angles, (shape[0], shape[1], 1, 2 * len(turns)))
        return rotate(inputs, ops.sin(angles), ops.cos(angles), interleaved=False)

    def compute_output_shape(self, inputs_shape, positions_shape=None):
        return inputs_shape


def _grown(queries, lengths, rate: float):
    """Return queries times `1 + rate * ln(1 + lengths)`, int `(batch or 1, length)`."""
    factors = 1 + rate * ops.log(1 + ops.cast(lengths, "float32"))
    return queries * ops.cast(factors[:, :, None, None], queries.dtype)


def _frequencies(dim: int, base: float) -> np.ndarray:
    """Return the angle of each pair of features per position, `(dim / 2,)`."""
    return np.power(base, -np.arange(0, dim, 2, dtype="float64") / dim)


def _angles(positions, frequencies: np.ndarray):
    """Return position times frequency in float32, `(batch, length, dim / 2)`."""
    frequencies = ops.convert_to_tensor(frequencies, dtype="float32")
    return ops.expand_dims(ops.cast(positions, "float32"), -1) * frequencies
