"""SigLIP: Zhai et al. 2023, https://arxiv.org/abs/2303.15343.

As CLIP, with texts that are read in both directions, images whose states a trained query gathers,
and a bias of the similarities.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.family import Conversion, Family, Field, Values
from keras_transformer.checkpoints.families.images import patches
from keras_transformer.checkpoints.families.shared import number
from keras_transformer.checkpoints.families.towers import (
    STACKS,
    alone,
    classifier,
    of_side,
    or_classifier,
    towers,
)
from keras_transformer.checkpoints.weights import Names, Weight, fused, layers
from keras_transformer.config import TransformerConfig

_SHARED = {
    "hidden_act": Field("activation", "gelu_pytorch_tanh"),
    "layer_norm_eps": Field("normalization_epsilon", 1e-6),
    "attention_dropout": Field("attention_dropout", 0.0),
    "num_hidden_layers": Field("num_layers", 12),
    "hidden_size": Field("hidden_dim", 768),
    "intermediate_size": Field("intermediate_dim", 3072),
    "num_attention_heads": Field("num_heads", 12),
}
# The tower of images, which other families have too.
IMAGES = (_SHARED, {}, (patches(224, 16, class_token=False),))
_TEXTS = {
    **_SHARED,
    "vocab_size": Field("vocabulary_size", 32000),
    "max_position_embeddings": Field("max_sequence_length", 64),
}


def _read_width(values: Values) -> dict[str, Any]:
    width = number(values, "hidden_size", 768)
    return {"vector_dim": number(values, "projection_size", width), "vector_bias": True}


def _write_width(config: TransformerConfig) -> dict[str, Any]:
    return {"projection_size": config.vector_dim}


def _read_head(values: Values) -> dict[str, Any]:
    return {"vector_pooling": "attention" if values.get("vision_use_head", True) else None}


def _write_head(config: TransformerConfig) -> dict[str, Any]:
    return {"vision_use_head": config.vector_pooling is not None}


_WIDTH = Conversion(_read_width, _write_width)
_HEAD = "vision_model.head."
_POOLED = "encoder/vector/"
_WEIGHTS = (
    *STACKS,
    *layers({"decoder/vector_projection": "text_model.head"}),
    Weight(f"{_POOLED}probe", f"{_HEAD}probe", row=2),
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
# The layers of the vector of images, which models without one leave.
HEAD = tuple(line for line in _WEIGHTS if line.ours.startswith(_POOLED))

SIGLIP_VISION = alone(
    "siglip_vision_model",
    "SiglipVisionModel",
    (
        _SHARED,
        {"kind": "encoder", "vocabulary_size": 0},
        (*IMAGES[2], Conversion(_read_head, _write_head)),
    ),
    weights=of_side(_WEIGHTS, "encoder"),
)
SIGLIP_TEXT = alone(
    "siglip_text_model",
    "SiglipTextModel",
    (_TEXTS, {"kind": "encoder", "vector_pooling": "last"}, (_WIDTH,)),
    weights=tuple(
        dataclasses.replace(line, ours=line.ours.replace("decoder/", "encoder/", 1))
        for line in of_side(_WEIGHTS, "decoder")
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
                images=(_SHARED, {"vector_pooling": "attention"}, IMAGES[2]),
                texts=(_TEXTS, {"vector_pooling": "last", "bidirectional": True}, (_WIDTH,)),
            ),
        ),
    ),
    weights=(
        *_WEIGHTS,
        Weight("similarity_scale", "logit_scale", row=1),
        Weight("similarity_bias", "logit_bias", row=1),
    ),
    heads=classifier("SiglipForImageClassification"),
    names=Names(),
)
