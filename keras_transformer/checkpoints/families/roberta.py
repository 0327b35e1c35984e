"""RoBERTa: Liu et al. 2019, https://arxiv.org/abs/1907.11692; XLM-RoBERTa and CamemBERT likewise.

A BERT whose positions start behind the padding's id: the table's first rows are not used.
"""

from typing import Any

from keras_transformer.checkpoints.families.conversions import number
from keras_transformer.checkpoints.families.encoders import (
    BERT_FIELDS,
    BERT_REQUIRED,
    ENCODER,
    bert_embeddings,
    bert_layers,
    encoder_heads,
    masked_lm,
)
from keras_transformer.checkpoints.families.family import Conversion, Family, Field, Values
from keras_transformer.checkpoints.weights import Names, dense
from keras_transformer.config import TransformerConfig


def _read_positions(values: Values) -> dict[str, Any]:
    padding = number(values, "pad_token_id", 1)
    rows = number(values, "max_position_embeddings", 512)
    return {
        "position_padding_id": padding,
        "position_offset": padding + 1,
        "max_sequence_length": rows - padding - 1,
    }


def _write_positions(config: TransformerConfig) -> dict[str, Any]:
    return {
        "pad_token_id": config.position_padding_id,
        "max_position_embeddings": config.max_sequence_length + config.position_offset,
    }


def _family(model_type: str, prefix: str, vocabulary_size: int = 30522) -> Family:
    unused = ("max_position_embeddings",)
    return Family(
        model_type=model_type,
        architecture=f"{prefix}Model",
        fields={name: field for name, field in BERT_FIELDS.items() if name not in unused}
        | {"vocab_size": Field("vocabulary_size", vocabulary_size)},
        constants=ENCODER,
        conversions=(Conversion(_read_positions, _write_positions),),
        required=BERT_REQUIRED,
        weights=(
            *bert_embeddings("lm_head.decoder.weight"),
            *bert_layers(),
            *dense("pooler", "pooler.dense"),
        ),
        heads=encoder_heads(
            prefix,
            masked_lm(
                "lm_head.dense", "lm_head.layer_norm", ("lm_head.bias", "lm_head.decoder.bias")
            ),
            masked_activation="gelu",
            hidden="classifier.dense",
            hidden_activation="tanh",
            output="classifier.out_proj",
        ),
        names=Names(
            prefixes=("roberta.",),
            suffixes={".gamma": ".weight", ".beta": ".bias"},
            ignored=("embeddings.position_ids", "lm_head.*", "classifier.*", "qa_outputs.*"),
        ),
        pooler="pooler.dense.weight",
    )


ROBERTA = _family("roberta", "Roberta", 50265)
XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta")
CAMEMBERT = _family("camembert", "Camembert")
