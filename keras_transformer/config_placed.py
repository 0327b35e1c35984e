"""The values of a config that say what a decoder has of the states of an encoder."""

import dataclasses
from typing import TYPE_CHECKING

from keras_transformer.config_checks import option
from keras_transformer.config_feed_forward import ACTIVATIONS
from keras_transformer.weight import dense_of, norm_of

if TYPE_CHECKING:
    from keras_transformer.config import TransformerConfig

PROJECTORS = ("none", "linear", "normalized", "mlp")
VISIBILITIES = ("causal", "states", "prompt")

# `layers.Projector`, from states of an encoder to those that a decoder has among its own.
_LINEAR, _NORMALIZED, _MLP = ({"projector": name} for name in ("linear", "normalized", "mlp"))
PROJECTOR = (
    *dense_of("projector/output", "source_dim", "target_dim", "projector_bias", **_LINEAR),
    *dense_of("projector/output", "source_dim", "target_dim", "projector_bias", **_NORMALIZED),
    *dense_of("projector/mlp/intermediate", "source_dim", "target_dim", "projector_bias", **_MLP),
    *dense_of("projector/mlp/output", "target_dim", "target_dim", "projector_bias", **_MLP),
)
PROJECTOR_NORM = norm_of("projector/norm", "target_dim")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacedOptions:
    """Further values of a `TransformerConfig`, as flat as its own."""

    placeholder_id: int | None = option(
        '`"seq2seq"` only. The states of the encoder stand in the place of the tokens of this id, '
        "and the decoder has no cross-attention (LLaVA). Positions that are added to states, such "
        "as learned ones, count the other tokens alone (GIT).",
        None,
        of="model",
        least=0,
    )
    placeholder_visibility: str = option(
        'with `placeholder_id`. What a state that is placed sees: what is before it, `"causal"`; '
        'the other placed ones too, `"states"` (GIT); or it and the whole prompt see each other, '
        '`"prompt"` (PaliGemma).',
        "causal",
        of="model",
        choices=VISIBILITIES,
    )
    place_class_token: bool = option(
        "with `placeholder_id`. The states of no patch, such as that of the class token, are among "
        "those placed.",
        True,
        of="model",
    )
    projector: str = option(
        '`"seq2seq"` only. What makes the states that the decoder is given of those of the '
        'encoder, as wide as its own: `"none"`, one `"linear"` layer (PaliGemma, and where the '
        'decoder attends to them), a `"normalized"` one (GIT), or two, `"mlp"` (LLaVA).',
        "none",
        of="model",
        choices=PROJECTORS,
    )
    projector_activation: str = option(
        "between the two, of `config.ACTIVATIONS`.", "gelu", of="model", choices=ACTIVATIONS
    )
    projector_bias: bool = option("biases of the projector.", True, of="model")

    @property
    def num_placeholders(self) -> int:
        """The tokens of a row that the states of one input of the encoder stand in for."""
        if self.placeholder_id is None:
            return 0
        encoder = self.side("encoder")
        return encoder.num_positions - (0 if self.place_class_token else _tokens_of(encoder))


PLACED = tuple(field.name for field in dataclasses.fields(PlacedOptions))
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(PlacedOptions)}


def _tokens_of(encoder: "TransformerConfig") -> int:
    """The states of the encoder that are of no patch."""
    return getattr(encoder.stem, "num_tokens", 0)


def check_placed(config: "TransformerConfig") -> None:
    """ValueError for values of states that are placed which do not go together."""
    given = [name for name in PLACED if getattr(config, name) != _DEFAULTS[name]]
    if given and config.kind != "seq2seq":
        raise ValueError(f"`{given[0]}` needs kind='seq2seq', received kind={config.kind!r}.")
    of_projector = [name for name in given if name.startswith("projector_")]
    if of_projector and config.projector == "none":
        raise ValueError(f"`{of_projector[0]}` needs a `projector`.")
    if config.placeholder_id is None:
        given = [name for name in given if name.startswith("place")]
        if given:
            raise ValueError(f"`{given[0]}` needs a `placeholder_id`.")
        return
    encoder, decoder = config.sides[-2:]
    if encoder.stem is None or encoder.stem.num_states is None:
        raise ValueError(
            "`placeholder_id` needs an encoder whose inputs have so many states each: give it a "
            "stem, `encoder={'vocabulary_size': 0, 'stem': ...}`."
        )
    if config.placeholder_id > decoder.vocabulary_size:
        raise ValueError(
            f"`placeholder_id` must be a token's or the one behind them, at most "
            f"{decoder.vocabulary_size}, received {config.placeholder_id}."
        )
    if not config.place_class_token and not _tokens_of(encoder):
        raise ValueError("`place_class_token`=False needs a stem that has a `class_token`.")
    widths = encoder.hidden_dim, decoder.hidden_dim
    if config.projector == "none" and widths[0] != widths[1]:
        raise ValueError(
            f"States of the encoder have {widths[0]} numbers and those of the decoder {widths[1]}: "
            "give a `projector`."
        )
