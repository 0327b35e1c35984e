"""RemBERT: Chung et al. 2020, https://arxiv.org/abs/2010.12821.

A BERT with narrow embeddings, and a masked language model with a wider output matrix of its own.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import encoder_heads, masked_lm, number
from keras_transformer.checkpoints.families.encoders.bert import (
    BERT,
    FIELDS,
    OLDER_NORMS,
    STACK,
)
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers


def _read_width(values: Values) -> dict[str, Any]:
    return {"output_dim": number(values, "output_embedding_size", 1664)}


def _write_width(task: Values) -> dict[str, Any]:
    if task["output_dim"] is None:
        raise ValueError(
            "A rembert checkpoint of a MaskedLM has an output matrix of its own: give `output_dim`."
        )
    return {"output_embedding_size": task["output_dim"]}


_HEADS = encoder_heads(
    masked_lm("cls.predictions.", "dense", "LayerNorm", "decoder.bias"),
    dropout="classifier_dropout_prob",
)
_MASKED = dataclasses.replace(
    _HEADS["MaskedLM"],
    weights=(
        *_HEADS["MaskedLM"].weights,
        WeightLine("output/kernel", "cls.predictions.decoder.weight", transpose=True),
    ),
    options=(Conversion(_read_width, _write_width),),
)

REMBERT = dataclasses.replace(
    BERT,
    model_type="rembert",
    architecture="RemBertModel",
    fields={
        **{name: field for name, field in FIELDS.items() if name != "tie_word_embeddings"},
        "vocab_size": ConfigField("vocabulary_size", 250300),
        "input_embedding_size": ConfigField("embedding_dim", 256),
        "hidden_size": ConfigField("hidden_dim", 1152),
        "num_hidden_layers": ConfigField("num_layers", 32),
        "num_attention_heads": ConfigField("num_heads", 18),
        "intermediate_size": ConfigField("intermediate_dim", 4608),
        "hidden_dropout_prob": ConfigField("dropout", 0.0),
        "attention_probs_dropout_prob": ConfigField("attention_dropout", 0.0),
    },
    constants={**BERT.constants, "embedding_projection": True},
    required={"is_decoder": False, "add_cross_attention": False},
    weights=(
        *STACK,
        *layers(
            {
                "encoder/embedding_projection": "encoder.embedding_hidden_mapping_in",
                "pooler": "pooler.dense",
            }
        ),
    ),
    heads={**_HEADS, "MaskedLM": _MASKED},
    names=Names(prefixes=("rembert.",), suffixes=OLDER_NORMS),
)
