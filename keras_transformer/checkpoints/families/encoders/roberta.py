"""RoBERTa: Liu et al. 2019, https://arxiv.org/abs/1907.11692; also XLM-RoBERTa and CamemBERT.

A BERT whose positions start after the padding's id: the table's first rows are not used. Models of
the same architecture that were trained to predict a teacher's states:

Data2VecText: Baevski et al. 2022, https://arxiv.org/abs/2202.03555.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    ENCODER,
    encoder_heads,
    masked_lm,
    number,
)
from keras_transformer.checkpoints.families.encoders.bert import (
    FIELDS,
    OLDER_NORMS,
    REQUIRED,
    STACK,
)
from keras_transformer.checkpoints.weights.tables import Names, layers, output_matrix
from keras_transformer.config import TransformerConfig


def counted_positions(default_rows: int = 512) -> Conversion:
    """Return a conversion of positions that are counted without padding."""

    def read(values: Values) -> dict[str, Any]:
        padding = number(values, "pad_token_id", 1)
        rows = number(values, "max_position_embeddings", default_rows)
        return {
            "position_padding_id": padding,
            "position_offset": padding + 1,
            "max_sequence_length": rows - padding - 1,
        }

    def write(config: TransformerConfig) -> dict[str, Any]:
        return {
            "pad_token_id": config.position_padding_id,
            "max_position_embeddings": config.max_sequence_length + config.position_offset,
        }

    return Conversion(read, write)


_FIELDS = {name: field for name, field in FIELDS.items() if name != "max_position_embeddings"}

XLM_ROBERTA = Family(
    model_type="xlm-roberta",
    architecture="XLMRobertaModel",
    fields=_FIELDS,
    constants=ENCODER,
    conversions=(counted_positions(),),
    required=REQUIRED,
    weights=(
        *STACK,
        output_matrix("lm_head.decoder.weight"),
        *layers({"pooler": "pooler.dense"}),
    ),
    heads=encoder_heads(
        masked_lm("lm_head.", "dense", "layer_norm", "decoder.bias", "bias"),
        masked_activation="gelu",
        classifier={"output": "classifier.out_proj", "hidden": "classifier.dense"},
        hidden_activation="tanh",
    ),
    names=Names(prefixes=("roberta.",), suffixes=OLDER_NORMS),
    pooler="pooler.dense.weight",
)

ROBERTA = dataclasses.replace(
    XLM_ROBERTA,
    model_type="roberta",
    architecture="RobertaModel",
    fields={**_FIELDS, "vocab_size": ConfigField("vocabulary_size", 50265)},
)

CAMEMBERT = dataclasses.replace(XLM_ROBERTA, model_type="camembert", architecture="CamembertModel")

DATA2VEC_TEXT = dataclasses.replace(
    XLM_ROBERTA,
    model_type="data2vec-text",
    architecture="Data2VecTextModel",
    names=Names(prefixes=("data2vec_text.",), suffixes=OLDER_NORMS),
)
