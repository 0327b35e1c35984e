"""Positions of tokens: added to the states of a side, or rotated into queries and keys."""

from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import Weight, weight_of
from keras_transformer.support.checking import is_number, shorten

__all__ = [
    "Axial", "GridRotary", "Learned", "Position", "QueryGrowth", "Rotary", "RotaryAxes",
    "RotaryScaling", "Rotation", "Sinusoidal",
]  # fmt: skip

PRECISIONS = ("float32", "float16")
ROTARY_SCALINGS = ("linear", "llama3", "yarn", "dynamic", "longrope")
DIRECTIONS = ("counterclockwise", "clockwise")
_OF_AXES = ("linear", "llama3", "yarn")  # scalings that change each wavelength by itself
AXIS_ORDERS = ("consecutive", "alternating", "grouped", "separate", "apart")


@part
class Position(Part):
    """Base class of positions that are added to the states before the first block.

    The layer has a class method `from_part(part, side, **options)`, and is called with states and
    positions, see `layers.LearnedPosition`.
    """

    def check_side(self, width: int, kind: str) -> None:
        """Raise ValueError if states of this width or sides of this kind cannot be positioned."""

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Weights of the layer, with axes named after the side's sizes or `sizes`."""
        return ()

    def sizes(self, num_positions: int, width: int) -> dict[str, int]:
        """Return the sizes of the weight axes that the side does not define, by name."""
        return {}


@part
class Learned(Position, kind="learned"):
    """A trained vector for each position (Gehring et al. 2017, section 3.1)."""

    layer = "keras_transformer.layers.position:LearnedPosition"

    offset: int = option(
        "learned position `p` is row `p + offset` of the table, and a sinusoidal position is "
        "shifted in the same way.",
        0,
        of="side",
        least=0,
    )
    padding_id: int | None = option(
        "tokens with this id are not counted in learned positions, and use row `offset - 1` "
        "(RoBERTa). None counts every token.",
        None,
        of="side",
        least=0,
    )

    def check_side(self, width, kind):
        if self.padding_id is not None and not (kind == "encoder" and self.offset):
            raise ValueError(
                "`padding_id` of learned positions needs an encoder and a `position_offset` of at "
                "least 1."
            )

    @property
    def weights(self):
        return weight_of("position_embedding/embeddings", "positions", "embedded")

    def sizes(self, num_positions, width):
        return {"positions": num_positions + self.offset}


@part
class Sinusoidal(Position, kind="sinusoidal"):
    """Sines and cosines of geometrically growing wavelengths (Vaswani et al. 2017, section 3.5)."""

    layer = "keras_transformer.layers.position:SinusoidalPosition"

    offset: int = option("added to every position.", 0, of="side", least=0)
    interleaved: bool = option(
        "sines and cosines alternate; False puts all sines first (Marian).", True, of="side"
    )
    inclusive: bool = option(
        "the last pair of sine and cosine has the longest wavelength itself, as in "
        "Tensor2Tensor (TrOCR); False stops one step before it.",
        False,
        of="side",
    )

    def check_side(self, width, kind):
        if width % 2:
            raise ValueError(f"position='sinusoidal' needs an even `hidden_dim`, received {width}.")
        if self.inclusive and width < 4:
            raise ValueError("`sinusoidal_inclusive` needs a `hidden_dim` of at least 4.")


@part
class Axial(Position, kind="axial"):
    """A trained vector for each row and each column of a grid of positions (Reformer).

    Position `p` is in row `p // columns` and column `p % columns`: few vectors for long sequences.
    """

    layer = "keras_transformer.layers.position:AxialPosition"

    rows: int = option("number of rows of the grid.", of="side", least=1)
    columns: int = option("number of columns of the grid.", of="side", least=1)

    def check_side(self, width, kind):
        if width % 2:
            raise ValueError(f"Axial positions need an even `hidden_dim`, received {width}.")

    @property
    def weights(self):
        return (
            *weight_of("position_embedding/rows", "position_rows", "half_embedded"),
            *weight_of("position_embedding/columns", "position_columns", "half_embedded"),
        )

    def sizes(self, num_positions, width):
        return {
            "position_rows": self.rows,
            "position_columns": self.columns,
            "half_embedded": width // 2,
        }


@part
class RotaryScaling(Part):
    """Stretching of rotary wavelengths for sequences longer than in training."""

    method: str = option(
        'method to stretch the wavelengths for sequences longer than in training: `"linear"`, '
        '`"llama3"`, `"yarn"`, `"dynamic"` or `"longrope"`, see `layers.RotaryEmbedding`.',
        choices=ROTARY_SCALINGS,
    )
    factor: float = option("factor by which the wavelengths are stretched.", 1.0, positive=True)
    low_freq_factor: float = option(
        '`"llama3"` and `"yarn"` (`beta_slow`): wavelengths with at most this many turns in '
        "`original_length` are stretched by the full factor.",
        1.0,
        positive=True,
    )
    high_freq_factor: float = option(
        '`"llama3"` and `"yarn"` (`beta_fast`): wavelengths with at least this many turns in '
        "`original_length` are not stretched.",
        32.0,
        positive=True,
    )
    original_length: int | None = option(
        "sequence length in training before the scaling. Defaults to `max_sequence_length`.",
        None,
        least=1,
    )
    truncate: bool = option(
        '`"yarn"`: the range of pairs in which wavelengths are interpolated is rounded to '
        "whole numbers.",
        True,
    )
    short_factors: tuple | list | None = option(
        '`"longrope"`: divisors of the angle of each pair, up to `original_length`.', None
    )
    long_factors: tuple | list | None = option(
        '`"longrope"`: divisors of the angle of each pair, in longer rows.', None
    )
    attention_factor: float | None = option(
        '`"yarn"` and `"longrope"`: factor of the rotated queries and keys. Defaults to '
        '`0.1 ln(factor) + 1`, or with `"longrope"` to '
        "`sqrt(1 + ln(factor) / ln(original_length))`.",
        None,
        positive=True,
    )
    query_growth: float | None = option(
        "the query of position `p` is multiplied by "
        "`1 + query_growth * ln(1 + floor(p / original_length))`, so that attention stays sharp in "
        "long sequences (Llama 4, Ministral 3). None disables it.",
        None,
        positive=True,
    )

    def check(self):
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                "`low_freq_factor` (`rotary_min_turns`) must be below `high_freq_factor` "
                f"(`rotary_max_turns`), received {self.low_freq_factor} and "
                f"{self.high_freq_factor}."
            )
        if self.method == "longrope" and self.original_length == 1:
            raise ValueError("rotary_scaling='longrope' needs a `rotary_original_length` above 1.")
        if self.attention_factor is not None and self.method not in ("yarn", "longrope"):
            raise ValueError(
                "`attention_factor` (`rotary_attention_factor`) needs the method 'yarn' or "
                f"'longrope', received {self.method!r}."
            )
        if self.query_growth is not None and self.method == "linear" and not self.original_length:
            raise ValueError(
                "`query_growth` (`rotary_query_growth`) with the method 'linear' needs an "
                "`original_length` (`rotary_original_length`)."
            )


@part
class RotaryAxes(Part):
    """Positions with several axes, such as row and column: the pairs of features of each axis.

    A position with one number has the same number on each axis, and with `"consecutive"` and
    `"alternating"` is rotated as without axes.
    """

    pairs: tuple | list = option("number of pairs of features that each axis rotates.")
    order: str = option(
        "which pairs: the axes divide the wavelengths among them, from the shortest to the "
        'longest, `"consecutive"` (Qwen2-VL) or in turns, `"alternating"`, the first axis also '
        "the pairs that no other takes (Qwen3-VL), or in turns with the pairs of an axis side by "
        'side, `"grouped"` (Pixtral); or each axis has all wavelengths for itself, `"separate"` '
        '(other image towers), and with `"apart"` also features side by side, in whose halves its '
        "pairs are, the last axis first (Gemma 4).",
        "consecutive",
        choices=AXIS_ORDERS,
    )

    def check(self):
        pairs = self.pairs
        if not 2 <= len(pairs) <= 8 or not all(type(n) is int and 1 <= n <= 2**15 for n in pairs):
            raise ValueError(
                "`pairs` of `RotaryAxes` must be 2 to 8 integers of at least 1, the number of "
                f"pairs of each axis, received {shorten(pairs)}."
            )
        object.__setattr__(self, "pairs", tuple(pairs))
        last = max(count * len(pairs) - (len(pairs) - 1 - i) for i, count in enumerate(pairs) if i)
        if self.order in ("alternating", "grouped") and last > sum(pairs):
            raise ValueError(
                f"order={self.order!r} needs an axis first that has at least as many pairs as each "
                f"other, received {shorten(pairs)}."
            )
        if self.order == "apart" and len(set(pairs)) > 1:
            raise ValueError(
                f"order='apart' needs axes with as many pairs each, received {shorten(pairs)}."
            )

    @property
    def of_pairs(self) -> list[int]:
        """The axis of each pair of features."""
        if self.order == "alternating":
            return self._in_turns
        found = [axis for axis, number in enumerate(self.pairs) for _ in range(number)]
        return found[::-1] if self.order == "apart" else found

    @property
    def wavelengths(self) -> list[int]:
        """The number of the wavelength of each pair, counted from the shortest of all."""
        numbers = range(sum(self.pairs))
        if self.order == "grouped":
            return sorted(numbers, key=self._in_turns.__getitem__)
        return list(numbers)

    @property
    def _in_turns(self) -> list[int]:
        """The axis of each wavelength if the axes take them in turns."""
        count, found = len(self.pairs), [0] * sum(self.pairs)
        for axis, number in enumerate(self.pairs[1:], 1):
            found[axis : axis + number * count : count] = [axis] * number
        return found


@part
class Rotation(Part):
    """Base class of positions that are rotated into queries and keys.

    The layer has a class method `from_part(part, **options)` and an attribute `by_length`, and is
    called with states of heads, positions and lengths, see `layers.RotaryEmbedding`. If the part
    `scales_queries`, it also has a method `scaled_queries(queries, positions)`.
    """

    @property
    def scales_queries(self) -> bool:
        """Whether queries have a factor that depends on their position."""
        return False

    def for_side(self, head_dim: int, max_length: int) -> "Rotation":
        """Return the rotation for heads of this width, with the values that `max_length` gives.

        Raises ValueError if heads of this width cannot be rotated.
        """
        return self


@part
class QueryGrowth(Rotation, kind="query_growth"):
    """Queries multiplied by a factor that grows with the position, without a rotation (Llama 4).

    The query of the `n`-th token is multiplied by `1 + rate * ln(1 + floor(n / length))`, so that
    attention stays sharp in long sequences (Nakanishi 2025).
    """

    layer = "keras_transformer.layers.position:GrowingQueries"

    rate: float = option("growth of the factor with the logarithm of the position.", positive=True)
    length: int = option("number of tokens from which on the factor is larger than 1.", least=1)

    @property
    def scales_queries(self):
        return True


@part
class Rotary(Rotation, kind="rotary"):
    """Rotation of queries and keys by angles proportional to their positions (Su et al. 2021)."""

    layer = "keras_transformer.layers.position:RotaryEmbedding"

    base: float = option("base of the wavelengths of rotary embeddings.", 10000.0, positive=True)
    dim: int | None = option(
        "number of features of a head that are rotated; odd numbers are rounded up. Defaults "
        "to all.",
        None,
        least=1,
    )
    pairs: int | None = option(
        "number of pairs that are rotated, those with the shortest wavelengths; the others keep "
        "their values (Gemma 4). Defaults to all.",
        None,
        least=1,
    )
    interleaved: bool = option(
        "neighbouring features form a pair (GPT-J); False pairs the two halves.", False
    )
    direction: str = option(
        'direction of the rotation: `"counterclockwise"`, by positive angles, or `"clockwise"` '
        "(nanochat).",
        "counterclockwise",
        choices=DIRECTIONS,
    )
    precision: str = option(
        'precision of the angles per position: `"float16"` rounds them, as in training in this '
        "precision (ESM-2).",
        "float32",
        choices=PRECISIONS,
    )
    scaling: RotaryScaling | None = option(
        "how the wavelengths are stretched for longer sequences.", None
    )
    position_axes: RotaryAxes | None = option(
        "positions with several axes, each of which rotates some of the pairs (Qwen2-VL). None for "
        "positions with one number.",
        None,
    )

    def check(self):
        method = None if self.scaling is None else self.scaling.method
        if self.pairs is not None and (
            self.precision != "float32" or method not in (None, "linear")
        ):
            raise ValueError(
                "`pairs` of a rotation needs precision='float32', and no scaling or 'linear', "
                f"received {self.precision!r} and {method!r}."
            )
        if self.scaling is not None and self.precision != "float32":
            raise ValueError(
                f"rotary_precision={self.precision!r} and rotary_scaling={self.scaling.method!r} "
                "cannot be combined."
            )

        axes = self.position_axes
        apart = axes is not None and axes.order in ("grouped", "separate", "apart")
        whole = self.pairs is None and self.precision == "float32" and not self.scales_queries
        if axes is not None and (method not in (None, *(() if apart else _OF_AXES)) or not whole):
            raise ValueError(
                "`position_axes` of a rotation cannot be combined with `pairs`, a `precision` or "
                f"this scaling, received {self.pairs}, {self.precision!r} and {method!r}."
            )
        if getattr(axes, "order", None) == "apart" and (self.dim is not None or self.interleaved):
            raise ValueError(
                "order='apart' of `position_axes` rotates whole heads, whose halves are paired: "
                f"leave out `dim` and `interleaved`, received {self.dim} and {self.interleaved}."
            )

    @property
    def scales_queries(self):
        return self.scaling is not None and self.scaling.query_growth is not None

    def for_side(self, head_dim, max_length):
        scaling, turned = self.scaling, self
        if scaling is not None and scaling.method != "linear" and not scaling.original_length:
            turned = self.replace(scaling=scaling.replace(original_length=max_length))
        turned.check_head(head_dim)
        return turned

    def check_head(self, head_dim: int) -> None:
        """Raise ValueError if heads of this width cannot be rotated."""
        rotated = head_dim if self.dim is None else self.dim
        if rotated + rotated % 2 > head_dim:
            raise ValueError(
                "position='rotary' needs an even `head_dim`, or a smaller `rotary_dim`, received "
                f"rotary_dim={self.dim} and head_dim={head_dim}."
            )
        if self.pairs is not None and self.pairs > (rotated + 1) // 2:
            raise ValueError(
                f"`pairs` of a rotation must be at most {(rotated + 1) // 2}, those of {rotated} "
                f"features, received {self.pairs}."
            )
        axes = self.position_axes
        if axes is not None and 2 * sum(axes.pairs) != rotated:
            raise ValueError(
                f"The axes of `position_axes` must have {rotated // 2} pairs together, those of "
                f"{rotated} features, received {shorten(axes.pairs)}."
            )
        scaling = self.scaling
        long = scaling is not None and scaling.method == "longrope"
        for name in ("short_factors", "long_factors"):
            factors = getattr(scaling, name, None)
            pairs = (rotated + 1) // 2 if long else 0
            numbers = all(is_number(factor) and 0 < factor < 1e30 for factor in factors or ())
            if len(factors or ()) != pairs or not numbers:
                method = None if scaling is None else scaling.method
                raise ValueError(
                    f"`rotary_{name}` must be {pairs} positive numbers, one for each pair of "
                    f"features, with rotary_scaling={method!r}. Received {shorten(factors)}."
                )


@part
class GridRotary(Rotation, kind="grid_rotary"):
    """Rotation by the row of a patch in half of the pairs, by its column in the others (DINOv3).

    Rows and columns are counted from -1 to 1 over an image of any size. Tokens of the stem are not
    rotated.
    """

    layer = "keras_transformer.layers.position:GridRotaryEmbedding"

    base: float = option("base of the wavelengths of rotary embeddings.", 100.0, positive=True)

    def for_side(self, head_dim, max_length):
        if head_dim % 4:
            raise ValueError(
                "A rotation over a grid needs a `head_dim` that is a multiple of 4, received "
                f"{head_dim}."
            )
        return self
