"""SigLIP2: Tschannen et al. 2025, https://arxiv.org/abs/2502.14786.

Its models of images of any aspect ratio (NaFlex) are like SigLIP, but an image is a sequence of
patches, and a grid of trained positions is resized to its rows and columns. Its other models
load as SigLIP does.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from keras_transformer.checkpoints.families.base.family import Conversion, Values
from keras_transformer.checkpoints.families.base.images import square_patch
from keras_transformer.checkpoints.families.base.shared import number, square_side
from keras_transformer.checkpoints.families.base.towers import (
    classifier,
    or_classifier,
    tower_family,
    tower_weights,
    towers,
)
from keras_transformer.checkpoints.families.vision.siglip import (
    POOLED,
    SHARED,
    SIGLIP,
    SIGLIP_TEXT,
    TEXTS,
    WEIGHTS,
    WIDTH,
)
from keras_transformer.checkpoints.weights.tables import WeightLine
from keras_transformer.config import TransformerConfig


def _of_patches(lines: Iterable[WeightLine]) -> tuple[WeightLine, ...]:
    """Return lines of a model whose images are sequences of patches, with a grid of positions."""
    names = ("encoder/input_patches/", "encoder/position_embedding/")
    embeddings = "vision_model.embeddings."
    return (
        *(line for line in lines if not line.ours.startswith(names)),
        WeightLine(
            "encoder/input_patches/kernel", f"{embeddings}patch_embedding.weight", of_patches=True
        ),
        WeightLine("encoder/input_patches/bias", f"{embeddings}patch_embedding.bias"),
        WeightLine("encoder/input_positions", f"{embeddings}position_embedding.weight"),
    )


def _read_stem(values: Values) -> dict[str, Any]:
    stem = {
        "kind": "patch_sequence",
        "patch_size": square_patch(values, 16),
        "num_frames": 1,
        "num_channels": number(values, "num_channels", 3),
        "use_bias": True,
        "position_grid": square_side(values, "num_patches", 256),
        "interpolation": "linear_antialiased",
    }
    return {"stem": stem, "position": "none"}


def _write_stem(config: TransformerConfig) -> dict[str, Any]:
    stem = config.stem
    if getattr(stem, "interpolation", None) != "linear_antialiased" or stem.position_grid is None:
        raise ValueError("its images are sequences of patches with antialiased positions.")
    return {
        "patch_size": stem.patch_size,
        "num_channels": stem.num_channels,
        "num_patches": stem.position_grid**2,
    }


_STEM = Conversion(_read_stem, _write_stem)
SIGLIP2_VISION = tower_family(
    "siglip2_vision_model",
    "Siglip2VisionModel",
    (
        SHARED,
        {"kind": "encoder", "vocabulary_size": 0},
        (_STEM, POOLED),
    ),
    weights=tower_weights(_of_patches(WEIGHTS), "encoder"),
)
SIGLIP2_TEXT = dataclasses.replace(
    SIGLIP_TEXT, model_type="siglip2_text_model", architecture="Siglip2TextModel"
)
SIGLIP2 = dataclasses.replace(
    SIGLIP,
    model_type="siglip2",
    architecture="Siglip2Model",
    conversions=(
        or_classifier(
            SIGLIP2_VISION,
            "Siglip2ForImageClassification",
            towers(
                images=(SHARED, {"vector_pooling": "attention"}, (_STEM,)),
                texts=(TEXTS, {"vector_pooling": "last", "bidirectional": True}, (WIDTH,)),
            ),
        ),
    ),
    weights=_of_patches(SIGLIP.weights),
    heads=classifier("Siglip2ForImageClassification"),
)
