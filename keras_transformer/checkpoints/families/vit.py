"""ViT: Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929; and DeiT.

DeiT: Touvron et al. 2020, https://arxiv.org/abs/2012.12877, with a token of distillation.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.family import Conversion, Family, Field, Head, Values
from keras_transformer.checkpoints.families.images import IMAGE_ENCODER, patch_weights, patches
from keras_transformer.checkpoints.weights import Names, Weight, attention, layers

_FIELDS = {
    "hidden_size": Field("hidden_dim", 768),
    "num_hidden_layers": Field("num_layers", 12),
    "num_attention_heads": Field("num_heads", 12),
    "intermediate_size": Field("intermediate_dim", 3072),
    "hidden_act": Field("activation", "gelu"),
    "hidden_dropout_prob": Field("dropout", 0.0),
    "attention_probs_dropout_prob": Field("attention_dropout", 0.0),
    "initializer_range": Field("initializer_range", 0.02),
    "layer_norm_eps": Field("normalization_epsilon", 1e-12),
    "qkv_bias": Field("attention_bias", True),
}
_LAYER = {
    **attention(
        "attention.{}", "attention.query", "attention.key", "attention.value", "output.dense"
    ),
    "self_attention_norm": "layernorm_before",
    "feed_forward/intermediate": "intermediate.dense",
    "feed_forward/output": "output.dense",
    "feed_forward_norm": "layernorm_after",
}
_STEM = patch_weights("embeddings.", "patch_embeddings.projection", "position_embeddings")
_IGNORED = ("embeddings.mask_token", "decoder.*", "classifier.*", "*_classifier.*")

VIT = Family(
    model_type="vit",
    architecture="ViTModel",
    fields=_FIELDS,
    constants=IMAGE_ENCODER,
    conversions=(patches(224, 16),),
    required={"pooler_act": "tanh"},
    weights=(
        *_STEM,
        Weight("encoder/input_class_token", "embeddings.cls_token", row=2),
        *layers(_LAYER, "encoder/layer_{i}/", "encoder.layer.{i}."),
        *layers({"encoder/final_norm": "layernorm", "pooler": "pooler.dense"}),
    ),
    heads={"ImageClassifier": Head(weights=layers({"output": "classifier"}))},
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
        Weight("encoder/input_distillation_token", "embeddings.distillation_token", row=2),
    ),
    heads={
        "ImageClassifier": Head(
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
