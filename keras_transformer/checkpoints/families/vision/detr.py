"""DETR: Carion et al. 2020, https://arxiv.org/abs/2005.12872.

A ResNet, an encoder of the places of its last map, and a decoder of object queries. Table
Transformer is a DETR with norms before its sublayers: Smock et al. 2021, "PubTables-1M".
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import number, sides
from keras_transformer.checkpoints.families.seq2seq.bart import BLOCKS
from keras_transformer.checkpoints.families.vision.yolos import perceptron
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers
from keras_transformer.config import TransformerConfig
from keras_transformer.config.resnet import BLOCKS as BLOCK_KINDS
from keras_transformer.support.checking import shorten

_BACKBONE = "backbone_config"
# Blocks of each stage, by the names of timm's models. Those with fewer than 50 layers are basic.
DEPTHS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
WIDTHS = (256, 512, 1024, 2048)
_BASIC = {"block": "basic", "widths": (64, 128, 256, 512)}
# Values of a ResNet that checkpoints of this family share.
_SUPPORTED = {
    "hidden_act": "relu",
    "downsample_in_first_stage": False,
    "downsample_in_bottleneck": False,
}
_FOLDER = "backbone.conv_encoder.model."
_SIDES = sides(attention_heads=("num_heads", 8), ffn_dim=("intermediate_dim", 2048))


def _read_timm(name: Any, channels: int) -> dict[str, Any]:
    """Return the stem of a ResNet that timm's name describes."""
    if not isinstance(name, str) or name not in DEPTHS:
        known = ", ".join(map(repr, DEPTHS))
        raise ValueError(f"backbone={shorten(name)} is not supported, only {known}.")
    basic = _BASIC if name in ("resnet18", "resnet34") else {}
    return {"num_channels": channels, "depths": DEPTHS[name], **basic}


def numbers(network: Values, name: str, usual: tuple[int, ...]) -> tuple:
    """Return a list of a network's config. Raises ValueError if it is something else."""
    given = network.get(name, usual)
    if not isinstance(given, (list, tuple)):
        raise ValueError(f"{_BACKBONE}.{name} must be a list of numbers, received {given!r}.")
    return tuple(given)


def _read_stem(values: Values) -> dict[str, Any]:
    network, channels = nested(values, _BACKBONE), number(values, "num_channels", 3)
    kind = network.get("model_type", "timm_backbone")
    if kind == "timm_backbone":
        named = network.get("backbone", values.get("backbone", "resnet50"))
        return _read_timm(named, channels)
    if kind != "resnet":
        raise ValueError(
            f"A {_BACKBONE} of model_type {shorten(kind)} is not supported, only 'resnet' and "
            "'timm_backbone'."
        )
    for name, supported in _SUPPORTED.items():
        if network.get(name, supported) != supported:
            raise ValueError(
                f"{_BACKBONE}.{name}={shorten(network[name])} is not supported, only {supported!r}."
            )
    block = network.get("layer_type", "bottleneck")
    if block not in BLOCK_KINDS:
        known = " and ".join(map(repr, BLOCK_KINDS))
        raise ValueError(f"{_BACKBONE}.layer_type={shorten(block)} is not supported, only {known}.")
    depths = numbers(network, "depths", DEPTHS["resnet50"])
    last = [f"stage{len(depths)}"]
    if network.get("out_features") not in (None, last):
        raise ValueError(
            f"{_BACKBONE}.out_features={shorten(network['out_features'])} is not supported, only "
            f"the last stage, {last}."
        )
    return {
        "num_channels": number(network, "num_channels", channels),
        "filters": number(network, "embedding_size", 64),
        "widths": numbers(network, "hidden_sizes", WIDTHS),
        "depths": depths,
        "block": block,
    }


def _read(values: Values) -> dict[str, Any]:
    ours = _SIDES.read(values)
    queries = {"kind": "queries", "num_queries": number(values, "num_queries", 100)}
    return {
        **ours,
        "stem": queries,
        "encoder": {"stem": {"kind": "resnet", **_read_stem(values)}},
        "decoder": {**ours.get("decoder", {}), "final_normalization": True},
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    encoder, decoder = (config.side(name).stem for name in ("encoder", "decoder"))
    kinds = [getattr(stem, "kind", None) for stem in (encoder, decoder)]
    if kinds != ["resnet", "queries"]:
        raise ValueError(
            "A checkpoint of this family needs stems of the kinds 'resnet' and 'queries', received "
            f"{kinds}."
        )
    network = {
        "model_type": "resnet",
        "num_channels": encoder.num_channels,
        "embedding_size": encoder.filters,
        "hidden_sizes": list(encoder.widths),
        "depths": list(encoder.depths),
        "layer_type": encoder.block,
        "out_features": [f"stage{len(encoder.depths)}"],
        **_SUPPORTED,
    }
    return {
        **_SIDES.write(config),
        _BACKBONE: network,
        "use_timm_backbone": False,
        "num_channels": encoder.num_channels,
        "num_queries": decoder.num_queries,
    }


def convolution_lines(
    ours: str, theirs: tuple[str, str], timm: tuple[str, str] | None, folder: str
) -> list[WeightLine]:
    """Return the lines of a convolution and its norm; `theirs` are their names, as are `timm`."""
    names = {
        "gamma": "weight",
        "beta": "bias",
        "moving_mean": "running_mean",
        "moving_variance": "running_var",
    }
    (kernel, norm), (also, also_norm) = theirs, timm or ("", "")

    def others(name: str) -> tuple[str, ...]:
        return () if timm is None else (folder + name,)

    return [
        WeightLine(
            f"encoder/{ours}/kernel",
            f"{folder}{kernel}.weight",
            convolution=True,
            also=others(f"{also}.weight"),
        ),
        *(
            WeightLine(
                f"encoder/{ours}_frozen_norm/{mine}",
                f"{folder}{norm}.{its}",
                also=others(f"{also_norm}.{its}"),
            )
            for mine, its in names.items()
        ),
    ]


def network_lines(
    config: TransformerConfig, folder: str, timm: bool = False
) -> tuple[WeightLine, ...]:
    """Return the lines of a ResNet with Transformers' names, and with timm's names if wanted.

    Args:
        config: the whole config, whose encoder may have another stem: then there are no lines.
        folder: prefix of the names.
        timm: bool, whether files may have timm's names.
    """
    stem = config.encoder and config.encoder.input
    if getattr(stem, "kind", None) != "resnet":
        return ()
    lines: list[WeightLine] = []

    def add(ours: str, theirs: str, *names: str) -> None:
        both = (f"{theirs}convolution", f"{theirs}normalization")
        lines.extend(convolution_lines(ours, both, names if timm else None, folder))

    firsts = stem.first_convolutions
    for i, each in enumerate(firsts):
        own = f"embedder.embedder.{i}." if len(firsts) > 1 else "embedder.embedder."
        add(each.name, own, "conv1", "bn1")
    for stage, depth in enumerate(stem.depths):
        for block in range(depth):
            ours = f"input_stage_{stage}_block_{block}"
            theirs = f"encoder.stages.{stage}.layers.{block}."
            its = f"layer{stage + 1}.{block}."
            for i in range(3):
                add(
                    f"{ours}_convolution_{i}",
                    f"{theirs}layer.{i}.",
                    f"{its}conv{i + 1}",
                    f"{its}bn{i + 1}",
                )
            pooled = stem.variant == "d" and stage and not block
            shortcut = f"{theirs}shortcut.{'1.' if pooled else ''}"
            add(f"{ours}_shortcut", shortcut, f"{its}downsample.0", f"{its}downsample.1")
    return tuple(lines)


DETR = Family(
    model_type="detr",
    architecture="DetrModel",
    fields={
        "d_model": ConfigField("hidden_dim", 256),
        "encoder_layers": ConfigField("num_layers", 6),
        "decoder_layers": ConfigField("num_decoder_layers", 6),
        "activation_function": ConfigField("activation", "relu"),
        "dropout": ConfigField("dropout", 0.1),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "init_std": ConfigField("initializer_range", 0.02),
    },
    constants={
        "kind": "seq2seq",
        "vocabulary_size": 0,
        "position": "none",
        "normalize_first": False,
        "normalization_epsilon": 1e-5,
    },
    conversions=(Conversion(_read, _write),),
    # With its `auxiliary_loss` Transformers normalizes the states between the layers, which makes
    # another model; the losses of all layers are an option of our task.
    required={"position_embedding_type": "sine", "dilation": False, "auxiliary_loss": False},
    weights=(
        WeightLine(
            "encoder/input_projection/kernel", "input_projection.weight", transpose=True, column=2
        ),
        WeightLine("encoder/input_projection/bias", "input_projection.bias"),
        WeightLine("decoder/input_queries", "query_position_embeddings.weight"),
        *BLOCKS,
        *layers({"decoder/final_norm": "decoder.layernorm"}),
    ),
    of_config=lambda config: network_lines(config, _FOLDER, timm=True),
    heads={
        "ObjectDetector": PublishedHead(
            weights=layers(
                {"class_0": "class_labels_classifier", **perceptron("box", "bbox_predictor")},
                outside=True,
            ),
            values={"class_layers": 1},
        )
    },
    names=Names(
        prefixes=("model.",),
        ignored=(
            "class_labels_classifier.*",
            "bbox_predictor.*",
            "backbone.conv_encoder.model.*.num_batches_tracked",
        ),
    ),
)


def _read_table(values: Values) -> dict[str, Any]:
    ours = _read(values)
    return {**ours, "encoder": {**ours["encoder"], "final_normalization": True}}


TABLE_TRANSFORMER = dataclasses.replace(
    DETR,
    model_type="table-transformer",
    architecture="TableTransformerModel",
    constants={**DETR.constants, "normalize_first": True},
    conversions=(Conversion(_read_table, _write),),
    weights=(*DETR.weights, *layers({"encoder/final_norm": "encoder.layernorm"})),
)
