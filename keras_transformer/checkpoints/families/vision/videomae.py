"""VideoMAE: Tong et al. 2022, https://arxiv.org/abs/2203.12602.

A ViT over tubes of a video, with sinusoidal positions and no class token.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.images import FIELDS, IMAGE_ENCODER, LAYER
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.vision.vivit import (
    check_tubes,
    frame_size,
    published_size,
)
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers
from keras_transformer.config import TransformerConfig

_OURS, _THEIRS = "encoder/layer_{i}/", "encoder.layer.{i}."


def _biases() -> tuple[WeightLine, ...]:
    """Return the lines of the biases of queries and values, under their old and new names."""
    return tuple(
        WeightLine(
            f"{_OURS}self_attention/{name}/bias",
            f"{_THEIRS}attention.attention.{name[0]}_bias",
            also=(f"{_THEIRS}attention.attention.{name}.bias",),
        )
        for name in ("query", "value")
    )


def _read(values: Values) -> dict[str, Any]:
    patch = values.get("patch_size", 16)
    if isinstance(patch, (list, tuple)) and patch and all(side == patch[0] for side in patch):
        patch = patch[0]
    stem = {
        "kind": "tubes",
        "num_frames": number(values, "num_frames", 16),
        "frame_size": frame_size(values),
        "tube_frames": number(values, "tubelet_size", 2),
        "patch_size": number({"patch_size": patch}, "patch_size", None),
        "num_channels": number(values, "num_channels", 3),
    }
    return {
        "stem": stem,
        # Older configs have it under the name of ViT's value, though keys have no bias.
        "attention_bias": flag(values, "qkv_bias", values.get("qv_bias", True)),
        "final_normalization": not flag(values, "use_mean_pooling", True),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    check_tubes(config)
    return {
        **published_size(config),
        "tubelet_size": config.stem.tube_frames,
        "patch_size": config.stem.patch_size,
        "qv_bias": config.attention_bias,
        "use_mean_pooling": not config.final_normalization,
    }


def _read_pooling(values: Values) -> dict[str, Any]:
    mean = flag(values, "use_mean_pooling", True)
    return {"pooling": "mean" if mean else "first", "output_norm": mean}


VIDEOMAE = Family(
    model_type="videomae",
    architecture="VideoMAEModel",
    fields=FIELDS,
    constants={**IMAGE_ENCODER, "position": "sinusoidal", "key_bias": False},
    conversions=(Conversion(_read, _write),),
    weights=(
        *layers(
            {"encoder/input_patches": "embeddings.patch_embeddings.projection"}, convolution=True
        ),
        *(
            line
            for line in layers(LAYER, _OURS, _THEIRS)
            if not line.ours.endswith(("query/bias", "key/bias", "value/bias"))
        ),
        *_biases(),
        *layers({"encoder/final_norm": "layernorm"}),
    ),
    heads={
        "VideoClassifier": PublishedHead(
            weights=layers({"output_norm": "fc_norm", "output": "classifier"}),
            # `_write` has the value: a task that pools in another way is refused.
            options=(Conversion(_read_pooling, lambda task: {}),),
        )
    },
    names=Names(
        prefixes=("videomae.",),
        # Tensors of masked pre-training.
        ignored=("decoder.*", "encoder_to_decoder.weight", "mask_token"),
    ),
)
