"""D-FINE: Peng et al. 2024, https://arxiv.org/abs/2410.13842.

An RT-DETR behind an HGNet, whose decoder refines distributions of the edges of boxes.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.base.family import (
    ACTIVATIONS,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.vision.detr import convolution_lines, numbers
from keras_transformer.checkpoints.families.vision.rt_detr import (
    JOINS,
    LAYER,
    MOST_MAPS,
    NORMS,
    NUMBERS,
    RT_DETR,
    activation_of,
    convolution_and_norm_lines,
    decoder_lines,
    last_projection_lines,
    linear_lines,
    partial_lines,
    projection_lines,
    read_maps,
    read_sampling,
    shares_of_points,
    written_maps,
    written_sampling,
)
from keras_transformer.checkpoints.weights.tables import WeightLine, layers
from keras_transformer.config import TransformerConfig
from keras_transformer.config.box_decoder import (
    MOST_BLOCKS,
    MOST_LAYERS,
    NOISE,
    BoxDecoder,
)
from keras_transformer.config.edge_distribution import MOST_QUALITY_LAYERS
from keras_transformer.support.checking import shorten

_BACKBONE = "backbone_config"
# Published lists of the network, ours, and their defaults.
_STAGES = {
    "stage_out_channels": ("widths", (128, 512, 1024, 2048)),
    "stage_mid_channels": ("inner_widths", (48, 96, 192, 384)),
    "stage_num_blocks": ("depths", (1, 1, 3, 1)),
    "stage_numb_of_layers": ("block_layers", (6, 6, 6, 6)),
    "stage_kernel_size": ("kernel_sizes", (3, 3, 5, 5)),
    "stage_light_block": ("light", (False, False, True, True)),
}
_STEM = (3, 32, 48)
_STEM_STRIDES = [2, 1, 1, 2, 1]


def _read_stem(values: Values) -> dict[str, Any]:
    network = nested(values, _BACKBONE) or {"out_indices": (2, 3, 4)}
    kind = network.get("model_type", "hgnet_v2")
    if kind != "hgnet_v2":
        raise ValueError(
            f"A {_BACKBONE} of model_type {shorten(kind)} is not supported, only 'hgnet_v2'."
        )
    read = {ours: numbers(network, name, usual) for name, (ours, usual) in _STAGES.items()}
    count = len(read["widths"])
    stem = numbers(network, "stem_channels", _STEM)
    if len(stem) != 3:
        raise ValueError(
            f"{_BACKBONE}.stem_channels must be three numbers, received {shorten(stem)}."
        )
    channels, *filters = stem
    # What the other values determine, or checkpoints of this family share.
    wanted = {
        "hidden_act": "relu",
        "num_channels": channels,
        "stem_strides": _STEM_STRIDES,
        "stage_in_channels": [filters[1], *read["widths"][:-1]],
        "stage_downsample": [False] + [True] * (count - 1),
        "stage_downsample_strides": [2] * count,
    }
    usual = {
        "hidden_act": "relu",
        "num_channels": 3,
        "stem_strides": _STEM_STRIDES,
        "stage_in_channels": (48, 128, 512, 1024),
        "stage_downsample": (False, True, True, True),
        "stage_downsample_strides": (2, 2, 2, 2),
    }
    for name, supported in wanted.items():
        found = network.get(name, usual[name])
        found = list(found) if isinstance(found, tuple) else found
        if found != supported:
            raise ValueError(
                f"{_BACKBONE}.{name}={shorten(found)} is not supported, only {supported!r}."
            )
    return {
        "image_size": (640, 640),
        "num_channels": channels,
        "filters": tuple(filters),
        **read,
        "affine": flag(network, "use_learnable_affine_block"),
        "num_maps": read_maps(values, network, read["widths"]) - 1,
        "projection_norm": True,
        "positions": "counts",
    }


def _read(values: Values) -> dict[str, Any]:
    dropout = number(values, "dropout", 0.0, float)
    return {
        "stem": {"kind": "hgnet", **_read_stem(values)},
        "dropout": dropout,
        "attention_dropout": dropout,
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    stem = config.stem
    if getattr(stem, "kind", None) != "hgnet":
        raise ValueError("A checkpoint of this family needs a stem of the kind 'hgnet'.")
    count = len(stem.widths)
    network = {
        "model_type": "hgnet_v2",
        "num_channels": stem.num_channels,
        "stem_channels": [stem.num_channels, *stem.filters],
        "stem_strides": _STEM_STRIDES,
        **{name: list(getattr(stem, ours)) for name, (ours, _) in _STAGES.items()},
        "stage_in_channels": [stem.filters[1], *stem.widths[:-1]],
        "stage_downsample": [False] + [True] * (count - 1),
        "stage_downsample_strides": [2] * count,
        "use_learnable_affine_block": stem.affine,
        "hidden_act": "relu",
        "embedding_size": stem.filters[1],
        "hidden_sizes": list(stem.widths),
        "depths": list(stem.depths),
    }
    return written_maps(config, network)


# Published numbers of the distributions of edges, ours, and their defaults.
_EDGES = {
    "max_num_bins": ("bins", 32, int),
    "up": ("reach", 0.5, float),
    "reg_scale": ("scale", 4.0, float),
    "top_prob_values": ("top", 4, int),
    "lqe_hidden_dim": ("quality_dim", 64, int),
    "lqe_layers": ("quality_layers", 2, int),
}
# What all decoders of this family have.
_DECODER = {
    "join": "csp_elan",
    "map_activation": "silu",
    "project_always": False,
    "value_projection": False,
    "gated": True,
}


def _read_task(values: Values) -> dict[str, Any]:
    counts = {name: each for name, each in NUMBERS.items() if name != "decoder_n_points"}
    decoder = {ours: number(values, name, usual) for name, (ours, usual) in counts.items()}
    last = values.get("eval_idx", -1)
    if last not in (-1, decoder["num_layers"] - 1):
        raise ValueError(
            f"eval_idx={shorten(last)} is not supported, only -1, the last layer of the decoder: "
            "Transformers has further layers behind the one of an earlier number, which it cannot "
            "compute."
        )
    points = values.get("decoder_n_points", 4)
    if not isinstance(points, (list, tuple)):
        points = number(values, "decoder_n_points", 4)
    edges = {ours: number(values, name, *rest) for name, (ours, *rest) in _EDGES.items()}
    return {
        "box_decoder": {
            **decoder,
            **_DECODER,
            "num_points": points,
            "activation": activation_of(values, "decoder_activation_function", "relu"),
            "expansion": number(values, "hidden_expansion", 1.0, float),
            "join_depth": number(values, "depth_mult", 1.0, float),
            "edges": edges,
            **read_sampling(values),
            "num_denoising": number(values, "num_denoising", 100),
            "label_noise_ratio": number(values, "label_noise_ratio", 0.5, float),
            "box_noise_scale": number(values, "box_noise_scale", 1.0, float),
        }
    }


def _write_task(task: Values) -> dict[str, Any]:
    decoder = BoxDecoder.of(task["box_decoder"]).values()
    for name, wanted in _DECODER.items():
        if decoder[name] != wanted:
            raise ValueError(
                f"D-FINE has no `box_decoder` with {name}={shorten(decoder[name])}, only with "
                f"{wanted!r}."
            )
    if decoder["edges"] is None:
        raise ValueError("D-FINE has no `box_decoder` without `edges`.")
    names = {v: k for k, v in reversed(ACTIVATIONS.items())}
    return {
        **{name: decoder[ours] for name, (ours, _) in NUMBERS.items()},
        **{name: decoder["edges"][ours] for name, (ours, *_) in _EDGES.items()},
        "decoder_activation_function": names[decoder["activation"]],
        "activation_function": "silu",
        "hidden_expansion": decoder["expansion"],
        "depth_mult": decoder["join_depth"],
        **written_sampling(decoder),
        **{name: decoder[name] for name in NOISE},
    }


def _shares_of_points(config: TransformerConfig, task: Values) -> Mapping[str, np.ndarray]:
    return shares_of_points(config, task, "num_points_scale")


_PARTS = {"first": "conv1", "wide_0": "conv2", "wide_1": "conv3", "output": "conv4"}


def _pyramid() -> tuple[WeightLine, ...]:
    lines = projection_lines()
    for i in range(MOST_MAPS):
        ours, theirs = f"pyramid/downsample_{i}/", f"encoder.downsample_convs.{i}."
        lines += convolution_and_norm_lines({"place": "conv1", "feature": "conv2"}, ours, theirs)
        for join, name in JOINS.items():
            ours, theirs = f"pyramid/{join}_{i}/", f"encoder.{name}.{i}."
            lines += convolution_and_norm_lines(_PARTS, ours, theirs)
            for j in range(2):
                both = (f"{ours}stage_{j}/", f"{theirs}csp_rep{j + 1}.")
                lines += partial_lines(*both, MOST_BLOCKS)
    return lines


def _decoder() -> tuple[WeightLine, ...]:
    layer = {**LAYER, "gate": "gateway.gate"}
    norms = {**NORMS, "cross_attention_norm": "gateway.norm"}
    lines = (
        *decoder_lines(layer, norms),
        *linear_lines("decoder/first_boxes", "decoder.pre_bbox_head", 3),
        WeightLine("decoder/edges/reach", "decoder.up"),
        WeightLine("decoder/edges/scale", "decoder.reg_scale"),
    )
    for i in range(MOST_LAYERS):
        ours, theirs = f"decoder/edges/quality_{i}/", f"decoder.lqe_layers.{i}.reg_conf.layers."
        table = {f"linear_{j}": str(j) for j in range(MOST_QUALITY_LAYERS)}
        lines += layers(table, ours, theirs)
    return lines


def _network(config: TransformerConfig) -> tuple[WeightLine, ...]:
    """Return the lines of the HGNet, and of the projection of its last map."""
    stem = config.encoder and config.encoder.input
    if getattr(stem, "kind", None) != "hgnet":
        return ()
    lines: list[WeightLine] = []
    folder = "backbone.model."

    def add(ours: str, theirs: str) -> None:
        both = (f"{theirs}.convolution", f"{theirs}.normalization")
        lines.extend(convolution_lines(ours, both, None, folder))
        lines.extend(
            WeightLine(f"encoder/{ours}_affine/{name}", f"{folder}{theirs}.lab.{name}")
            for name in ("scale", "bias")
        )

    for each, name in zip(stem.first_convolutions, ("1", "2a", "2b", "3", "4"), strict=True):
        add(each.name, f"embedder.stem{name}")
    grid = (1, 1)
    for stage, depth in enumerate(stem.depths):
        theirs = f"encoder.stages.{stage}."
        if stage:
            add(stem.narrowing(stage, grid).name, f"{theirs}downsample")
        for block in range(depth):
            its = f"{theirs}blocks.{block}."
            *made, joins = stem.layers_of_block(stage, block, grid)
            for i, layer in enumerate(made):
                names = (".conv1", ".conv2") if len(layer) > 1 else ("",)
                for each, name in zip(layer, names, strict=True):
                    add(each.name, f"{its}layers.{i}{name}")
            for i, each in enumerate(joins):
                add(each.name, f"{its}aggregation.{i}")
    return (*lines, *last_projection_lines(config))


D_FINE = dataclasses.replace(
    RT_DETR,
    model_type="d_fine",
    architecture="DFineModel",
    conversions=(Conversion(_read, _write),),
    required={**RT_DETR.required, "activation_function": "silu"},
    of_config=_network,
    heads={
        "ObjectDetector": PublishedHead(
            weights=(*_pyramid(), *_decoder()),
            values={"class_layers": 1},
            options=(Conversion(_read_task, _write_task),),
            computed=_shares_of_points,
        )
    },
)
