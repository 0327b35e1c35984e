"""ALBERT: Lan et al. 2019, https://arxiv.org/abs/1909.11942.

Narrow embeddings, section 3.1, and layers that share their weights.
"""

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
    unread,
)
from keras_transformer.checkpoints.families.encoders.bert import EMBEDDINGS, FIELDS
from keras_transformer.checkpoints.weights.tables import Names, attention, layers, output_matrix
from keras_transformer.config import TransformerConfig

_LAYER = {
    **attention("attention.{}", "query", "key", "value", "dense"),
    "self_attention_norm": "attention.LayerNorm",
    "feed_forward/intermediate": "ffn",
    "feed_forward/output": "ffn_output",
    "feed_forward_norm": "full_layer_layer_norm",
}
_GROUP = "encoder.albert_layer_groups.{group}"
_ONCE = {"encoder/embedding_projection": "encoder.embedding_hidden_mapping_in", "pooler": "pooler"}


def _read_depth(values: Values) -> dict[str, Any]:
    # ALBERT counts rounds; each round runs all blocks of a group.
    rounds, each = number(values, "num_hidden_layers", 12), number(values, "inner_group_num", 1)
    return {"num_layers": rounds * each, "layers_per_group": each}


def _write_depth(config: TransformerConfig) -> dict[str, Any]:
    each = config.layers_per_group
    return {"num_hidden_layers": config.num_layers // each, "inner_group_num": each}


ALBERT = Family(
    model_type="albert",
    architecture="AlbertModel",
    fields={
        **{name: field for name, field in FIELDS.items() if name != "num_hidden_layers"},
        "vocab_size": ConfigField("vocabulary_size", 30000),
        "embedding_size": ConfigField("embedding_dim", 128),
        "hidden_size": ConfigField("hidden_dim", 4096),
        "num_hidden_groups": ConfigField("num_layer_groups", 1),
        "num_attention_heads": ConfigField("num_heads", 64),
        "intermediate_size": ConfigField("intermediate_dim", 16384),
        "hidden_act": ConfigField("activation", "gelu_new"),
        "hidden_dropout_prob": ConfigField("dropout", 0.0),
        "attention_probs_dropout_prob": ConfigField("attention_dropout", 0.0),
    },
    constants={**ENCODER, "embedding_projection": True},
    conversions=(Conversion(_read_depth, _write_depth),),
    required={"position_embedding_type": "absolute"},
    weights=(
        *layers(EMBEDDINGS),
        output_matrix("predictions.decoder.weight"),
        *layers(_ONCE),
        *layers(_LAYER, "encoder/layer_{i}/", f"{_GROUP}.albert_layers.{{inner}}."),
    ),
    heads=encoder_heads(
        masked_lm("predictions.", "dense", "LayerNorm", "decoder.bias", "bias"),
        masked_classes=("AlbertForMaskedLM", "AlbertForPreTraining"),
        dropout="classifier_dropout_prob",
    ),
    names=Names(prefixes=("albert.",), ignored=unread("sop_classifier.classifier")),
    pooler="pooler.weight",
)
