"""SegFormer: Xie et al. 2021, https://arxiv.org/abs/2105.15203.

An encoder of several stages, each with fewer and wider patches than the one before, and a head that
makes one map of the states of all stages.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.images import IMAGE_ENCODER
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.vision.dpt import norm_lines, read_blocks
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, attention, layers
from keras_transformer.config import (
    MOST_LAYERS,
    MixFeedForward,
    OverlappingMerging,
    TransformerConfig,
)
from keras_transformer.config.block import Block

# Published lists with a number for each stage, and their defaults.
_LISTS = {
    "depths": (2, 2, 2, 2),
    "sr_ratios": (8, 4, 2, 1),
    "hidden_sizes": (32, 64, 160, 256),
    "patch_sizes": (7, 3, 3, 3),
    "strides": (4, 2, 2, 2),
    "num_attention_heads": (1, 2, 5, 8),
    "mlp_ratios": (4, 4, 4, 4),
}
# Configs do not have the size of images, which the model does not depend on.
_SIZE = (512, 512)
# More stages than images have sizes.
MOST_STAGES = 16


def _stages(values: Values) -> list[dict[str, int]]:
    """Return the values of each stage. Raises ValueError if lists have other lengths or values."""
    count = number(values, "num_encoder_blocks", 4)
    if not 1 <= count <= MOST_STAGES:
        raise ValueError(f"num_encoder_blocks must be from 1 to {MOST_STAGES}, received {count}.")
    lists = {name: read_blocks({name: usual, **values}, name) for name, usual in _LISTS.items()}
    for name, given in lists.items():
        if len(given) != count or min(given) < 1:
            raise ValueError(
                f"{name} must be {count} numbers of at least 1, one for each of "
                f"num_encoder_blocks, received {given}."
            )
    if sum(lists["depths"]) > MOST_LAYERS:
        raise ValueError(f"depths must sum to at most {MOST_LAYERS:,}, received {lists['depths']}.")
    return [{name: given[i] for name, given in lists.items()} for i in range(count)]


def keywords_of(values: Values) -> dict[str, Any]:
    """Return keywords of a model in which all layers are like the last."""
    stages = _stages(values)
    first, last = stages[0], stages[-1]
    return {
        "hidden_dim": last["hidden_sizes"],
        "num_layers": sum(stage["depths"] for stage in stages),
        "num_heads": last["num_attention_heads"],
        "intermediate_dim": last["hidden_sizes"] * last["mlp_ratios"],
        "stem": {
            "kind": "patches",
            "image_size": _SIZE,
            "num_channels": number(values, "num_channels", 3),
            "patch_size": first["patch_sizes"],
            "stride": first["strides"],
            "padding": first["patch_sizes"] // 2,
            "class_token": False,
        },
    }


def read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    """Return the config with its stages."""
    side, stages, blocks = config.encoder, _stages(values), []
    for i, stage in enumerate(stages):
        width, plain = stage["hidden_sizes"], side.block
        block = plain.replace(
            mixer=plain.mixer.replace(
                num_heads=stage["num_attention_heads"],
                num_key_value_heads=None,
                head_dim=None,
                sequence_reduction=stage["sr_ratios"],
            ),
            feed_forward=MixFeedForward(
                dim=width * stage["mlp_ratios"], activation=plain.feed_forward.activation
            ),
        )
        sizes = {"kernel_size": stage["patch_sizes"], "stride": stage["strides"]}
        merging = OverlappingMerging(hidden_dim=width, **sizes) if i else None
        blocks += [block.replace(merging=merging), *[block] * (stage["depths"] - 1)]
    whole = {"hidden_dim": stages[-1]["hidden_sizes"], "embedding_dim": stages[0]["hidden_sizes"]}
    whole |= {"embedding_projection": None, "block": blocks[-1], "layers": tuple(blocks)}
    return config.replace(encoder=side.replace(**whole))


def _stage(block: Block, patches: Any, width: int, depth: int) -> dict[str, int]:
    """Return the published values of a stage; `patches` is its merging, or the stem."""
    kernel = getattr(patches, "kernel_size", None) or patches.patch_size
    return {
        "depths": depth,
        "sr_ratios": block.mixer.sequence_reduction,
        "hidden_sizes": width,
        "patch_sizes": kernel,
        "strides": patches.stride,
        "num_attention_heads": block.mixer.num_heads,
        "mlp_ratios": block.feed_forward.dense_dim // width,
    }


def write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    """Return the config by keywords, and the published values of its stages."""
    side = config.encoder if config.kind == "encoder" else None
    mixed = side is not None and all(
        isinstance(block.feed_forward, MixFeedForward)
        and hasattr(block.mixer, "sequence_reduction")
        for block in side.every_block
    )
    if not mixed or not side.layers:
        return config, {}
    starts, stages = (0, *side.stage_ends), []
    for first, end in zip(starts, side.stage_ends, strict=False):
        block = side.layer(first)
        merged = side.input if block.merging is None else block.merging
        stages.append(_stage(block, merged, side.width(first), end - first))
    stated: dict[str, Any] = {name: [each[name] for each in stages] for name in _LISTS}
    stated |= {"num_encoder_blocks": len(stages), "num_channels": side.input.num_channels}
    keywords = {
        **SEGFORMER.constants,
        **keywords_of(stated),
        "activation": side.block.feed_forward.activation,
        "dropout": side.block.dropout,
        "attention_dropout": side.block.mixer.dropout,
        "initializer_range": side.initializer_range,
    }
    return TransformerConfig.from_dict(keywords), stated


_LAYER = {
    **attention("attention.{}", "self.query", "self.key", "self.value", "output.dense"),
    "self_attention/reduction/norm": "attention.self.layer_norm",
    "self_attention_norm": "layer_norm_1",
    "feed_forward/intermediate": "mlp.dense1",
    "feed_forward/output": "mlp.dense2",
    "feed_forward_norm": "layer_norm_2",
}


def _lines(config: TransformerConfig) -> tuple[WeightLine, ...]:
    """Return the lines of the layers, which are numbered within their stage there."""
    side = config.encoder
    ends = side.stage_ends
    # The next merging begins with the norm behind a stage; the last one is the final norm.
    norms = [f"encoder/layer_{end}/merging/input_norm" for end in ends[:-1]]
    norms.append("encoder/final_norm")
    lines: tuple[WeightLine, ...] = ()
    for stage, (first, end) in enumerate(zip((0, *ends), ends, strict=False)):
        patches = f"encoder.patch_embeddings.{stage}."
        ours = (f"encoder/layer_{first}/merging/convolution", f"encoder/layer_{first}/merging/norm")
        if not stage:
            ours = ("encoder/input_patches", "encoder/embedding_norm")
        lines += layers({ours[0]: f"{patches}proj"}, convolution=True)
        lines += layers(
            {ours[1]: f"{patches}layer_norm", norms[stage]: f"encoder.layer_norm.{stage}"}
        )
        for i in range(first, end):
            mine, its = f"encoder/layer_{i}/", f"encoder.block.{stage}.{i - first}."
            lines += layers(_LAYER, mine, its)
            lines += layers(
                {"self_attention/reduction/convolution": "attention.self.sr"},
                mine,
                its,
                convolution=True,
            )
            kernel, bias = (f"{its}mlp.dwconv.dwconv.{end_}" for end_ in ("weight", "bias"))
            mine = f"{mine}feed_forward/convolution"
            lines += (
                WeightLine(f"{mine}/kernel", kernel, depthwise=True),
                WeightLine(f"{mine}/bias", bias),
            )
    return lines


_DECODER = Conversion(
    lambda values: {"decoder": {"features": number(values, "decoder_hidden_size", 256)}},
    lambda task: {"decoder_hidden_size": task["decoder"]["features"]},
)

SEGFORMER = Family(
    model_type="segformer",
    architecture="SegformerModel",
    fields={
        "hidden_act": ConfigField("activation", "gelu"),
        "hidden_dropout_prob": ConfigField("dropout", 0.0),
        "attention_probs_dropout_prob": ConfigField("attention_dropout", 0.0),
        "initializer_range": ConfigField("initializer_range", 0.02),
    },
    # Norms have this epsilon whatever `layer_norm_eps` says.
    constants={
        **IMAGE_ENCODER,
        "position": "none",
        "embedding_normalization": True,
        "normalization_epsilon": 1e-5,
    },
    conversions=(Conversion(keywords_of, lambda config: {}),),
    parts=PartsWithoutKeywords(read_parts, write_parts),
    required={"reshape_last_stage": True},
    any_size=True,
    weights=(),
    of_config=_lines,
    heads={
        "ImageSegmenter": PublishedHead(
            weights=(
                *layers(
                    {
                        f"decoder/project_{i}": f"decode_head.linear_c.{i}.proj"
                        for i in range(MOST_STAGES)
                    },
                    outside=True,
                ),
                *layers(
                    {
                        "hidden": "decode_head.linear_fuse",
                        "output": "decode_head.classifier",
                    },
                    convolution=True,
                    outside=True,
                ),
                *norm_lines("hidden_norm", "decode_head.batch_norm"),
            ),
            dropout="classifier_dropout_prob",
            options=(_DECODER,),
        ),
        "ImageClassifier": PublishedHead(
            weights=layers({"output": "classifier"}, outside=True), values={"pooling": "mean"}
        ),
    },
    names=Names(
        prefixes=("segformer.",),
        ignored=("decode_head.*", "classifier.weight", "classifier.bias"),
    ),
)
