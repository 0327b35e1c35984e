"""Positions of tokens: added to the states of a side, or rotated into queries and keys."""

import math

from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import Weight, weight_of
from keras_transformer.support.checking import is_number, shorten

__all__ = ["Axial", "Learned", "Position", "Rotary", "RotaryScaling", "Rotation", "Sinusoidal"]

ROTARY_SCALINGS = ("linear", "llama3", "yarn", "dynamic", "longrope")


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
    mscale: float | None = option(
        '`"yarn"`: together with `mscale_all_dim`, rotated queries and keys are multiplied by '
        "`m(mscale) / m(mscale_all_dim)` with `m(x) = 0.1 x ln(factor) + 1`, in place of `m(1)`.",
        None,
        positive=True,
    )
    mscale_all_dim: float | None = option(
        '`"yarn"`: see `mscale`. The scores of a `LatentAttention` are also multiplied by '
        "`m(mscale_all_dim) ** 2` (DeepSeek-V2).",
        None,
        positive=True,
    )
    short_factors: tuple | list | None = option(
        '`"longrope"`: divisors of the angle of each pair, up to `original_length`.', None
    )
    long_factors: tuple | list | None = option(
        '`"longrope"`: divisors of the angle of each pair, in longer rows.', None
    )

    def check(self):
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                "`low_freq_factor` (`rotary_min_turns`) must be below `high_freq_factor` "
                f"(`rotary_max_turns`), received {self.low_freq_factor} and "
                f"{self.high_freq_factor}."
            )
        for name in ("mscale", "mscale_all_dim"):
            if getattr(self, name) is not None and self.method != "yarn":
                raise ValueError(f"`{name}` needs the method 'yarn', received {self.method!r}.")
        if self.mscale is not None and self.mscale_all_dim is None:
            raise ValueError("`mscale` has an effect only together with `mscale_all_dim`.")
        if self.method == "longrope" and self.original_length == 1:
            raise ValueError("rotary_scaling='longrope' needs a `rotary_original_length` above 1.")

    @property
    def score_factor(self) -> float:
        """Factor of all scores of a `LatentAttention`."""
        return yarn_factor(self.factor, self.mscale_all_dim or 0.0) ** 2


def yarn_factor(factor: float, mscale: float = 1.0) -> float:
    """Return the factor of queries and keys of a sequence that is `factor` times as long."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


@part
class Rotation(Part):
    """Base class of positions that are rotated into queries and keys.

    The layer has a class method `from_part(part, **options)` and an attribute `by_length`, and is
    called with states of heads, positions and lengths, see `layers.RotaryEmbedding`.
    """

    def for_side(self, head_dim: int, max_length: int) -> "Rotation":
        """Return the rotation for heads of this width, with the values that `max_length` gives.

        Raises ValueError if heads of this width cannot be rotated.
        """
        return self


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
    interleaved: bool = option(
        "neighbouring features form a pair (GPT-J); False pairs the two halves.", False
    )
    scaling: RotaryScaling | None = option(
        "how the wavelengths are stretched for longer sequences.", None
    )

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
