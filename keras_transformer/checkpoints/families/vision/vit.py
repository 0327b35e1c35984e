"""ViT: Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929; and DeiT.

DeiT: Touvron et al. 2020, https://arxiv.org/abs/2012.12877, with a distillation token.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.images import (
    FIELDS,
    IMAGE_ENCODER,
    LAYER,
    patch_weights,
    patches,
)
from keras_transformer.checkpoints.families.base.shared import unread
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers

_STEM = patch_weights("embeddings.", "patch_embeddings.projection", "position_embeddings")
# Tensors of masked pre-training.
_IGNORED = ("embeddings.mask_token", *unread("decoder.0"))

VIT = Family(
    model_type="vit",
    architecture="ViTModel",
    fields={**FIELDS, "qkv_bias": ConfigField("attention_bias", True)},
    constants=IMAGE_ENCODER,
    conversions=(patches(224, 16),),
    required={"pooler_act": "tanh"},
    weights=(
        *_STEM,
        WeightLine("encoder/input_class_token", "embeddings.cls_token", row=2),
        *layers(LAYER, "encoder/layer_{i}/", "encoder.layer.{i}."),
        *layers({"encoder/final_norm": "layernorm", "pooler": "pooler.dense"}),
    ),
    heads={"ImageClassifier": PublishedHead(weights=layers({"output": "classifier"}))},
    names=Names(prefixes=("vit.",), ignored=_IGNORED),
    pooler="pooler.dense.weight",
)

_TEACHER = "DeiTForImageClassificationWithTeacher"


def _read_teacher(values: Values) -> dict[str, Any]:
    return {"distilled": True} if values.get("architectures") == [_TEACHER] else {}


def _write_teacher(task: Values) -> dict[str, Any]:
    return {"architectures": [_TEACHER]} if task.get("distilled") else {}


DEIT = dataclasses.replace(
    VIT,
    model_type="deit",
    architecture="DeiTModel",
    conversions=(patches(224, 16, distillation_token=True),),
    weights=(
        *VIT.weights,
        WeightLine("encoder/input_distillation_token", "embeddings.distillation_token", row=2),
    ),
    heads={
        "ImageClassifier": PublishedHead(
            architectures=("DeiTForImageClassification", _TEACHER),
            weights=layers(
                {
                    "output": "classifier",
                    "class_output": "cls_classifier",
                    "distillation_output": "distillation_classifier",
                }
            ),
            options=(Conversion(_read_teacher, _write_teacher),),
        )
    },
    names=Names(prefixes=("deit.",), ignored=_IGNORED),
)
