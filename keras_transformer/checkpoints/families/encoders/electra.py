"""ELECTRA: Clark et al. 2020, https://arxiv.org/abs/2003.10555.

A BERT without pooler, with embeddings that may be narrower than its states. Generators are masked
language models; discriminators, which detect replaced tokens, are loaded as backbones for other
tasks.
"""

from keras_transformer.checkpoints.families.base.family import ConfigField, Family
from keras_transformer.checkpoints.families.base.shared import (
    ENCODER,
    encoder_heads,
    masked_lm,
    unread,
)
from keras_transformer.checkpoints.families.encoders.bert import FIELDS, REQUIRED, STACK
from keras_transformer.checkpoints.weights.tables import Names, layers, output_matrix

ELECTRA = Family(
    model_type="electra",
    architecture="ElectraModel",
    fields={
        **FIELDS,
        "embedding_size": ConfigField("embedding_dim", 128),
        "hidden_size": ConfigField("hidden_dim", 256),
        "num_attention_heads": ConfigField("num_heads", 4),
        "intermediate_size": ConfigField("intermediate_dim", 1024),
    },
    constants=ENCODER,
    required=REQUIRED,
    weights=(
        *STACK,
        output_matrix("generator_lm_head.weight"),
        *layers({"encoder/embedding_projection": "embeddings_project"}),
    ),
    heads=encoder_heads(
        masked_lm("generator_", "predictions.dense", "predictions.LayerNorm", "lm_head.bias"),
        masked_activation="gelu",
        classifier={"output": "classifier.out_proj", "hidden": "classifier.dense"},
        hidden_activation="gelu",
    ),
    names=Names(
        prefixes=("electra.",),
        ignored=unread(*(f"discriminator_predictions.{n}" for n in ("dense", "dense_prediction"))),
    ),
)
