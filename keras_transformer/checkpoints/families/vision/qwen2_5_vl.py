"""Qwen2.5-VL: Bai et al. 2025, https://arxiv.org/abs/2502.13923.

A Qwen2-VL whose image tower attends within windows of patches, except in few layers, and has
root-mean-square norms and gated feed-forward layers.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import TEXT_END, nested
from keras_transformer.checkpoints.families.base.shared import (
    cycle_of_layers,
    listed_layers,
    number,
)
from keras_transformer.checkpoints.families.decoders.llama import QWEN2
from keras_transformer.checkpoints.families.vision.qwen2_vl import (
    MERGER,
    QWEN2_VL_TEXT,
    TEMPLATE,
    merged,
    stem_values,
    text_lines,
    text_values,
    tower,
    tower_lines,
    tower_mixer,
    written,
    written_tower,
)
from keras_transformer.checkpoints.weights.tables import Names
from keras_transformer.config import Chunks, TransformerConfig

_WHOLE, _WINDOWED = "whole", "windowed"


def _read(values: Values) -> dict[str, Any]:
    vision = {"hidden_size": 3584, "hidden_act": "silu", **nested(values, "vision_config")}
    hidden, heads = number(vision, "hidden_size", 3584), number(vision, "num_heads", 16)
    stem = stem_values(vision)
    square = number(vision, "spatial_merge_size", 2) * stem["patch_size"]
    squares = number(vision, "window_size", 112) // max(square, 1)
    if squares < 1:
        raise ValueError(
            f"window_size={vision['window_size']} must be at least {square}, a square of patches."
        )
    window = squares * number(vision, "spatial_merge_size", 2)
    whole = listed_layers(vision, "fullatt_block_indexes")
    whole = [7, 15, 23, 31] if whole is None else whole
    kinds = [_WHOLE if i in whole else _WINDOWED for i in range(number(vision, "depth", 32))]
    mixer = tower_mixer(vision, hidden, max(heads, 1))
    own = {
        _WHOLE: {"mixer": mixer},
        _WINDOWED: {"mixer": mixer.replace(pattern=Chunks(size=window**2))},
    }
    stem["window"] = window if _WINDOWED in kinds else None
    encoder = tower(
        vision,
        "hidden_size",
        intermediate_dim=number(vision, "intermediate_size", 3420),
        gated=True,
        normalization="rms_norm",
        stem={**stem, "time_steps": number(vision, "tokens_per_second", 4)},
        **cycle_of_layers(kinds, own),
    )
    decoder = QWEN2_5_VL_TEXT.config(text_values(values))
    if number(vision, "out_hidden_size", decoder.hidden_dim) != decoder.hidden_dim:
        raise ValueError(
            f"out_hidden_size={vision['out_hidden_size']} must be the width of the text model, "
            f"{decoder.hidden_dim}."
        )
    return merged(values, encoder, decoder)


def _write(config: TransformerConfig) -> dict[str, Any]:
    side = config.side("encoder")
    stem, blocks = side.stem, list(side.encoder.blocks)
    vision = written_tower(config, "qwen2_5_vl_vision", "hidden_size")
    vision |= {
        "intermediate_size": side.intermediate_dim,
        "out_hidden_size": config.side("decoder").hidden_dim,
        "tokens_per_second": stem.time_steps,
        "fullatt_block_indexes": [i for i, b in enumerate(blocks) if b.mixer.pattern is None],
    }
    if stem.window is not None:
        vision["window_size"] = stem.window * stem.patch_size
    return {"vision_config": vision, **written(config, QWEN2_5_VL_TEXT)}


QWEN2_5_VL_TEXT = dataclasses.replace(
    QWEN2_VL_TEXT, model_type="qwen2_5_vl_text", architecture="Qwen2_5_VLTextModel"
)
_FEED_FORWARD = {"gate": "gate_proj", "intermediate": "up_proj", "output": "down_proj"}

QWEN2_5_VL = Family(
    model_type="qwen2_5_vl",
    architecture="Qwen2_5_VLModel",
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(Conversion(_read, _write),),
    weights=(*tower_lines(_FEED_FORWARD, MERGER), *text_lines(QWEN2)),
    heads={
        "ImageToText": PublishedHead(
            architectures=("Qwen2_5_VLForConditionalGeneration",),
            values={"template": TEMPLATE},
            options=(TEXT_END,),
        )
    },
    names=Names(),
)
