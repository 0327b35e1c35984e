"""Whisper in KerasHub's form: a backbone alone, for KerasHub has no task of it.

Facts are from KerasHub 0.32, `models/whisper/*.py`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.speech.whisper import WHISPER as PUBLISHED
from keras_transformer.checkpoints.keras_hub.family import (
    DROPOUT,
    FIELDS,
    Line,
    attention,
    feed_forward,
    layers,
    make_family,
)
from keras_transformer.config import SIDES, TransformerConfig

(_SIDES,) = PUBLISHED.conversions
_FRAMES = 2  # of a state
# Values that both sides share, with the ends of their names in published configs.
_OF_SIDE = {"num_heads": "attention_heads", "intermediate_dim": "ffn_dim"}
_TABLE = {
    "token_embedding": "token_and_position_embedding/token_embedding",
    "decoder/position_embedding": "token_and_position_embedding/position_embedding",
    "encoder/position_embedding": "position_embedding",
    "encoder/input_convolution_0": "conv1d",
    "encoder/input_convolution_1": "conv1d_1",
    "encoder/final_norm": "layer_normalization",
    "decoder/final_norm": "layer_normalization_1",
}


def _read(values: Values) -> dict[str, Any]:
    theirs = {
        f"{side}_{its}": number(values, name, None)
        for side in SIDES
        for name, its in _OF_SIDE.items()
    }
    theirs["num_mel_bins"] = number(values, "num_mels", 80)
    longest = number(values, "max_encoder_sequence_length", 3000)
    return _SIDES.read({**theirs, "max_source_positions": longest // _FRAMES})


def _write(config: TransformerConfig) -> dict[str, Any]:
    theirs = _SIDES.write(config)
    return {
        **{name: theirs[f"encoder_{its}"] for name, its in _OF_SIDE.items()},
        "num_mels": theirs["num_mel_bins"],
        "max_encoder_sequence_length": theirs["max_source_positions"] * _FRAMES,
    }


def _blocks(side: str, *kinds: str) -> tuple[Line, ...]:
    table = feed_forward("intermediate", "output")
    for kind in kinds:
        table |= attention(kind)
    return layers(table, f"{side}/layer_{{i}}/", f"layers/whisper_{side}{{i}}/")


WHISPER = make_family(
    "whisper",
    "Whisper",
    {
        **{name: FIELDS[name] for name in ("vocabulary_size", "num_layers", "hidden_dim")},
        "dropout": ConfigField("dropout", 0.0),
        "max_decoder_sequence_length": ConfigField("max_sequence_length", 448),
    },
    {
        **PUBLISHED.constants,
        "activation": "gelu",
        "tie_embeddings": True,
        "initializer_range": 0.02,
    },
    (
        *layers(_TABLE, theirs="layers/"),
        *_blocks("encoder", "self"),
        *_blocks("decoder", "self", "cross"),
    ),
    {},
    conversions=(DROPOUT, Conversion(_read, _write)),
    more=(*_OF_SIDE, "num_mels", "max_encoder_sequence_length"),
)
