"""What families of image models share: the values of their stem, and ViT's block."""

from typing import Any

from keras_transformer.checkpoints.families.family import Conversion, Field, Values
from keras_transformer.checkpoints.families.shared import number
from keras_transformer.checkpoints.weights import Weight, attention, layers
from keras_transformer.config import TransformerConfig

# The constants of a pre-norm encoder of images with learned positions.
IMAGE_ENCODER = {
    "kind": "encoder",
    "vocabulary_size": 0,
    "position": "learned",
    "normalization": "layer_norm",
    "normalize_first": True,
    "attention_output_bias": True,
    "tie_embeddings": True,
}

# The fields and the layers of a block that ViT and BEiT have.
FIELDS = {
    "hidden_size": Field("hidden_dim", 768),
    "num_hidden_layers": Field("num_layers", 12),
    "num_attention_heads": Field("num_heads", 12),
    "intermediate_size": Field("intermediate_dim", 3072),
    "hidden_act": Field("activation", "gelu"),
    "hidden_dropout_prob": Field("dropout", 0.0),
    "attention_probs_dropout_prob": Field("attention_dropout", 0.0),
    "initializer_range": Field("initializer_range", 0.02),
    "layer_norm_eps": Field("normalization_epsilon", 1e-12),
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


def patches(image_size: int, patch_size: int, channels: str = "num_channels", **constants):
    """The conversion of a stem of patches, by the defaults of its config and what is always so."""

    def read(values: Values) -> dict[str, Any]:
        size, patch = values.get("image_size", image_size), values.get("patch_size", patch_size)
        if isinstance(patch, (list, tuple)) and len(set(patch)) == 1:
            patch = patch[0]
        sizes = size if isinstance(size, (list, tuple)) else (size, size)
        stem = {
            "kind": "patches",
            "image_size": tuple(sizes),
            "num_channels": number(values, channels, 3),
            "patch_size": number({"patch_size": patch}, "patch_size", None),
            **constants,
        }
        return {"stem": stem}

    def write(config: TransformerConfig) -> dict[str, Any]:
        stem = config.stem
        if stem is None or stem.kind != "patches":
            raise ValueError("A checkpoint of this family has a stem of patches.")
        height, width = stem.image_size
        return {
            "image_size": height if height == width else [height, width],
            "patch_size": stem.patch_size,
            channels: stem.num_channels,
        }

    return Conversion(read, write)


def patch_weights(embeddings: str, projection: str, positions: str) -> tuple[Weight, ...]:
    """The lines of a stem of patches: their names of its parts, within `embeddings`."""
    return (
        *layers({"encoder/input_patches": projection}, theirs=embeddings, convolution=True),
        Weight("encoder/position_embedding/embeddings", f"{embeddings}{positions}", row=1),
    )
