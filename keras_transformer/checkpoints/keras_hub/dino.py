"""DINOv2 and DINOv3 in KerasHub's form.

Their vectors of masks are used in pre-training only, and are written as zeros. Facts are from
KerasHub 0.32, `models/dinov2/*.py` and `models/dinov3/*.py`.
"""

from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.images import IMAGE_ENCODER
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.vision.dinov2 import feed_forward_width
from keras_transformer.checkpoints.families.vision.dinov3_vit import DINOV3_VIT
from keras_transformer.checkpoints.keras_hub.family import (
    HEAD_WIDTH,
    TASK_PREFIX,
    Line,
    layers,
    make_family,
)
from keras_transformer.checkpoints.keras_hub.vision import ENCODER_FIELDS, read_stem, write_stem
from keras_transformer.checkpoints.weights.tables import Names, attention, fused
from keras_transformer.config import TransformerConfig

_STEM = ("image_shape", "patch_size", "num_register_tokens")
_REQUIRED = {"use_mask_token": True}
_NORMS = {"self_attention_norm": "norm1", "feed_forward_norm": "norm2"}
# Values that no output depends on: of training, and of the outputs of single layers.
_UNREAD = ("layer_scale_init_value", "drop_path_rate", "apply_layernorm")
_ANTIALIASED = "bicubic_antialiased"


def _read_stem(values: Values, **constants: Any) -> dict[str, Any]:
    registers = number(values, "num_register_tokens", 0)
    return {"stem": read_stem(values, num_registers=registers, **constants)}


def _write_stem(config: TransformerConfig) -> dict[str, Any]:
    theirs, stem = write_stem(config), config.stem
    return {**theirs, "patch_size": stem.patch_size, "num_register_tokens": stem.num_registers}


def _lines(version: int, table: dict[str, str], **options: Any) -> tuple[Line, ...]:
    """Return the lines of a DINO without its positions and registers."""
    stem = f"layers/dinov{version}_embedding/"
    block = f"layers/dinov{version}_encoder/layers/dinov{version}_layer{{i}}/"
    ours = "encoder/layer_{i}/"
    return (
        *layers({"encoder/input_patches": f"{stem}patch_embeddings/projection"}),
        Line("encoder/input_class_token", f"{stem}vars/0", row=2),
        *layers({**_NORMS, **table}, ours, block, **options),
        Line(f"{ours}self_attention_scale", f"{block}layer_scale1/vars/0"),
        Line(f"{ours}feed_forward_scale", f"{block}layer_scale2/vars/0"),
        *layers({"encoder/final_norm": "layers/layer_normalization"}),
    )


def _names_without(mask: str) -> Names:
    return Names(ignored=(f"{TASK_PREFIX}*", mask))


def _read_dinov2(values: Values) -> dict[str, Any]:
    smooth = flag(values, "antialias_in_interpolation")
    gated = flag(values, "use_swiglu_ffn")
    width = feed_forward_width(number(values, "intermediate_dim", None), 1, gated)
    sizes = {"intermediate_dim": width, "gated": gated, "activation": "silu" if gated else "gelu"}
    interpolation = {"interpolation": _ANTIALIASED} if smooth else {}
    return {**sizes, **_read_stem(values, **interpolation)}


def _write_dinov2(config: TransformerConfig) -> dict[str, Any]:
    width, stem = config.intermediate_dim, _write_stem(config)
    return {
        **stem,
        "position_embedding_shape": stem["image_shape"],
        "antialias_in_interpolation": config.stem.interpolation == _ANTIALIASED,
        "use_swiglu_ffn": config.gated,
        "intermediate_dim": width * 3 // 2 if config.gated else width,
    }


_DINOV2_STEM = "layers/dinov2_embedding/vars/"
_DINOV2_BLOCK = ("encoder/layer_{i}/", "layers/dinov2_encoder/layers/dinov2_layer{i}/")
_DINOV2_TABLE = {
    **attention("attention/attention/{}_dense", "query", "key", "value", "output"),
    "feed_forward/intermediate": "mlp/fc1",
    "feed_forward/output": "mlp/fc2",
}
_GATED = {"when": ("gated", True)}
_DINOV2_GATED = (
    *fused(
        [f"{_DINOV2_BLOCK[0]}feed_forward/{name}" for name in ("gate", "intermediate")],
        f"{_DINOV2_BLOCK[1]}mlp/weights_in",
        layers,
        **_GATED,
    ),
    *layers({"feed_forward/output": "mlp/weights_out"}, *_DINOV2_BLOCK, **_GATED),
)


def _dinov2_positions(config: TransformerConfig) -> tuple[Line, ...]:
    """Return the lines of the registers and of the positions, which are numbered after them."""
    first = 3 if config.stem.num_registers else 2
    # The positions as they are added, and as they were before they were interpolated.
    place, before = (f"{_DINOV2_STEM}{number}" for number in (first, first + 1))
    return (
        Line("encoder/input_registers", f"{_DINOV2_STEM}2", row=1),
        Line("encoder/position_embedding/embeddings", place, copies=(before,), row=1),
    )


_OF_DINOV3 = DINOV3_VIT.conversions[-1]  # of attention
_DINOV3_NAMES = {
    "num_attention_heads": "num_heads",
    "attention_dropout": "attention_dropout",
    "rope_theta": "rope_theta",
    **{f"{name}_bias": f"use_{name}_bias" for name in ("query", "key", "value", "proj")},
}


def _read_dinov3(values: Values) -> dict[str, Any]:
    return _OF_DINOV3.read({n: values[its] for n, its in _DINOV3_NAMES.items() if its in values})


def _write_dinov3(config: TransformerConfig) -> dict[str, Any]:
    return {_DINOV3_NAMES[name]: value for name, value in _OF_DINOV3.write(config).items()}


_DINOV3_TABLE = {
    **attention("attention/{}_dense", "query", "key", "value", "output"),
    "feed_forward/gate": "mlp/gate_proj",
    "feed_forward/intermediate": "mlp/up_proj",
    "feed_forward/output": "mlp/down_proj",
}
_DINOV3_STEM = "layers/dinov3_embedding/vars/"
_FIELDS = {name: ENCODER_FIELDS[name] for name in ("num_layers", "hidden_dim")}

DINO = (
    make_family(
        "dinov2_with_registers",
        "DINOV2",
        {
            **_FIELDS,
            "num_heads": ENCODER_FIELDS["num_heads"],
            "dropout_rate": ENCODER_FIELDS["dropout_rate"],
        },
        {
            **IMAGE_ENCODER,
            "normalization_epsilon": 1e-6,
            "initializer_range": 0.02,
            "trained_residual_scale": True,
        },
        (*_lines(2, _DINOV2_TABLE), *_DINOV2_GATED),
        {},
        conversions=(HEAD_WIDTH, Conversion(_read_dinov2, _write_dinov2)),
        more=(
            "intermediate_dim",
            "use_swiglu_ffn",
            "antialias_in_interpolation",
            "position_embedding_shape",  # before the positions were interpolated
            *_STEM,
            *_UNREAD,
        ),
        required=_REQUIRED,
        of_config=_dinov2_positions,
        computed=lambda config: {
            f"{_DINOV2_STEM}1": np.zeros((1, config.hidden_dim), "float32"),
        },
        names=_names_without(f"{_DINOV2_STEM}1"),
        older=("dinov2", "num_register_tokens"),
    ),
    make_family(
        "dinov3_vit",
        "DINOV3",
        {
            **_FIELDS,
            "intermediate_dim": ConfigField("intermediate_dim", None),
            "hidden_activation": ConfigField("activation", "gelu"),
            "use_gated_mlp": ConfigField("gated", False),
            "use_mlp_bias": ConfigField("use_bias", True),
            "layer_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        },
        {**DINOV3_VIT.constants, "initializer_range": 0.02},
        (
            *_lines(3, _DINOV3_TABLE, apart=False),
            Line("encoder/input_registers", f"{_DINOV3_STEM}2", row=1),
        ),
        {},
        conversions=(
            Conversion(_read_stem, _write_stem),
            Conversion(_read_dinov3, _write_dinov3),
        ),
        more=(*_STEM, *_UNREAD, *_DINOV3_NAMES.values()),
        required=_REQUIRED,
        computed=lambda config: {
            f"{_DINOV3_STEM}1": np.zeros((1, 1, config.hidden_dim), "float32"),
        },
        names=_names_without(f"{_DINOV3_STEM}1"),
    ),
)
