"""LED: Beltagy et al. 2020, https://arxiv.org/abs/2004.05150, the encoder-decoder of Longformer.

A BART whose encoder attends as Longformer does; each side has its own number of positions.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import Conversion, PublishedHead, Values
from keras_transformer.checkpoints.families.base.shared import number, unread
from keras_transformer.checkpoints.families.encoders.longformer import (
    GLOBAL,
    read_windows,
    write_windows,
)
from keras_transformer.checkpoints.families.seq2seq.bart import (
    BART,
    EMBEDDINGS,
    SIDES,
    TIES,
    WEIGHTS,
    positions,
)
from keras_transformer.checkpoints.weights.tables import Names, attention, layers
from keras_transformer.config import TransformerConfig

_LENGTHS = {"encoder": ("max_encoder_position_embeddings", 16384)}
_LENGTHS["decoder"] = ("max_decoder_position_embeddings", 1024)


def _read_sides(values: Values) -> dict[str, Any]:
    ours = SIDES.read(values)
    longest = {side: number(values, *theirs) for side, theirs in _LENGTHS.items()}
    return ours | {
        "max_sequence_length": longest["encoder"],
        "encoder": {
            **read_windows(values, "encoder_layers", 12),
            "global_projection": True,
        },
        "decoder": {**ours.get("decoder", {}), "max_sequence_length": longest["decoder"]},
    }


def _write_sides(config: TransformerConfig) -> dict[str, Any]:
    lengths = {name: config.side(side).max_sequence_length for side, (name, _) in _LENGTHS.items()}
    return SIDES.write(config) | lengths | write_windows(config.side("encoder"))


_ATTENTION = attention(
    "self_attn.{}", *(f"longformer_self_attn.{n}" for n in ("query", "key", "value")), "output"
) | {ours: f"self_attn.longformer_self_attn.{theirs}" for ours, theirs in GLOBAL.items()}

_CLASSIFIER = ("classification_head.dense", "classification_head.out_proj")

LED = dataclasses.replace(
    BART,
    model_type="led",
    architecture="LEDModel",
    fields={
        name: field
        for name, field in BART.fields.items()
        if name not in ("max_position_embeddings", "scale_embedding")
    },
    constants={**BART.constants, "position_offset": 0},
    conversions=(Conversion(_read_sides, _write_sides), TIES),
    weights=(
        *EMBEDDINGS,
        *(w for w in WEIGHTS if not w.theirs.startswith("encoder.layers.{i}.self_attn.")),
        *layers(_ATTENTION, "encoder/layer_{i}/", "encoder.layers.{i}."),
        *positions("encoder"),
        *positions("decoder"),
    ),
    heads={
        "Seq2SeqLM": PublishedHead(values={"start_id": 2}),
        "QuestionAnswerer": BART.heads["QuestionAnswerer"],
    },
    names=Names(prefixes=("led.",), ignored=(*BART.names.ignored, *unread(*_CLASSIFIER))),
)
