"""DINOv2: Oquab et al. 2023, https://arxiv.org/abs/2304.07193.

A ViT with a trained factor for each feature of a sub-layer's output; the giant model is gated.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.images import IMAGE_ENCODER, patch_weights, patches
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, attention, fused, layers
from keras_transformer.config import TransformerConfig

_LAYER = {
    **attention(
        "attention.{}", "attention.query", "attention.key", "attention.value", "output.dense"
    ),
    "self_attention_norm": "norm1",
    "feed_forward/intermediate": "mlp.fc1",
    "feed_forward/output": "mlp.fc2",
    "feed_forward_norm": "norm2",
}
_OURS, _THEIRS = "encoder/layer_{i}/", "encoder.layer.{i}."
_BRANCHES = [f"{_OURS}feed_forward/{name}" for name in ("gate", "intermediate")]
_GATED = {"when": ("gated", True)}


def feed_forward_width(hidden: int, ratio: float, gated: bool) -> int:
    """Return the feed-forward width; with a gate, two thirds of it, rounded to a multiple of 8."""
    width = int(hidden * ratio)
    return (int(width * 2 / 3) + 7) // 8 * 8 if gated else width


def _read_width(values: Values) -> dict[str, Any]:
    gated = flag(values, "use_swiglu_ffn", False)
    sizes = number(values, "hidden_size", 768), number(values, "mlp_ratio", 4, float)
    width = {"intermediate_dim": feed_forward_width(*sizes, gated), "gated": gated}
    return {**width, "activation": "silu"} if gated else width


def _write_width(config: TransformerConfig) -> dict[str, Any]:
    hidden, wanted = config.hidden_dim, config.intermediate_dim
    exact = wanted / hidden * (1.5 if config.gated else 1)
    ratios = (round(exact), exact, *(round(exact * k) / k for k in (2, 4, 8, 16)))
    fits = [r for r in ratios if feed_forward_width(hidden, r, config.gated) == wanted]
    if not fits:
        raise ValueError(f"intermediate_dim={wanted} is not a multiple of hidden_dim={hidden}.")
    theirs = {"mlp_ratio": fits[0], "use_swiglu_ffn": config.gated}
    return {**theirs, "hidden_act": "gelu"} if config.gated else theirs


# The vector of masks is used in masked pre-training only.
MASK = "embeddings.mask_token"
_NO_MASK = Conversion(lambda values: {}, lambda config: {"use_mask_token": False})
WIDTH = Conversion(_read_width, _write_width)

DINOV2 = Family(
    model_type="dinov2",
    architecture="Dinov2Model",
    fields={
        "hidden_size": ConfigField("hidden_dim", 768),
        "num_hidden_layers": ConfigField("num_layers", 12),
        "num_attention_heads": ConfigField("num_heads", 12),
        "hidden_act": ConfigField("activation", "gelu"),
        "hidden_dropout_prob": ConfigField("dropout", 0.0),
        "attention_probs_dropout_prob": ConfigField("attention_dropout", 0.0),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-6),
        "qkv_bias": ConfigField("attention_bias", True),
    },
    constants={**IMAGE_ENCODER, "trained_residual_scale": True},
    conversions=(patches(224, 14), WIDTH, _NO_MASK),
    weights=(
        *patch_weights("embeddings.", "patch_embeddings.projection", "position_embeddings"),
        WeightLine("encoder/input_class_token", "embeddings.cls_token", row=2),
        *layers(_LAYER, _OURS, _THEIRS),
        *fused(_BRANCHES, f"{_THEIRS}mlp.weights_in", **_GATED),
        *layers({"feed_forward/output": "mlp.weights_out"}, _OURS, _THEIRS, **_GATED),
        WeightLine(f"{_OURS}self_attention_scale", f"{_THEIRS}layer_scale1.lambda1"),
        WeightLine(f"{_OURS}feed_forward_scale", f"{_THEIRS}layer_scale2.lambda1"),
        *layers({"encoder/final_norm": "layernorm"}),
    ),
    heads={
        "ImageClassifier": PublishedHead(
            weights=layers({"output": "classifier"}), values={"pooling": "first_and_mean"}
        )
    },
    names=Names(prefixes=("dinov2.",), ignored=(MASK,)),
)
