"""The values of a config that say where a token stands, and which of them go together."""

import dataclasses
from typing import TYPE_CHECKING

from keras_transformer.checking import is_number, shorten
from keras_transformer.config_checks import option

if TYPE_CHECKING:
    from keras_transformer.config import TransformerConfig

POSITIONS = ("none", "sinusoidal", "learned", "rotary", "relative", "alibi")
ROTARY_SCALINGS = ("linear", "llama3", "yarn", "dynamic", "longrope")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PositionOptions:
    """Further values of a `TransformerConfig`, as flat as its own."""

    position: str = option(
        '`"none"`, `"sinusoidal"`, `"learned"`, `"rotary"`, `"relative"` or `"alibi"`. Layers '
        'of one stack may differ in `"rotary"` and `"none"` alone.',
        "sinusoidal",
        choices=POSITIONS,
    )
    position_offset: int = option(
        "learned position `p` is row `p + position_offset` of the table, and a sinusoidal one the "
        "wave at that place.",
        0,
        of="side",
        least=0,
    )
    position_padding_id: int | None = option(
        "tokens of this id are not counted in learned positions, and stand at row "
        "`position_offset - 1` (RoBERTa). None counts every token.",
        None,
        of="side",
        least=0,
    )
    sinusoidal_interleaved: bool = option(
        "sines and cosines in turn; False for all sines first (Marian).", True, of="side"
    )
    sinusoidal_inclusive: bool = option(
        "the last pair of sine and cosine has the longest wavelength itself, as in Tensor2Tensor "
        "(TrOCR); False for one step short of it.",
        False,
        of="side",
    )
    rotary_base: float = option("wavelength base of the rotary embedding.", 10000.0, positive=True)
    rotary_dim: int | None = option(
        "number of features of a head that are rotated. None for all. An odd number is rounded up.",
        None,
        least=1,
    )
    rotary_interleaved: bool = option(
        "neighbouring features are pairs (GPT-J); False for those of the two halves.", False
    )
    rotary_scaling: str | None = option(
        'stretches the wavelengths for sequences longer than in training: `"linear"`, '
        '`"llama3"`, `"yarn"`, `"dynamic"` or `"longrope"`, see `layers.RotaryEmbedding`.',
        None,
        choices=(None, *ROTARY_SCALINGS),
    )
    rotary_factor: float = option("of `rotary_scaling`.", 1.0, positive=True)
    rotary_min_turns: float = option("of `rotary_scaling`.", 1.0, positive=True)
    rotary_max_turns: float = option("of `rotary_scaling`.", 32.0, positive=True)
    rotary_original_length: int | None = option(
        "of `rotary_scaling`. Defaults to `max_sequence_length`.", None, least=1
    )
    rotary_truncate: bool = option(
        '`"yarn"`: the pairs between which wavelengths are mixed are whole numbers.', True
    )
    rotary_short_factors: tuple | list | None = option(
        'divisors of the angle of each pair, of `rotary_scaling="longrope"`.', None
    )
    rotary_long_factors: tuple | list | None = option("likewise, in longer rows.", None)
    alibi_scale: float = option(
        'factor of the bias of `position="alibi"`.', 1.0, of="side", positive=True
    )
    alibi_rounded: bool = option(
        '`position="alibi"` in the numbers of bfloat16, by the place of a key (Falcon-RW).',
        False,
        of="side",
    )
    relative_bias: bool | None = option(
        "T5's bias on the scores, also beside other positions (MPNet). Defaults to whether "
        '`position` is `"relative"`.',
        None,
        of="side",
    )
    relative_num_buckets: int = option("buckets of relative distances.", 32, of="side", least=1)
    relative_max_distance: int = option("distance at which they end.", 128, of="side", least=1)
    grid_bias: str | None = option(
        "a trained bias on the scores for each distance on the grid of a stem of patches: of each "
        'layer its `"own"`, or one that is `"shared"` by all (BEiT).',
        None,
        of="side",
        choices=(None, "own", "shared"),
    )
    disentangled: str | None = option(
        "contents scored with relative positions (DeBERTa), see `layers.MultiHeadAttention`.",
        None,
        of="model",
        choices=(None, "shared", "own"),
    )


def check_positions(config: "TransformerConfig") -> None:
    """ValueError for values of positions that contradict each other."""
    counted = config.kind == "encoder" and config.position == "learned" and config.position_offset
    if config.position_padding_id is not None and not counted:
        raise ValueError(
            "`position_padding_id` needs kind='encoder', position='learned' and a "
            "`position_offset` of at least 1."
        )
    rotated = config.head_dim if config.rotary_dim is None else config.rotary_dim
    if config.position == "rotary" and rotated + rotated % 2 > config.head_dim:
        raise ValueError(
            "position='rotary' needs an even `head_dim`, or a smaller `rotary_dim`, received "
            f"rotary_dim={config.rotary_dim} and head_dim={config.head_dim}."
        )
    long = config.rotary_scaling == "longrope"
    for name in ("rotary_short_factors", "rotary_long_factors"):
        factors, pairs = getattr(config, name), (rotated + 1) // 2 if long else 0
        numbers = all(is_number(factor) and 0 < factor < 1e30 for factor in factors or ())
        if len(factors or ()) != pairs or not numbers:
            raise ValueError(
                f"`{name}` must be {pairs} positive numbers, one for each pair of features, with "
                f"rotary_scaling={config.rotary_scaling!r}. Received {shorten(factors)}."
            )
    if long and config.rotary_original_length < 2:
        raise ValueError("rotary_scaling='longrope' needs a `rotary_original_length` above 1.")
    if config.rotary_min_turns >= config.rotary_max_turns:
        raise ValueError(
            "`rotary_min_turns` must be below `rotary_max_turns`, received "
            f"{config.rotary_min_turns} and {config.rotary_max_turns}."
        )
    if config.position == "sinusoidal" and config.embedding_dim % 2:
        raise ValueError(
            f"position='sinusoidal' needs an even `hidden_dim`, received {config.embedding_dim}."
        )
    if config.sinusoidal_inclusive and config.embedding_dim < 4:
        raise ValueError("`sinusoidal_inclusive` needs a `hidden_dim` of at least 4.")
    if config.position != "alibi" and (config.alibi_scale, config.alibi_rounded) != (1, False):
        raise ValueError(
            "`alibi_scale` and `alibi_rounded` need position='alibi', received "
            f"{config.position!r}."
        )
    small = config.relative_num_buckets // 2  # of one direction
    if config.position == ("alibi" if config.relative_bias else "relative"):
        raise ValueError(
            f"relative_bias={config.relative_bias} and position={config.position!r} contradict "
            "each other."
        )
    if config.relative_bias and not 2 <= small < config.relative_max_distance:
        raise ValueError(
            "position='relative' needs 4 or more `relative_num_buckets` and a "
            "`relative_max_distance` above half their number, received "
            f"{config.relative_num_buckets} and {config.relative_max_distance}."
        )
    of_patches = config.stem is not None and config.stem.kind == "patches"
    if config.grid_bias and not (of_patches and config.stem.num_tokens == 1):
        raise ValueError("`grid_bias` needs a stem of patches behind one token, a class token.")
    if config.grid_bias and (config.relative_bias or config.position == "alibi"):
        raise ValueError("`grid_bias` needs scores without another bias of positions.")
    if config.disentangled and config.score != "scaled_dot":
        raise ValueError(f"`disentangled` needs score='scaled_dot', received {config.score!r}.")
    if config.disentangled and not 2 <= small <= config.relative_max_distance:
        raise ValueError(
            "`disentangled` needs 4 or more `relative_num_buckets` and a `relative_max_distance` "
            f"of at least half their number, received {config.relative_num_buckets} and "
            f"{config.relative_max_distance}."
        )
