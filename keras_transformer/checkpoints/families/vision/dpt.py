"""DPT: Ranftl et al. 2021, https://arxiv.org/abs/2103.13413; a ViT whose states become maps."""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.images import LAYER, patch_weights, patches
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.vision.vit import VIT
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers
from keras_transformer.config.fusion import SCALES
from keras_transformer.support.checking import shorten

_COUNT = len(SCALES)
# The residual units of a fusion, by their numbers; the first fusion has only the second.
_UNITS = (("skip", 1), ("residual", 2))


def norm_lines(ours: str, theirs: str, outside: bool = True) -> tuple[WeightLine, ...]:
    """Return the lines of a batch norm, by default outside of the bare model."""
    pairs = {
        "gamma": "weight",
        "beta": "bias",
        "moving_mean": "running_mean",
        "moving_variance": "running_var",
    }
    counter = f"{theirs}.num_batches_tracked"
    return tuple(
        WeightLine(
            f"{ours}/{mine}",
            f"{theirs}.{its}",
            outside=outside,
            counter=counter if mine == "moving_mean" else None,
        )
        for mine, its in pairs.items()
    )


def fusion_lines() -> tuple[WeightLine, ...]:
    """Return the lines of a `FusionDecoder`, which DPT and Depth Anything name alike."""
    stage, fusion = "neck.reassemble_stage.", "neck.fusion_stage.layers."
    table = {}
    for i in range(_COUNT):
        table |= {
            f"decoder/project_{i}": f"{stage}layers.{i}.projection",
            f"decoder/resize_{i}": f"{stage}layers.{i}.resize",
            f"decoder/feature_{i}": f"neck.convs.{i}",
            f"decoder/fuse_{i}/output": f"{fusion}{i}.projection",
        }
        for unit, number_ in _UNITS[not i :]:
            theirs = f"{fusion}{i}.residual_layer{number_}.convolution"
            table |= {f"decoder/fuse_{i}/{unit}/convolution_{j}": f"{theirs}{j}" for j in (1, 2)}
    lines = layers(table, convolution=True, outside=True)
    for i in range(_COUNT):
        lines += layers({f"decoder/readout_{i}": f"{stage}readout_projects.{i}.0"}, outside=True)
        for unit, number_ in _UNITS[not i :]:
            for j in (1, 2):
                theirs = f"{fusion}{i}.residual_layer{number_}.batch_norm{j}"
                lines += norm_lines(f"decoder/fuse_{i}/{unit}/norm_{j}", theirs)
    return lines


# The first fusion has no map to skip to, but checkpoints hold its weights.
UNUSED = tuple(
    f"neck.fusion_stage.layers.0.residual_layer1.{layer}{j}.{name}"
    for j in (1, 2)
    for layer, names in (
        ("convolution", ("weight", "bias")),
        ("batch_norm", ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    )
    for name in names
)


def read_fusion(values: Values) -> dict[str, Any]:
    """Return the decoder's values, without `layers` and `final_norm`, from a published config."""
    scales = values.get("reassemble_factors", SCALES)
    if scales not in (SCALES, list(SCALES)):
        raise ValueError(f"reassemble_factors={scales!r} is not supported, only {list(SCALES)}.")
    if values.get("head_in_index", -1) != -1:
        raise ValueError(f"head_in_index={values['head_in_index']!r} is not supported, only -1.")
    return {
        "channels": values.get("neck_hidden_sizes") or [96, 192, 384, 768],
        "features": number(values, "fusion_hidden_size", 256),
    }


def read_blocks(values: Values, name: str) -> list[int]:
    """Return a published list of numbers of blocks. Raises ValueError if it is something else."""
    given = values.get(name)
    if not isinstance(given, (list, tuple)):
        raise ValueError(f"{name} must be a list of whole numbers, received {shorten(given)}.")
    return [number({name: i}, name, None) for i in given]


def write_fusion(decoder: Values) -> dict[str, Any]:
    """Return the published values of a decoder: the reverse of `read_fusion`."""
    return {
        "neck_hidden_sizes": list(decoder["channels"]),
        "fusion_hidden_size": decoder["features"],
        "reassemble_factors": list(SCALES),
        "head_in_index": -1,
    }


def _read(values: Values) -> dict[str, Any]:
    norm, bias = (values.get(f"use_{name}_in_fusion_residual") for name in ("batch_norm", "bias"))
    if bias is not None and bool(bias) == bool(norm):
        raise ValueError(
            f"use_bias_in_fusion_residual={bias!r} with use_batch_norm_in_fusion_residual={norm!r} "
            "is not supported: the convolutions have either biases or batch norms."
        )
    if values.get("add_projection"):
        raise ValueError("add_projection=true is not supported.")
    layers_ = read_blocks({"backbone_out_indices": (2, 5, 8, 11), **values}, "backbone_out_indices")
    decoder = {
        **read_fusion(values),
        "layers": [i + 1 for i in layers_],
        "readout": values.get("readout_type", "project"),
        "final_norm": False,
        "batch_norm": bool(norm),
    }
    return {"decoder": decoder}


def _write(task: Values) -> dict[str, Any]:
    decoder = task["decoder"]
    if decoder["final_norm"]:
        raise ValueError("A dpt checkpoint's decoder reads states without the final norm.")
    return {
        **write_fusion(decoder),
        "backbone_out_indices": [i - 1 for i in decoder["layers"]],
        "readout_type": decoder["readout"],
        "use_batch_norm_in_fusion_residual": decoder["batch_norm"],
        "use_bias_in_fusion_residual": not decoder["batch_norm"],
        "add_projection": False,
        "use_auxiliary_head": False,
    }


_OPTION = Conversion(_read, _write)
DEPTH = ("half", "hidden", "output")

DPT = dataclasses.replace(
    VIT,
    model_type="dpt",
    architecture="DPTModel",
    conversions=(patches(384, 16),),
    required={"pooler_act": "tanh", "is_hybrid": False, "backbone_config": None},
    weights=(
        *patch_weights("embeddings.", "patch_embeddings.projection", "position_embeddings"),
        WeightLine("encoder/input_class_token", "embeddings.cls_token", row=2),
        *layers(LAYER, "encoder/layer_{i}/", "encoder.layer.{i}."),
        *layers({"encoder/final_norm": "layernorm", "pooler": "pooler.dense"}),
    ),
    heads={
        "DepthEstimator": PublishedHead(
            weights=(
                *fusion_lines(),
                *layers(
                    dict(zip(DEPTH, ("head.head.0", "head.head.2", "head.head.4"), strict=True)),
                    convolution=True,
                    outside=True,
                ),
            ),
            options=(_OPTION,),
        ),
        "ImageSegmenter": PublishedHead(
            weights=(
                *fusion_lines(),
                *layers(
                    {"hidden": "head.head.0", "output": "head.head.4"},
                    convolution=True,
                    outside=True,
                ),
                *norm_lines("hidden_norm", "head.head.1"),
            ),
            dropout="semantic_classifier_dropout",
            options=(_OPTION,),
        ),
    },
    # The auxiliary head is used in training only.
    names=Names(prefixes=("dpt.",), ignored=("auxiliary_head.*", "neck.*", "head.*", *UNUSED)),
)
