"""ELECTRA: Clark et al. 2020, https://arxiv.org/abs/2003.10555.

A BERT without pooler, whose embeddings may be narrower. Generators are masked language models;
discriminators, which tell replaced tokens, are loaded as backbones for other tasks.
"""

from keras_transformer.checkpoints.families.encoders import (
    BERT_FIELDS,
    BERT_REQUIRED,
    ENCODER,
    bert_embeddings,
    bert_layers,
    encoder_heads,
    masked_lm,
)
from keras_transformer.checkpoints.families.family import Family, Field
from keras_transformer.checkpoints.weights import Names, dense

ELECTRA = Family(
    model_type="electra",
    architecture="ElectraModel",
    fields={
        **BERT_FIELDS,
        "embedding_size": Field("embedding_dim", 128),
        "hidden_size": Field("hidden_dim", 256),
        "num_attention_heads": Field("num_heads", 4),
        "intermediate_size": Field("intermediate_dim", 1024),
    },
    constants=ENCODER,
    required=BERT_REQUIRED,
    weights=(
        *bert_embeddings("generator_lm_head.weight"),
        *dense("encoder/embedding_projection", "embeddings_project"),
        *bert_layers(),
    ),
    heads=encoder_heads(
        "Electra",
        masked_lm(
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            ("generator_lm_head.bias",),
        ),
        masked_activation="gelu",
        hidden="classifier.dense",
        hidden_activation="gelu",
        output="classifier.out_proj",
    ),
    names=Names(
        prefixes=("electra.",),
        ignored=(
            "embeddings.position_ids",
            "generator_*",
            "discriminator_predictions.*",
            "classifier.*",
            "qa_outputs.*",
        ),
    ),
)
