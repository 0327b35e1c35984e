"""DINOv3: Siméoni et al. 2025, https://arxiv.org/abs/2508.10104.

DINOv2 with registers, whose positions are rotations by the row and the column of a patch.
"""

from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.images import IMAGE_ENCODER, patches, registers
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.vision.dinov2 import MASK
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, attention, layers
from keras_transformer.config import Attention, GridRotary, TransformerConfig

_REGISTERS = "embeddings.register_tokens"
_BIASES = {"query_bias": True, "key_bias": False, "value_bias": True, "proj_bias": True}


def _read(values: Values) -> dict[str, Any]:
    query, key, value, output = (flag(values, name, own) for name, own in _BIASES.items())
    if query != value:
        raise ValueError(
            f"query_bias={query} and value_bias={value} are not supported, only equal values."
        )
    return {
        "mixer": Attention(
            num_heads=number(values, "num_attention_heads", 6),
            bias=query,
            key_bias=key,
            output_bias=output,
            dropout=number(values, "attention_dropout", 0.0, float),
            position=GridRotary(base=number(values, "rope_theta", 100.0, float)),
        )
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    mixer = config.only_side.block.mixer
    if not isinstance(mixer, Attention) or not isinstance(mixer.position, GridRotary):
        raise ValueError("each layer there has attention with a rotation over the grid.")
    biases = (mixer.bias, mixer.key_bias, mixer.bias, mixer.output_bias)
    return {
        "num_attention_heads": mixer.num_heads,
        "attention_dropout": mixer.dropout,
        "rope_theta": mixer.position.base,
        **dict(zip(_BIASES, biases, strict=True)),
    }


def _unread(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Return the tensors that checkpoints hold and the model does not read."""
    tensors = {MASK: np.zeros((1, 1, config.hidden_dim), "float32")}
    if not config.stem.num_registers:
        tensors[_REGISTERS] = np.zeros((1, 0, config.hidden_dim), "float32")
    return tensors


_LAYER = {
    **attention("attention.{}_proj", "q", "k", "v", "o"),
    "self_attention_norm": "norm1",
    "feed_forward/gate": "mlp.gate_proj",
    "feed_forward/intermediate": "mlp.up_proj",
    "feed_forward/output": "mlp.down_proj",
    "feed_forward_norm": "norm2",
}
_OURS, _THEIRS = "encoder/layer_{i}/", "layer.{i}."

DINOV3_VIT = Family(
    model_type="dinov3_vit",
    architecture="DINOv3ViTModel",
    fields={
        "hidden_size": ConfigField("hidden_dim", 384),
        "num_hidden_layers": ConfigField("num_layers", 12),
        "intermediate_size": ConfigField("intermediate_dim", 1536),
        "hidden_act": ConfigField("activation", "gelu"),
        "use_gated_mlp": ConfigField("gated", False),
        "mlp_bias": ConfigField("use_bias", True),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-5),
    },
    constants={
        **{name: value for name, value in IMAGE_ENCODER.items() if "attention" not in name},
        "position": "none",
        "trained_residual_scale": True,
    },
    conversions=(registers(patches(224, 16), 0), Conversion(_read, _write)),
    weights=(
        *layers({"encoder/input_patches": "embeddings.patch_embeddings"}, convolution=True),
        WeightLine("encoder/input_class_token", "embeddings.cls_token", row=2),
        WeightLine("encoder/input_registers", _REGISTERS, row=1),
        *layers(_LAYER, _OURS, _THEIRS),
        WeightLine(f"{_OURS}self_attention_scale", f"{_THEIRS}layer_scale1.lambda1"),
        WeightLine(f"{_OURS}feed_forward_scale", f"{_THEIRS}layer_scale2.lambda1"),
        *layers({"encoder/final_norm": "norm"}),
    ),
    computed=_unread,
    names=Names(ignored=(MASK, _REGISTERS)),
)
