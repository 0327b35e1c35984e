"""Depth Anything: Yang et al. 2024, https://arxiv.org/abs/2406.09414; DINOv2 with DPT's head."""

import re
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.vision.dinov2 import DINOV2
from keras_transformer.checkpoints.families.vision.dpt import (
    DEPTH,
    UNUSED,
    fusion_lines,
    read_blocks,
    read_fusion,
    write_fusion,
)
from keras_transformer.checkpoints.weights.tables import Names, layers
from keras_transformer.config import TransformerConfig
from keras_transformer.support.checking import shorten

# Transformers' values for a backbone that the config does not describe.
_USUAL = {"image_size": 518, "hidden_size": 384, "num_attention_heads": 6}
_STAGE = re.compile(r"stage(\d{1,5})")
_RELATIVE, _METRIC = "relative", "metric"


def _backbone(values: Values) -> dict[str, Any]:
    given = nested(values, "backbone_config")
    if given.get("model_type", "dinov2") != "dinov2":
        raise ValueError(f"The backbone {given['model_type']!r} is not supported, only 'dinov2'.")
    return given or {**_USUAL, "out_indices": [9, 10, 11, 12]}


def _read(values: Values) -> dict[str, Any]:
    return dict(DINOV2.config(_backbone(values)).stated())


def _write(config: TransformerConfig) -> dict[str, Any]:
    theirs = DINOV2.published_config(config)
    patch = theirs["patch_size"]
    return {
        "backbone_config": {n: v for n, v in theirs.items() if n != "architectures"},
        "patch_size": patch,
        "reassemble_hidden_size": config.hidden_dim,
    }


def _read_task(values: Values) -> dict[str, Any]:
    backbone = _backbone(values)
    depth, largest = values.get("depth_estimation_type", _RELATIVE), values.get("max_depth") or 1
    if depth not in (_RELATIVE, _METRIC):
        raise ValueError(
            f"depth_estimation_type={depth!r} is not supported, only {_RELATIVE!r} and {_METRIC!r}."
        )
    if depth != _METRIC and largest != 1:
        raise ValueError(f"max_depth={largest!r} is not supported for relative depths.")
    decoder = {
        **read_fusion({"neck_hidden_sizes": (48, 96, 192, 384), "fusion_hidden_size": 64} | values),
        "final_norm": backbone.get("apply_layernorm", True),
        "layers": _blocks(backbone),
        "readout": "ignore",
        "batch_norm": False,
    }
    return {
        "decoder": decoder,
        "max_depth": largest if depth == _METRIC else None,
        "depth_features": number(values, "head_hidden_size", 32),
    }


def _blocks(backbone: Values) -> list[int]:
    """Return the numbers of blocks behind which states are read."""
    if backbone.get("out_indices") is not None:
        return read_blocks(backbone, "out_indices")
    named = backbone.get("out_features")
    found = [_STAGE.fullmatch(str(name)) for name in named] if isinstance(named, list) else [None]
    if None in found:
        raise ValueError(
            "out_features of backbone_config must be a list of names such as 'stage12', received "
            f"{shorten(named)}."
        )
    return [int(each[1]) for each in found]


def _write_task(task: Values) -> dict[str, Any]:
    decoder, largest = task["decoder"], task.get("max_depth")
    layers_ = list(decoder["layers"])
    return {
        **write_fusion(decoder),
        "backbone_config": {
            "out_indices": layers_,
            "out_features": [f"stage{i}" for i in layers_],
            "reshape_hidden_states": False,
            "apply_layernorm": decoder["final_norm"],
        },
        "depth_estimation_type": _RELATIVE if largest is None else _METRIC,
        # Transformers takes whole metres only.
        "max_depth": 1 if largest is None else int(largest) if largest == int(largest) else largest,
        "head_hidden_size": task["depth_features"],
    }


DEPTH_ANYTHING = Family(
    model_type="depth_anything",
    architecture="DepthAnythingModel",
    bare=False,
    fields={},
    constants=DINOV2.constants,
    conversions=(Conversion(_read, _write),),
    weights=DINOV2.weights,
    heads={
        "DepthEstimator": PublishedHead(
            weights=(
                *fusion_lines(),
                *layers(
                    dict(zip(DEPTH, ("head.conv1", "head.conv2", "head.conv3"), strict=True)),
                    convolution=True,
                    outside=True,
                ),
            ),
            options=(Conversion(_read_task, _write_task),),
        )
    },
    names=Names(
        prefixes=("backbone.",),
        ignored=(*DINOV2.names.ignored, "neck.*", "head.*", *UNUSED),
    ),
)
