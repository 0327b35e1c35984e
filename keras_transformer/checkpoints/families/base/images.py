"""Parts shared by image families: the values of their stem, and ViT's block."""

from typing import Any

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.weights.tables import WeightLine, attention, layers
from keras_transformer.config import TransformerConfig

# Constants of a pre-norm image encoder with learned positions.
IMAGE_ENCODER = {
    "kind": "encoder",
    "vocabulary_size": 0,
    "position": "learned",
    "normalization": "layer_norm",
    "normalize_first": True,
    "attention_output_bias": True,
    "tie_embeddings": True,
}

# Fields and block layers that ViT and BEiT share.
FIELDS = {
    "hidden_size": ConfigField("hidden_dim", 768),
    "num_hidden_layers": ConfigField("num_layers", 12),
    "num_attention_heads": ConfigField("num_heads", 12),
    "intermediate_size": ConfigField("intermediate_dim", 3072),
    "hidden_act": ConfigField("activation", "gelu"),
    "hidden_dropout_prob": ConfigField("dropout", 0.0),
    "attention_probs_dropout_prob": ConfigField("attention_dropout", 0.0),
    "initializer_range": ConfigField("initializer_range", 0.02),
    "layer_norm_eps": ConfigField("normalization_epsilon", 1e-12),
}
LAYER = {
    **attention(
        "attention.{}", "attention.query", "attention.key", "attention.value", "output.dense"
    ),
    "self_attention_norm": "layernorm_before",
    "feed_forward/intermediate": "intermediate.dense",
    "feed_forward/output": "output.dense",
    "feed_forward_norm": "layernorm_after",
}


def square_patch(values: Values, usual: int) -> int:
    """Return the side of a patch, which may be given as two that are equal."""
    patch = values.get("patch_size", usual)
    if isinstance(patch, (list, tuple)) and patch and all(side == patch[0] for side in patch):
        patch = patch[0]
    return number({"patch_size": patch}, "patch_size", None)


def patches(image_size: int, patch_size: int, channels: str = "num_channels", **constants):
    """Return the conversion of a stem of patches, given the published defaults."""

    def read(values: Values) -> dict[str, Any]:
        size = values.get("image_size", image_size)
        sizes = size if isinstance(size, (list, tuple)) else (size, size)
        stem = {
            "kind": "patches",
            "image_size": tuple(sizes),
            "num_channels": number(values, channels, 3),
            "patch_size": square_patch(values, patch_size),
            **constants,
        }
        return {"stem": stem}

    def write(config: TransformerConfig) -> dict[str, Any]:
        stem = config.stem
        if stem is None or stem.kind != "patches":
            raise ValueError("A checkpoint of this family needs a stem of patches.")
        height, width = stem.image_size
        return {
            "image_size": height if height == width else [height, width],
            "patch_size": stem.patch_size,
            channels: stem.num_channels,
        }

    return Conversion(read, write)


def registers(stem: Conversion, usual: int) -> Conversion:
    """Return the conversion of a stem of patches with registers, given their published number."""

    def read(values: Values) -> dict[str, Any]:
        found = stem.read(values)["stem"]
        return {"stem": {**found, "num_registers": number(values, "num_register_tokens", usual)}}

    def write(config: TransformerConfig) -> dict[str, Any]:
        return {**stem.write(config), "num_register_tokens": config.stem.num_registers}

    return Conversion(read, write)


def patch_weights(embeddings: str, projection: str, positions: str) -> tuple[WeightLine, ...]:
    """Return the lines of a stem of patches, by their names within `embeddings`."""
    return (
        *layers({"encoder/input_patches": projection}, theirs=embeddings, convolution=True),
        WeightLine("encoder/position_embedding/embeddings", f"{embeddings}{positions}", row=1),
    )
