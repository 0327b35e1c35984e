"""BEiT: Bao et al. 2021, https://arxiv.org/abs/2106.08254.

A ViT with trained biases for distances on the grid of patches, and the normalized mean as output.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
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
from keras_transformer.checkpoints.families.base.shared import flag, unread
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers
from keras_transformer.config import TransformerConfig

_OURS, _THEIRS = "encoder/layer_{i}/", "encoder.layer.{i}."
_TABLE = "relative_position_bias.relative_position_bias_table"
_BIASES = ("use_relative_position_bias", "use_shared_relative_position_bias")


def _read(values: Values) -> dict[str, Any]:
    own, shared = (flag(values, name, False) for name in _BIASES)
    size = values.get("image_size", 224)
    if own and shared:
        raise ValueError(f"{' and '.join(_BIASES)} exclude each other: only one may be true.")
    if (own or shared) and isinstance(size, (list, tuple)) and len(set(size)) > 1:
        raise ValueError(
            f"image_size={size!r}: distance biases are supported only for square images, "
            "since Transformers swaps rows and columns otherwise. Images given to the model "
            "may be of any size."
        )
    mean = flag(values, "use_mean_pooling", True)
    return {
        "grid_bias": "own" if own else "shared" if shared else None,
        "position": "learned" if flag(values, "use_absolute_position_embeddings") else "none",
        "trained_residual_scale": values.get("layer_scale_init_value", 0.1) > 0,
        "mean_pooler": mean,
        "final_normalization": not mean,
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    biases = (config.grid_bias == kind for kind in ("own", "shared"))
    return {
        **dict(zip(_BIASES, biases, strict=True)),
        "use_absolute_position_embeddings": config.position == "learned",
        "layer_scale_init_value": 0.1 if config.trained_residual_scale else 0.0,
        "use_mean_pooling": config.mean_pooler,
        "use_mask_token": False,
    }


BEIT = Family(
    model_type="beit",
    architecture="BeitModel",
    fields=FIELDS,
    constants={**IMAGE_ENCODER, "attention_bias": True, "key_bias": False},
    conversions=(patches(224, 16), Conversion(_read, _write)),
    weights=(
        *patch_weights("embeddings.", "patch_embeddings.projection", "position_embeddings"),
        WeightLine("encoder/input_class_token", "embeddings.cls_token", row=2),
        WeightLine(
            "encoder/grid_bias/embeddings",
            f"encoder.layer.*.attention.attention.{_TABLE}",
            when=("grid_bias", "own"),
        ),
        WeightLine(
            "encoder/grid_bias/embeddings", f"encoder.{_TABLE}", when=("grid_bias", "shared")
        ),
        *layers(LAYER, _OURS, _THEIRS),
        WeightLine(f"{_OURS}self_attention_scale", f"{_THEIRS}lambda_1"),
        WeightLine(f"{_OURS}feed_forward_scale", f"{_THEIRS}lambda_2"),
        *layers({"encoder/final_norm": "layernorm", "pooler_norm": "pooler.layernorm"}),
    ),
    heads={"ImageClassifier": PublishedHead(weights=layers({"output": "classifier"}))},
    names=Names(
        prefixes=("beit.",),
        # Tensors of masked pre-training, with a norm after the model.
        ignored=("embeddings.mask_token", *unread("lm_head", "layernorm")),
    ),
)
