"""ViViT: Arnab et al. 2021, https://arxiv.org/abs/2103.15691.

A ViT over tubes of a video: its model 1, in which all tubes attend to each other.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.vision.vit import VIT
from keras_transformer.checkpoints.weights.tables import Names, layers
from keras_transformer.config import TransformerConfig


def frame_size(values: Values) -> tuple[int, int]:
    """Return height and width of published frames."""
    size = values.get("image_size", 224)
    return tuple(size) if isinstance(size, (list, tuple)) else (size, size)


def check_tubes(config: TransformerConfig) -> None:
    """Raise ValueError if the config has no stem of tubes."""
    if config.stem is None or config.stem.kind != "tubes":
        raise ValueError("A checkpoint of this family needs a stem of tubes.")


def published_size(config: TransformerConfig) -> dict[str, Any]:
    """Return the published values of a video's size."""
    height, width = config.stem.frame_size
    return {
        "image_size": height if height == width else [height, width],
        "num_frames": config.stem.num_frames,
        "num_channels": config.stem.num_channels,
    }


def _read(values: Values) -> dict[str, Any]:
    tube = values.get("tubelet_size", [2, 16, 16])
    if not isinstance(tube, (list, tuple)) or len(tube) != 3 or tube[1] != tube[2]:
        raise ValueError(
            "tubelet_size must be three numbers, frames, height and width, of which the last two "
            f"are the same, received {tube!r}."
        )
    width = values.get("pooler_output_size")
    if width not in (None, values.get("hidden_size", 768)):
        raise ValueError(f"pooler_output_size={width!r} must be hidden_size.")
    stem = {
        "kind": "tubes",
        "num_frames": number(values, "num_frames", 32),
        "frame_size": frame_size(values),
        "tube_frames": number({"tubelet_size": tube[0]}, "tubelet_size", None),
        "patch_size": number({"tubelet_size": tube[1]}, "tubelet_size", None),
        "num_channels": number(values, "num_channels", 3),
        "class_token": True,
    }
    return {"stem": stem}


def _write(config: TransformerConfig) -> dict[str, Any]:
    check_tubes(config)
    side = config.stem.patch_size
    return {**published_size(config), "tubelet_size": [config.stem.tube_frames, side, side]}


VIVIT = dataclasses.replace(
    VIT,
    model_type="vivit",
    architecture="VivitModel",
    fields={
        **VIT.fields,
        "hidden_act": ConfigField("activation", "gelu_fast"),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-6),
    },
    conversions=(Conversion(_read, _write),),
    heads={"VideoClassifier": PublishedHead(weights=layers({"output": "classifier"}))},
    names=Names(prefixes=("vivit.",)),
)
