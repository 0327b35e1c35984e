"""MPNet: Song et al. 2020, https://arxiv.org/abs/2004.09297.

A RoBERTa without token types, with T5's relative bias in addition to its positions.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.encoders.bert import EMBEDDINGS, LAYER
from keras_transformer.checkpoints.families.encoders.roberta import ROBERTA
from keras_transformer.checkpoints.weights.tables import Names, attention, layers, output_matrix
from keras_transformer.config import TransformerConfig

_PADDING = 1  # MPNet always uses this id, whatever its config says
_EMBEDDINGS = {ours: theirs for ours, theirs in EMBEDDINGS.items() if "segment" not in ours}
_LAYER = {
    **LAYER,
    **attention("attention.attn.{}", "q", "k", "v", "o"),
    "self_attention_norm": "attention.LayerNorm",
}


def _read_rows(values: Values) -> dict[str, Any]:
    rows = number(values, "max_position_embeddings", 512)
    return {"max_sequence_length": rows - _PADDING - 1}


def _write_rows(config: TransformerConfig) -> dict[str, Any]:
    return {"max_position_embeddings": config.max_sequence_length + config.position_offset}


MPNET = dataclasses.replace(
    ROBERTA,
    model_type="mpnet",
    architecture="MPNetModel",
    fields={name: field for name, field in ROBERTA.fields.items() if name != "type_vocab_size"}
    | {"vocab_size": ConfigField("vocabulary_size", 30527)},
    constants={
        **ROBERTA.constants,
        "position_padding_id": _PADDING,
        "position_offset": _PADDING + 1,
        "relative_bias": True,
    },
    conversions=(Conversion(_read_rows, _write_rows),),
    required={"relative_attention_num_buckets": 32},
    weights=(
        *layers({**_EMBEDDINGS, "encoder/relative_bias": "encoder.relative_attention_bias"}),
        *layers(_LAYER, "encoder/layer_{i}/", "encoder.layer.{i}."),
        output_matrix("lm_head.decoder.weight"),
        *layers({"pooler": "pooler.dense"}),
    ),
    names=Names(prefixes=("mpnet.",)),
)
