"""Swin: Liu et al. 2021, https://arxiv.org/abs/2103.14030.

An encoder of several stages, each with half as many rows and columns of patches as the one before,
and states twice as wide. Attention is within windows of the grid, which every second layer moves.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.images import IMAGE_ENCODER, patches
from keras_transformer.checkpoints.families.base.shared import number, unread
from keras_transformer.checkpoints.families.vision.dpt import read_blocks
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, attention, layers
from keras_transformer.config import (
    MOST_LAYERS,
    Attention,
    ConcatenatedMerging,
    GridWindows,
    PatchStemConfig,
    TransformerConfig,
    WindowBias,
)

# Published lists with a number for each stage, and their defaults.
_LISTS = {"depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)}
# More stages than images have sizes, and than states have widths.
_MOST_STAGES = 12
_PATCHES = patches(224, 4, class_token=False, whole_patches=True)


def stages_of(values: Values) -> list[tuple[int, int, int]]:
    """Return the depth, heads and width of each stage. Raises ValueError if lists do not fit."""
    depths, heads = (read_blocks({name: usual, **values}, name) for name, usual in _LISTS.items())
    if not 1 <= len(depths) <= _MOST_STAGES or min(depths) < 1:
        raise ValueError(
            f"depths must be 1 to {_MOST_STAGES} numbers of at least 1, one for each stage, "
            f"received {depths}."
        )
    if sum(depths) > MOST_LAYERS:
        raise ValueError(f"depths must sum to at most {MOST_LAYERS:,}, received {depths}.")
    if len(heads) != len(depths) or min(heads) < 1:
        raise ValueError(
            f"num_heads must be {len(depths)} numbers of at least 1, one for each of the depths, "
            f"received {heads}."
        )
    width = number(values, "embed_dim", 96)
    return [(depths[i], heads[i], width * 2**i) for i in range(len(depths))]


def _inner(values: Values, width: int) -> int:
    """Return the width of the feed-forward layers between states of this width."""
    return int(number(values, "mlp_ratio", 4.0, float) * width)


def _ratio(inner: int, width: int) -> float:
    """Return a ratio whose product with `width`, rounded down, is `inner`."""
    ratio = inner / width
    return ratio if int(ratio * width) == inner else math.nextafter(ratio, math.inf)


def keywords_of(values: Values) -> dict[str, Any]:
    """Return keywords of a model in which all layers are like the last."""
    stages = stages_of(values)
    _, heads, width = stages[-1]
    return {
        "hidden_dim": width,
        "num_layers": sum(depth for depth, _, _ in stages),
        "num_heads": heads,
        "intermediate_dim": _inner(values, width),
    }


@dataclasses.dataclass(frozen=True)
class Stage:
    """Parts that the families of Swin have in a stage, beside its depth, heads and width."""

    windows: GridWindows
    shift: int  # of the windows of every second layer
    bias: WindowBias
    merging: ConcatenatedMerging


def _stage(values: Values, i: int, width: int) -> Stage:
    size = number(values, "window_size", 7)
    merging = ConcatenatedMerging(hidden_dim=width)
    return Stage(GridWindows(size=size), size // 2, WindowBias(), merging)


def read_parts(
    values: Values,
    config: TransformerConfig,
    stage_of: Callable[[Values, int, int], Stage] = _stage,
) -> TransformerConfig:
    """Return the config with its stages, as `stage_of` published values, a number and a width."""
    side, stages, blocks = config.encoder, stages_of(values), []
    for i, (depth, heads, width) in enumerate(stages):
        stage = stage_of(values, i, width)
        shifted = stage.windows.replace(shift=stage.shift)
        plain = side.block
        block = plain.replace(
            mixer=plain.mixer.replace(
                num_heads=heads,
                num_key_value_heads=None,
                head_dim=None,
                pattern=stage.windows,
                score_bias=stage.bias,
            ),
            feed_forward=plain.feed_forward.replace(dim=_inner(values, width)),
        )
        moved = block.replace(mixer=block.mixer.replace(pattern=shifted))
        merging = stage.merging if i else None
        blocks += [block.replace(merging=merging)]
        blocks += [moved if j % 2 else block for j in range(1, depth)]
    whole = {"hidden_dim": stages[-1][2], "embedding_dim": stages[0][2]}
    whole |= {"embedding_projection": None, "block": blocks[-1], "layers": tuple(blocks)}
    return config.replace(encoder=side.replace(**whole))


def write_parts(
    config: TransformerConfig, constants: Values, further: Callable[[list[Attention]], Values]
) -> tuple[TransformerConfig, dict[str, Any]]:
    """Return the config by keywords, and the published values of its stages.

    Args:
        config: the config of a model.
        constants: the keywords that the family always has.
        further: function from the first mixers of all stages to more published values.
    """
    side = config.encoder if config.kind == "encoder" else None
    blocks = () if side is None else side.layers
    mixers = [getattr(block, "mixer", None) for block in blocks]
    patterns = {type(getattr(mixer, "pattern", None)) for mixer in mixers}
    if patterns != {GridWindows} or not isinstance(side.input, PatchStemConfig):
        return config, {}
    starts = (0, *side.stage_ends)[:-1]
    stated: dict[str, Any] = {
        "embed_dim": side.embedding_dim,
        "depths": [end - first for first, end in zip(starts, side.stage_ends, strict=True)],
        "num_heads": [mixers[first].num_heads for first in starts],
        "window_size": mixers[0].pattern.size,
        "mlp_ratio": _ratio(blocks[-1].feed_forward.dense_dim, side.hidden_dim),
        **further([mixers[first] for first in starts]),
    }
    keywords = {
        **constants,
        **keywords_of(stated),
        "stem": side.input.to_dict(),
        "activation": side.block.feed_forward.activation,
        "dropout": side.block.dropout,
        "attention_dropout": mixers[0].dropout,
        "attention_bias": mixers[0].bias,
        "initializer_range": side.initializer_range,
    }
    return TransformerConfig.from_dict(keywords), stated


_BIASES = (
    WeightLine("self_attention/relative/embeddings", "attention.self.relative_position_bias_table"),
)
DENSES = {
    **attention("attention.{}", "self.query", "self.key", "self.value", "output.dense"),
    "feed_forward/intermediate": "intermediate.dense",
    "feed_forward/output": "output.dense",
}
_LAYER = {
    **DENSES,
    "self_attention_norm": "layernorm_before",
    "feed_forward_norm": "layernorm_after",
}


def places_of(config: TransformerConfig) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each layer, the number of its stage, and its place in this stage."""
    ends = config.encoder.stage_ends
    for stage, (first, end) in enumerate(zip((0, *ends), ends, strict=False)):
        for i in range(first, end):
            yield i, stage, i - first


def lines_of(
    config: TransformerConfig,
    layer: Mapping[str, str] = MappingProxyType(_LAYER),
    further: tuple[WeightLine, ...] = _BIASES,
    stages: str = "encoder.layers.",
) -> tuple[WeightLine, ...]:
    """Return the lines of the layers, which are numbered within their stage there.

    Args:
        config: the config of a model.
        layer: names of the layers of a block.
        further: other lines of a block.
        stages: the beginning of the published names.
    """
    lines: tuple[WeightLine, ...] = ()
    for i, stage, place in places_of(config):
        mine, its = f"encoder/layer_{i}/", f"{stages}{stage}.blocks.{place}."
        if stage and not place:
            merging = {"projection": "reduction", "norm": "norm"}
            lines += layers(merging, f"{mine}merging/", f"{stages}{stage - 1}.downsample.")
        lines += layers(layer, mine, its)
        for line in further:
            names = {"ours": f"{mine}{line.ours}", "theirs": f"{its}{line.theirs}"}
            lines += (dataclasses.replace(line, **names),)
    return lines


SWIN = Family(
    model_type="swin",
    architecture="SwinModel",
    fields={
        "hidden_act": ConfigField("activation", "gelu"),
        "hidden_dropout_prob": ConfigField("dropout", 0.0),
        "attention_probs_dropout_prob": ConfigField("attention_dropout", 0.0),
        "qkv_bias": ConfigField("attention_bias", True),
        "initializer_range": ConfigField("initializer_range", 0.02),
    },
    constants={
        **IMAGE_ENCODER,
        "position": "none",
        "embedding_normalization": True,
        "normalization_epsilon": 1e-5,
    },
    conversions=(_PATCHES, Conversion(keywords_of, lambda config: {})),
    parts=PartsWithoutKeywords(
        read_parts, lambda config: write_parts(config, SWIN.constants, lambda mixers: {})
    ),
    # The norms of the patches and of the mergings have this epsilon whatever the config says.
    required={"use_absolute_embeddings": False, "layer_norm_eps": 1e-5},
    weights=layers({"encoder/embedding_norm": "embeddings.norm", "encoder/final_norm": "layernorm"})
    + layers({"encoder/input_patches": "embeddings.patch_embeddings.projection"}, convolution=True),
    of_config=lines_of,
    heads={
        "ImageClassifier": PublishedHead(
            weights=layers({"output": "classifier"}, outside=True), values={"pooling": "mean"}
        ),
    },
    names=Names(
        prefixes=("swin.",),
        # Tensors of masked pre-training.
        ignored=("embeddings.mask_token", *unread("decoder.0", "classifier")),
    ),
)
