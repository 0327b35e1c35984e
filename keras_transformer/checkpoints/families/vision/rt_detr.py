"""RT-DETR: Zhao et al. 2023, https://arxiv.org/abs/2304.08069.

RT-DETRv2: Lv et al. 2024, https://arxiv.org/abs/2407.17140.

A ResNet, an encoder of the places of its last map, and a head: convolutions that join the maps of
several stages, and a decoder whose queries are chosen among their places.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.base.family import (
    ACTIVATIONS,
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.seq2seq.bart import stack
from keras_transformer.checkpoints.families.vision.detr import (
    DEPTHS,
    WIDTHS,
    network_lines,
    numbers,
)
from keras_transformer.checkpoints.families.vision.dpt import norm_lines
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, attention, layers
from keras_transformer.config import TransformerConfig
from keras_transformer.config.box_decoder import BLOCKS, MOST_LAYERS, NOISE, BoxDecoder
from keras_transformer.config.prompted import names_of_linear
from keras_transformer.support.checking import shorten

_BACKBONE = "backbone_config"
# Values of a ResNet that checkpoints of this family share.
_SUPPORTED = {
    "hidden_act": "relu",
    "downsample_in_first_stage": False,
    "downsample_in_bottleneck": False,
}
# More maps than a network has stages, most of whose tensors have lines here.
MOST_MAPS = 8
_SIZE = (640, 640)


def _read_stem(values: Values) -> dict[str, Any]:
    network = nested(values, _BACKBONE) or {"out_indices": (2, 3, 4)}
    kind = network.get("model_type", "rt_detr_resnet")
    if kind != "rt_detr_resnet" or flag(values, "use_timm_backbone"):
        raise ValueError(
            f"A {_BACKBONE} of model_type {shorten(kind)} is not supported, only "
            "'rt_detr_resnet' without timm."
        )
    for name, supported in _SUPPORTED.items():
        if network.get(name, supported) != supported:
            raise ValueError(
                f"{_BACKBONE}.{name}={shorten(network[name])} is not supported, only {supported!r}."
            )
    depths = numbers(network, "depths", DEPTHS["resnet50"])
    widths = numbers(network, "hidden_sizes", WIDTHS)
    block, filters = network.get("layer_type", "bottleneck"), number(network, "embedding_size", 64)
    if block == "basic" and not [filters, *widths] == [widths[0], *sorted(set(widths))]:
        raise ValueError(
            f"{_BACKBONE}.layer_type='basic' needs an embedding_size equal to the first of "
            f"hidden_sizes, which must grow, received {filters} and {shorten(widths)}."
        )
    return {
        "image_size": _SIZE,
        "num_channels": number(network, "num_channels", 3),
        "filters": filters,
        "widths": widths,
        "depths": depths,
        "block": block,
        "variant": "d",
        "num_maps": read_maps(values, network, widths) - 1,
        "projection_norm": True,
        "positions": "counts",
    }


def read_maps(values: Values, network: Values, widths: Sequence[int]) -> int:
    """Return the number of maps that a decoder reads of a network.

    Args:
        values: the published config.
        network: the network's own config, with `out_indices` or `out_features`.
        widths: features of the maps of all of its stages.

    Raises:
        ValueError: unless they belong to the last stages, or if other values contradict them.
    """
    count = len(widths)
    given = network.get("out_indices")
    if given is None:
        named = network.get("out_features") or [f"stage{count}"]
        stages = [f"stage{i}" for i in range(count + 1)]
        given = [stages.index(name) if name in stages else None for name in named]
    given = [i + count + 1 if type(i) is int and i < 0 else i for i in given]
    levels = len(given)
    if given != list(range(count + 1 - levels, count + 1)) or levels > count:
        raise ValueError(
            f"{_BACKBONE}.out_indices={shorten(given)} is not supported, only the last stages of "
            f"{count}."
        )
    width = number(values, "encoder_hidden_dim", 256)
    wanted = {
        "encoder_in_channels": list(widths)[count - levels :],
        "decoder_in_channels": [width] * levels,
        "encode_proj_layers": [levels - 1],
        "num_feature_levels": levels,
    }
    usual = {
        "encoder_in_channels": (512, 1024, 2048),
        "decoder_in_channels": (256, 256, 256),
        "encode_proj_layers": (2,),
        "num_feature_levels": 3,
    }
    for name, supported in wanted.items():
        found = values.get(name, usual[name])
        found = list(found) if isinstance(found, tuple) else found
        if found != supported:
            raise ValueError(
                f"{name}={shorten(found)} is not supported with {levels} maps of the network, only "
                f"{supported}."
            )
    return levels


def _read(values: Values) -> dict[str, Any]:
    dropout = number(values, "dropout", 0.0, float)
    return {
        "stem": {"kind": "resnet", **_read_stem(values)},
        "dropout": dropout,
        "attention_dropout": dropout,
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    stem = config.stem
    if getattr(stem, "kind", None) != "resnet":
        raise ValueError("A checkpoint of this family needs a stem of the kind 'resnet'.")
    network = {
        "model_type": "rt_detr_resnet",
        "num_channels": stem.num_channels,
        "embedding_size": stem.filters,
        "hidden_sizes": list(stem.widths),
        "depths": list(stem.depths),
        "layer_type": stem.block,
        **_SUPPORTED,
    }
    return written_maps(config, network)


def written_maps(config: TransformerConfig, network: dict[str, Any]) -> dict[str, Any]:
    """Return the published values of the maps that a decoder reads, and the network's with them."""
    stem = config.stem
    levels, count = stem.num_maps + 1, len(stem.depths)
    last = range(count + 1 - levels, count + 1)
    stages = {"out_features": [f"stage{i}" for i in last], "out_indices": list(last)}
    return {
        _BACKBONE: {**network, **stages},
        "encoder_in_channels": [*stem.map_widths, stem.widths[-1]],
        "decoder_in_channels": [config.hidden_dim] * levels,
        "encode_proj_layers": [levels - 1],
        "feat_strides": [2 ** (i + 1) for i in last],
        "num_feature_levels": levels,
        "dropout": config.dropout,
    }


def activation_of(values: Values, name: str, usual: str) -> str:
    """Return our name of a published activation. Raises ValueError if it is unknown."""
    given = values.get(name, usual)
    if not isinstance(given, str) or given not in ACTIVATIONS:
        raise ValueError(f"{name}={shorten(given)} is not supported.")
    return ACTIVATIONS[given]


# Published numbers of the decoder, ours, and their defaults.
NUMBERS = {
    "num_queries": ("num_queries", 300),
    "d_model": ("width", 256),
    "decoder_layers": ("num_layers", 6),
    "decoder_attention_heads": ("num_heads", 8),
    "decoder_n_points": ("num_points", 4),
    "decoder_ffn_dim": ("intermediate_dim", 1024),
}


def _read_task(values: Values) -> dict[str, Any]:
    decoder = {ours: number(values, name, usual) for name, (ours, usual) in NUMBERS.items()}
    decoder |= {
        "activation": activation_of(values, "decoder_activation_function", "relu"),
        "expansion": number(values, "hidden_expansion", 1.0, float),
        "map_activation": activation_of(values, "activation_function", "silu"),
        "num_denoising": number(values, "num_denoising", 100),
        "label_noise_ratio": number(values, "label_noise_ratio", 0.5, float),
        "box_noise_scale": number(values, "box_noise_scale", 1.0, float),
    }
    return {"box_decoder": decoder}


def _write_task(task: Values) -> dict[str, Any]:
    decoder = BoxDecoder.of(task["box_decoder"]).values()
    if (decoder["offset_scale"], decoder["sampling"]) != (0.5, "linear"):
        raise ValueError("Only RT-DETRv2 has another `offset_scale` or `sampling`.")
    return _written(task)


# What decoders of other families have otherwise.
_SHARED = ("join", "join_depth", "project_always", "value_projection", "gated", "edges")


def _written(task: Values) -> dict[str, Any]:
    decoder, usual = BoxDecoder.of(task["box_decoder"]).values(), BoxDecoder().values()
    for name in _SHARED:
        if decoder[name] != usual[name]:
            raise ValueError(
                f"RT-DETR has no `box_decoder` with {name}={shorten(decoder[name])}, only with "
                f"{usual[name]!r}."
            )
    if not isinstance(decoder["num_points"], int):
        raise ValueError(
            "RT-DETR has as many `num_points` for each map, received "
            f"{shorten(decoder['num_points'])}."
        )
    names = {v: k for k, v in reversed(ACTIVATIONS.items())}
    return {
        **{name: decoder[ours] for name, (ours, _) in NUMBERS.items()},
        "decoder_activation_function": names[decoder["activation"]],
        "hidden_expansion": decoder["expansion"],
        "activation_function": names[decoder["map_activation"]],
        **{name: decoder[name] for name in NOISE},
    }


# RT-DETRv2's names of how a map is read.
SAMPLINGS = {"default": "linear", "discrete": "nearest"}


def _read_second(values: Values) -> dict[str, Any]:
    levels = values.get("num_feature_levels", 3)
    if values.get("decoder_n_levels", 3) != levels:
        raise ValueError(
            f"decoder_n_levels={shorten(values.get('decoder_n_levels', 3))} is not supported with "
            f"num_feature_levels={levels}, only the same number."
        )
    return {"box_decoder": _read_task(values)["box_decoder"] | read_sampling(values)}


def read_sampling(values: Values) -> dict[str, Any]:
    """Return how maps are read, by RT-DETRv2's names. Raises ValueError if it is unknown."""
    method = values.get("decoder_method", "default")
    if not isinstance(method, str) or method not in SAMPLINGS:
        raise ValueError(f"decoder_method={shorten(method)} is not supported, only {[*SAMPLINGS]}.")
    scale = number(values, "decoder_offset_scale", 0.5, float)
    return {"offset_scale": scale, "sampling": SAMPLINGS[method]}


def written_sampling(decoder: Values) -> dict[str, Any]:
    """Return what `read_sampling` reads, of the values of a `BoxDecoder`."""
    names = {ours: name for name, ours in SAMPLINGS.items()}
    return {
        "decoder_offset_scale": decoder["offset_scale"],
        "decoder_method": names[decoder["sampling"]],
    }


def _write_second(task: Values) -> dict[str, Any]:
    decoder = BoxDecoder.of(task["box_decoder"]).values()
    return {**_written(task), **written_sampling(decoder)}


def _shares_of_points(config: TransformerConfig, task: Values) -> Mapping[str, np.ndarray]:
    """Return what RT-DETRv2 multiplies distances by: a number for each point, in each layer."""
    return shares_of_points(config, task, "n_points_scale")


def shares_of_points(
    config: TransformerConfig, task: Values, name: str
) -> Mapping[str, np.ndarray]:
    """Return a number for each point, in each layer, of this name in published checkpoints."""
    decoder = BoxDecoder.of(task["box_decoder"])
    points = decoder.points(config.stem.num_maps + 1)
    shares = np.concatenate([np.full(count, 1 / count, "float32") for count in points])
    return {
        f"model.decoder.layers.{i}.encoder_attn.{name}": shares for i in range(decoder.num_layers)
    }


def normed_lines(ours: str, kernel: str, norm: str) -> tuple[WeightLine, ...]:
    """Return the lines of a convolution without bias and of its batch norm."""
    return (
        WeightLine(f"{ours}/convolution/kernel", f"{kernel}.weight", convolution=True),
        *norm_lines(f"{ours}/norm", norm, outside=False),
    )


def linear_lines(ours: str, theirs: str, depth: int) -> tuple[WeightLine, ...]:
    """Return the lines of linear layers behind each other."""
    names = enumerate(names_of_linear(depth))
    return layers({f"{ours}/{name}": f"{theirs}.layers.{i}" for i, name in names})


def norm_pair(ours: str, theirs: str) -> tuple[WeightLine, ...]:
    """Return the lines of a layer norm."""
    pairs = (("gamma", "weight"), ("beta", "bias"))
    return tuple(WeightLine(f"{ours}/{mine}", f"{theirs}.{its}") for mine, its in pairs)


def partial_lines(ours: str, theirs: str, blocks: int) -> tuple[WeightLine, ...]:
    """Return the lines of a `PartialStage` with at most this many blocks."""
    table = {"first": "conv1", "second": "conv2", "output": "conv3"}
    for j in range(blocks):
        table |= {f"block_{j}/wide": f"bottlenecks.{j}.conv1"}
        table |= {f"block_{j}/narrow": f"bottlenecks.{j}.conv2"}
    return convolution_and_norm_lines(table, ours, theirs)


def convolution_and_norm_lines(
    table: Mapping[str, str], ours: str, theirs: str
) -> tuple[WeightLine, ...]:
    """Return the lines of convolutions with norms, by a table of our names and published ones."""
    lines: tuple[WeightLine, ...] = ()
    for part, name in table.items():
        lines += normed_lines(f"{ours}{part}", f"{theirs}{name}.conv", f"{theirs}{name}.norm")
    return lines


# Convolutions that join maps, by our names and published ones.
JOINS = {"top_down": "fpn_blocks", "bottom_up": "pan_blocks"}


def projection_lines() -> tuple[WeightLine, ...]:
    """Return the lines of the convolutions before and behind the places where maps are joined."""
    lines: tuple[WeightLine, ...] = ()
    for i in range(MOST_MAPS):
        its = f"encoder_input_proj.{i}."
        lines += normed_lines(f"pyramid/project_{i}", f"{its}0", f"{its}1")
        lines += convolution_and_norm_lines(
            {f"lateral_{i}": f"lateral_convs.{i}", f"downsample_{i}": f"downsample_convs.{i}"},
            "pyramid/",
            "encoder.",
        )
    return lines


def _pyramid() -> tuple[WeightLine, ...]:
    lines = projection_lines()
    for i in range(MOST_MAPS):
        for ours, theirs in JOINS.items():
            lines += partial_lines(f"pyramid/{ours}_{i}/", f"encoder.{theirs}.{i}.", BLOCKS)
    return lines


LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "out"),
    "cross_attention/offsets": "encoder_attn.sampling_offsets",
    "cross_attention/weights": "encoder_attn.attention_weights",
    "cross_attention/value": "encoder_attn.value_proj",
    "cross_attention/output": "encoder_attn.output_proj",
    "intermediate": "fc1",
    "output": "fc2",
}
NORMS = {
    "self_attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward_norm": "final_layer_norm",
}


def decoder_lines(
    layer: Mapping[str, str] = LAYER, norms: Mapping[str, str] = NORMS
) -> tuple[WeightLine, ...]:
    """Return the lines of a `RefiningDecoder`, by tables of the names in a layer."""
    lines: tuple[WeightLine, ...] = ()
    for i in range(MOST_MAPS + 1):
        its = f"decoder_input_proj.{i}."
        lines += normed_lines(f"decoder/input_{i}", f"{its}0", f"{its}1")
    lines += (
        *layers({"decoder/proposal": "enc_output.0", "decoder/proposal_classes": "enc_score_head"}),
        *norm_pair("decoder/proposal_norm", "enc_output.1"),
        *linear_lines("decoder/proposal_boxes", "enc_bbox_head", 3),
        *linear_lines("decoder/query_positions", "decoder.query_pos_head", 2),
        WeightLine("decoder/denoising_classes/embeddings", "denoising_class_embed.weight"),
    )
    for i in range(MOST_LAYERS):
        ours, theirs = f"decoder/layer_{i}/", f"decoder.layers.{i}."
        lines += layers(layer, ours, theirs)
        for mine, its in norms.items():
            lines += norm_pair(f"{ours}{mine}", f"{theirs}{its}")
        lines += layers({f"decoder/classes_{i}": f"decoder.class_embed.{i}"})
        lines += linear_lines(f"decoder/boxes_{i}", f"decoder.bbox_embed.{i}", 3)
    return lines


def _network(config: TransformerConfig) -> tuple[WeightLine, ...]:
    """Return the lines of the ResNet, and of the projection of its last map."""
    lines = network_lines(config, "backbone.model.")
    return (*lines, *last_projection_lines(config)) if lines else ()


def last_projection_lines(config: TransformerConfig) -> tuple[WeightLine, ...]:
    """Return the lines of the projection of the last map of a network."""
    ours, theirs = "encoder/input_projection", f"encoder_input_proj.{config.stem.num_maps}."
    norm = norm_lines(f"{ours}_norm", f"{theirs}1", outside=False)
    kernel = WeightLine(f"{ours}/kernel", f"{theirs}0.weight", transpose=True, column=2)
    return (kernel, *norm)


RT_DETR = Family(
    model_type="rt_detr",
    architecture="RTDetrModel",
    bare=False,
    fields={
        "encoder_hidden_dim": ConfigField("hidden_dim", 256),
        "encoder_layers": ConfigField("num_layers", 1),
        "encoder_attention_heads": ConfigField("num_heads", 8),
        "encoder_ffn_dim": ConfigField("intermediate_dim", 1024),
        "encoder_activation_function": ConfigField("activation", "gelu"),
        "initializer_range": ConfigField("initializer_range", 0.01),
    },
    constants={
        "kind": "encoder",
        "vocabulary_size": 0,
        "position": "none",
        "normalize_first": False,
        "normalization_epsilon": 1e-5,
    },
    conversions=(Conversion(_read, _write),),
    required={
        "normalize_before": False,
        "eval_size": None,
        "learn_initial_query": False,
        "layer_norm_eps": 1e-5,
        "batch_norm_eps": 1e-5,
        "positional_encoding_temperature": 10000,
        "activation_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    weights=stack("encoder", "encoder.encoder.0.layers."),
    of_config=_network,
    heads={
        "ObjectDetector": PublishedHead(
            weights=(*_pyramid(), *decoder_lines()),
            values={"class_layers": 1},
            options=(Conversion(_read_task, _write_task),),
        )
    },
    names=Names(
        prefixes=("model.",),
        ignored=(
            "encoder.lateral_convs.*",
            "encoder.downsample_convs.*",
            "encoder.fpn_blocks.*",
            "encoder.pan_blocks.*",
            "encoder_input_proj.*",
            "decoder_input_proj.*",
            "decoder.*",
            "enc_output.*",
            "enc_score_head.*",
            "enc_bbox_head.*",
            "denoising_class_embed.weight",  # of noisy objects in training
            "backbone.model.*.num_batches_tracked",
        ),
    ),
)


def _write_levels(config: TransformerConfig) -> dict[str, Any]:
    return {**_write(config), "decoder_n_levels": config.stem.num_maps + 1}


RT_DETR_V2 = dataclasses.replace(
    RT_DETR,
    model_type="rt_detr_v2",
    architecture="RTDetrV2Model",
    conversions=(Conversion(_read, _write_levels),),
    heads={
        "ObjectDetector": dataclasses.replace(
            RT_DETR.heads["ObjectDetector"],
            options=(Conversion(_read_second, _write_second),),
            computed=_shares_of_points,
        )
    },
)
