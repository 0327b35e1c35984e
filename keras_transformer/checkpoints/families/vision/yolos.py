"""YOLOS: Fang et al. 2021, https://arxiv.org/abs/2106.00666; a ViT with detection tokens."""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import Conversion, PublishedHead, Values
from keras_transformer.checkpoints.families.base.images import LAYER, patch_weights, patches
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.vision.vit import VIT
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers
from keras_transformer.config import TransformerConfig

_PATCHES = patches((512, 864), 16)
_MID = "use_mid_position_embeddings"


def _read(values: Values) -> dict[str, Any]:
    stem = _PATCHES.read(values)["stem"]
    behind = number(values, "num_hidden_layers", 12) - 1  # all blocks but the last
    stem["num_detection_tokens"] = number(values, "num_detection_tokens", 100)
    stem["mid_positions"] = behind if flag(values, _MID, True) else 0
    return {"stem": stem}


def _write(config: TransformerConfig) -> dict[str, Any]:
    written = _PATCHES.write(config)
    return {
        **written,
        "image_size": list(config.stem.image_size),
        "num_detection_tokens": config.stem.num_detection_tokens,
        _MID: bool(config.stem.mid_positions),
    }


def perceptron(ours: str, theirs: str, depth: int = 3) -> dict[str, str]:
    """Return the table of the linear layers of a perceptron of a head."""
    return {f"{ours}_{i}": f"{theirs}.layers.{i}" for i in range(depth)}


YOLOS = dataclasses.replace(
    VIT,
    model_type="yolos",
    architecture="YolosModel",
    conversions=(Conversion(_read, _write),),
    required={},
    weights=(
        *patch_weights("embeddings.", "patch_embeddings.projection", "position_embeddings"),
        WeightLine("encoder/input_class_token", "embeddings.cls_token", row=2),
        WeightLine("encoder/input_detection_tokens", "embeddings.detection_tokens", row=1),
        # Published files have the first name; Transformers also knows the second one.
        WeightLine(
            "encoder/input_mid_positions",
            "encoder.mid_position_embeddings",
            also=("encoder.interpolation.mid_position_embeddings",),
        ),
        *layers(LAYER, "encoder/layer_{i}/", "encoder.layer.{i}."),
        *layers({"encoder/final_norm": "layernorm", "pooler": "pooler.dense"}),
    ),
    heads={
        "ObjectDetector": PublishedHead(
            weights=layers(
                {
                    **perceptron("class", "class_labels_classifier"),
                    **perceptron("box", "bbox_predictor"),
                },
                outside=True,
            ),
            values={"class_layers": 3},
        )
    },
    names=Names(prefixes=("vit.",), ignored=("class_labels_classifier.*", "bbox_predictor.*")),
)
