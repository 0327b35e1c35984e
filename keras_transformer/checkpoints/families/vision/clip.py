"""CLIP: Radford et al. 2021, https://arxiv.org/abs/2103.00020.

An image encoder and a causal text encoder, each with its own config. Each is also a family of its
own.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.images import patches
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.base.towers import (
    STACKS,
    classifier,
    or_classifier,
    tower_family,
    tower_weights,
    towers,
)
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers
from keras_transformer.config import TransformerConfig

_SHARED = {
    "hidden_act": ConfigField("activation", "quick_gelu"),
    "layer_norm_eps": ConfigField("normalization_epsilon", 1e-5),
    "attention_dropout": ConfigField("attention_dropout", 0.0),
    "initializer_range": ConfigField("initializer_range", 0.02),
    "num_hidden_layers": ConfigField("num_layers", 12),
}
_IMAGES = {
    **_SHARED,
    "hidden_size": ConfigField("hidden_dim", 768),
    "intermediate_size": ConfigField("intermediate_dim", 3072),
    "num_attention_heads": ConfigField("num_heads", 12),
}
# The image tower, which other families use too.
IMAGES = (_IMAGES, {"embedding_normalization": True}, (patches(224, 32, use_bias=False),))
IMAGE_WEIGHTS = (
    WeightLine("encoder/input_class_token", "vision_model.embeddings.class_embedding"),
    *STACKS,
    *layers({"encoder/embedding_norm": "vision_model.pre_layrnorm"}),
)
_TEXTS = {
    **_SHARED,
    "vocab_size": ConfigField("vocabulary_size", 49408),
    "hidden_size": ConfigField("hidden_dim", 512),
    "intermediate_size": ConfigField("intermediate_dim", 2048),
    "num_attention_heads": ConfigField("num_heads", 8),
    "max_position_embeddings": ConfigField("max_sequence_length", 77),
}
_OLD_END = 2  # a wrong end token of old configs; with it, the highest id ends a text


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
    """Return the conversion of the projection width, which only the class `name` has."""

    def read(values: Values) -> dict[str, Any]:
        named = values.get("architectures")
        has = isinstance(named, list) and named[:1] == [name]
        return {"vector_dim": number(values, "projection_dim", 512) if has else None}

    def write(config: TransformerConfig) -> dict[str, Any]:
        width = config.vector_dim
        return {} if width is None else {"architectures": [name], "projection_dim": width}

    return Conversion(read, write)


_TEXT = {"vector_pooling": "end"}
_NORM = "vision_model.post_layernorm"  # norm of the vector only, if states have no final norm
_WEIGHTS = (
    *IMAGE_WEIGHTS,
    *layers({"encoder/vector_norm": _NORM, "encoder/vector_projection": "visual_projection"}),
    *layers({"decoder/vector_projection": "text_projection"}),
)


def clip_families(model_type: str, prefix: str, end: Conversion) -> tuple[Family, Family, Family]:
    """Return the families of both towers, of the image tower and of the text tower.

    Args:
        model_type: the value of the model of both towers in `config.json`.
        prefix: the beginning of the published class names.
        end: the conversion of the token that ends a text.
    """
    images = tower_family(
        f"{model_type}_vision_model",
        f"{prefix}VisionModel",
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
            (*IMAGES[2], _projected(f"{prefix}VisionModelWithProjection")),
        ),
        weights=tower_weights(_WEIGHTS, "encoder"),
    )
    texts = tower_family(
        f"{model_type}_text_model",
        f"{prefix}TextModel",
        (
            _TEXTS,
            {**_TEXT, "kind": "decoder"},
            (end, _projected(f"{prefix}TextModelWithProjection")),
        ),
        weights=tower_weights(_WEIGHTS, "decoder"),
    )
    both = Family(
        model_type=model_type,
        architecture=f"{prefix}Model",
        fields={},
        constants={"kind": "dual"},
        conversions=(
            or_classifier(
                images,
                f"{prefix}ForImageClassification",
                towers(
                    images=(_IMAGES, {**IMAGES[1], "vector_pooling": "first"}, IMAGES[2]),
                    texts=(_TEXTS, _TEXT, (end,)),
                ),
                Conversion(_read_width, _write_width),
            ),
        ),
        weights=(*_WEIGHTS, WeightLine("similarity_scale", "logit_scale")),
        heads=classifier(f"{prefix}ForImageClassification"),
        names=Names(),
    )
    return both, images, texts


CLIP, CLIP_VISION, CLIP_TEXT = clip_families("clip", "CLIP", Conversion(_read_end, _write_end))
