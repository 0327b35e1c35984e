"""SigLIP: Zhai et al. 2023, https://arxiv.org/abs/2303.15343.

Like CLIP, with bidirectional texts, image states pooled by a trained query, and a bias on the
similarities. SigLIP 2 has the same models, and others that are in `siglip2.py`.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.images import patches
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.base.towers import (
    STACKS,
    classifier,
    or_classifier,
    tower_family,
    tower_weights,
    towers,
)
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, fused, layers
from keras_transformer.config import TransformerConfig

SHARED = {
    "hidden_act": ConfigField("activation", "gelu_pytorch_tanh"),
    "layer_norm_eps": ConfigField("normalization_epsilon", 1e-6),
    "attention_dropout": ConfigField("attention_dropout", 0.0),
    "num_hidden_layers": ConfigField("num_layers", 12),
    "hidden_size": ConfigField("hidden_dim", 768),
    "intermediate_size": ConfigField("intermediate_dim", 3072),
    "num_attention_heads": ConfigField("num_heads", 12),
}
# The image tower, which other families use too.
IMAGES = (SHARED, {}, (patches(224, 16, class_token=False),))
TEXTS = {
    **SHARED,
    "vocab_size": ConfigField("vocabulary_size", 32000),
    "max_position_embeddings": ConfigField("max_sequence_length", 64),
}


def _read_width(values: Values) -> dict[str, Any]:
    width = number(values, "hidden_size", 768)
    return {"vector_dim": number(values, "projection_size", width), "vector_bias": True}


def _write_width(config: TransformerConfig) -> dict[str, Any]:
    return {"projection_size": config.vector_dim}


def _read_head(values: Values) -> dict[str, Any]:
    return {"vector_pooling": "attention" if flag(values, "vision_use_head", True) else None}


def _write_head(config: TransformerConfig) -> dict[str, Any]:
    return {"vision_use_head": config.vector_pooling is not None}


WIDTH = Conversion(_read_width, _write_width)
POOLED = Conversion(_read_head, _write_head)
_HEAD = "vision_model.head."
_POOLED = "encoder/vector/"
WEIGHTS = (
    *STACKS,
    *layers({"decoder/vector_projection": "text_model.head"}),
    WeightLine(f"{_POOLED}probe", f"{_HEAD}probe", row=2),
    *fused(
        [f"{_POOLED}attention/{name}" for name in ("query", "key", "value")],
        f"{_HEAD}attention.in_proj",
        ends=("_weight", "_bias"),
    ),
    *layers({
        "attention/output": "attention.out_proj",
        "norm": "layernorm",
        "feed_forward/intermediate": "mlp.fc1",
        "feed_forward/output": "mlp.fc2",
    }, _POOLED, _HEAD),
)  # fmt: skip
# Layers that pool the image states; models that do not return a vector ignore them.
HEAD = tuple(line for line in WEIGHTS if line.ours.startswith(_POOLED))

SIGLIP_VISION = tower_family(
    "siglip_vision_model",
    "SiglipVisionModel",
    (
        SHARED,
        {"kind": "encoder", "vocabulary_size": 0},
        (*IMAGES[2], POOLED),
    ),
    weights=tower_weights(WEIGHTS, "encoder"),
)
SIGLIP_TEXT = tower_family(
    "siglip_text_model",
    "SiglipTextModel",
    (TEXTS, {"kind": "encoder", "vector_pooling": "last"}, (WIDTH,)),
    weights=tuple(
        dataclasses.replace(line, ours=line.ours.replace("decoder/", "encoder/", 1))
        for line in tower_weights(WEIGHTS, "decoder")
    ),
)
SIGLIP = Family(
    model_type="siglip",
    architecture="SiglipModel",
    fields={},
    constants={"kind": "dual", "similarity_bias": True},
    conversions=(
        or_classifier(
            SIGLIP_VISION,
            "SiglipForImageClassification",
            towers(
                images=(SHARED, {"vector_pooling": "attention"}, IMAGES[2]),
                texts=(TEXTS, {"vector_pooling": "last", "bidirectional": True}, (WIDTH,)),
            ),
        ),
    ),
    weights=(
        *WEIGHTS,
        WeightLine("similarity_scale", "logit_scale", row=1),
        WeightLine("similarity_bias", "logit_bias", row=1),
    ),
    heads=classifier("SiglipForImageClassification"),
    names=Names(),
)
