"""CLIP: Radford et al. 2021, https://arxiv.org/abs/2103.00020.

An encoder of images and a causal one of texts, each with a config of its own, and each a family
by itself.
"""

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
from keras_transformer.checkpoints.weights import Names, Weight, layers
from keras_transformer.config import TransformerConfig

_SHARED = {
    "hidden_act": Field("activation", "quick_gelu"),
    "layer_norm_eps": Field("normalization_epsilon", 1e-5),
    "attention_dropout": Field("attention_dropout", 0.0),
    "initializer_range": Field("initializer_range", 0.02),
    "num_hidden_layers": Field("num_layers", 12),
}
_IMAGES = {
    **_SHARED,
    "hidden_size": Field("hidden_dim", 768),
    "intermediate_size": Field("intermediate_dim", 3072),
    "num_attention_heads": Field("num_heads", 12),
}
# The tower of images, which other families have too.
IMAGES = (_IMAGES, {"embedding_normalization": True}, (patches(224, 32, use_bias=False),))
IMAGE_WEIGHTS = (
    Weight("encoder/input_class_token", "vision_model.embeddings.class_embedding"),
    *STACKS,
    *layers({"encoder/embedding_norm": "vision_model.pre_layrnorm"}),
)
_TEXTS = {
    **_SHARED,
    "vocab_size": Field("vocabulary_size", 49408),
    "hidden_size": Field("hidden_dim", 512),
    "intermediate_size": Field("intermediate_dim", 2048),
    "num_attention_heads": Field("num_heads", 8),
    "max_position_embeddings": Field("max_sequence_length", 77),
}
_OLD_END = 2  # of configs that name a wrong token: the one with the highest id ends a text


def _read_end(values: Values) -> dict[str, Any]:
    end = values.get("eos_token_id", 49407)
    return {"vector_end_id": None if end == _OLD_END else end}


def _write_end(config: TransformerConfig) -> dict[str, Any]:
    end = config.vector_end_id
    return {"eos_token_id": _OLD_END if end is None else end}


def _read_width(values: Values) -> dict[str, Any]:
    return {"vector_dim": number(values, "projection_dim", 512)}


def _write_width(config: TransformerConfig) -> dict[str, Any]:
    return {"projection_dim": config.sides[0].vector_dim}


def _projected(name: str) -> Conversion:
    """Of the class that has a layer behind its vector, whose width the others' configs name too."""

    def read(values: Values) -> dict[str, Any]:
        named = values.get("architectures")
        has = isinstance(named, list) and named[:1] == [name]
        return {"vector_dim": number(values, "projection_dim", 512) if has else None}

    def write(config: TransformerConfig) -> dict[str, Any]:
        width = config.vector_dim
        return {} if width is None else {"architectures": [name], "projection_dim": width}

    return Conversion(read, write)


_TEXT = {"vector_pooling": "end"}
_END = Conversion(_read_end, _write_end)
_NORM = "vision_model.post_layernorm"  # of the vector alone, where the states have none
_WEIGHTS = (
    *IMAGE_WEIGHTS,
    *layers({"encoder/vector_norm": _NORM, "encoder/vector_projection": "visual_projection"}),
    *layers({"decoder/vector_projection": "text_projection"}),
)

CLIP_VISION = alone(
    "clip_vision_model",
    "CLIPVisionModel",
    (
        _IMAGES,
        {
            **IMAGES[1],
            "kind": "encoder",
            "vocabulary_size": 0,
            "final_normalization": False,
            "vector_pooling": "first",
            "vector_normalization": True,
        },
        (*IMAGES[2], _projected("CLIPVisionModelWithProjection")),
    ),
    weights=of_side(_WEIGHTS, "encoder"),
)
CLIP_TEXT = alone(
    "clip_text_model",
    "CLIPTextModel",
    (_TEXTS, {**_TEXT, "kind": "decoder"}, (_END, _projected("CLIPTextModelWithProjection"))),
    weights=of_side(_WEIGHTS, "decoder"),
)
CLIP = Family(
    model_type="clip",
    architecture="CLIPModel",
    fields={},
    constants={"kind": "dual"},
    conversions=(
        or_classifier(
            CLIP_VISION,
            "CLIPForImageClassification",
            towers(
                images=(_IMAGES, {**IMAGES[1], "vector_pooling": "first"}, IMAGES[2]),
                texts=(_TEXTS, _TEXT, (_END,)),
            ),
            Conversion(_read_width, _write_width),
        ),
    ),
    weights=(*_WEIGHTS, Weight("similarity_scale", "logit_scale")),
    heads=classifier("CLIPForImageClassification"),
    names=Names(),
)
