"""RoFormer: Su et al. 2021, https://arxiv.org/abs/2104.09864.

A BERT without pooler, with rotary positions of neighbouring features in place of learned ones, and
with embeddings that may be narrower than its states.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.base.shared import (
    ENCODER,
    encoder_heads,
    hidden_activation,
    masked_lm,
)
from keras_transformer.checkpoints.families.encoders.bert import (
    BERT,
    EMBEDDINGS,
    FIELDS,
    LAYER,
    OLDER_NORMS,
)
from keras_transformer.checkpoints.weights.computed import rotary_sines
from keras_transformer.checkpoints.weights.tables import Names, layers, output_matrix

_ONCE = {ours: theirs for ours, theirs in EMBEDDINGS.items() if "position" not in ours}

ROFORMER = dataclasses.replace(
    BERT,
    model_type="roformer",
    architecture="RoFormerModel",
    fields={
        **FIELDS,
        "vocab_size": ConfigField("vocabulary_size", 50000),
        "embedding_size": ConfigField("embedding_dim", None),
        "max_position_embeddings": ConfigField("max_sequence_length", 1536),
    },
    constants={**ENCODER, "position": "rotary", "rotary_interleaved": True},
    required={"rotary_value": False, "is_decoder": False, "add_cross_attention": False},
    weights=(
        *layers({**_ONCE, "encoder/embedding_projection": "embeddings_project"}),
        *layers(LAYER, "encoder/layer_{i}/", "encoder.layer.{i}."),
        output_matrix("cls.predictions.decoder.weight"),
    ),
    heads=encoder_heads(
        masked_lm(
            "cls.predictions.", "transform.dense", "transform.LayerNorm", "decoder.bias", "bias"
        ),
        classifier={"output": "classifier.out_proj", "hidden": "classifier.dense"},
        hidden=hidden_activation("hidden_act", "gelu"),
    ),
    computed=lambda config: {
        "encoder.embed_positions.weight": rotary_sines(config).astype("float32")
    },
    names=Names(prefixes=("roformer.",), suffixes=OLDER_NORMS),
    pooler=None,
)
