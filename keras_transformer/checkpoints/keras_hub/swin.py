"""Swin in KerasHub's form.

Its class pads the last windows of a grid after it has moved them, unlike the published code, so
that an image must consist of whole windows in every stage. Facts are from KerasHub 0.32,
`models/swin_transformer/*.py`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.vision.swin import SWIN as PUBLISHED
from keras_transformer.checkpoints.families.vision.swin import (
    keywords_of,
    places_of,
    read_parts,
    stages_of,
    write_parts,
)
from keras_transformer.checkpoints.keras_hub.family import (
    TASK_PREFIX,
    Line,
    layers,
    make_family,
    numbered,
)
from keras_transformer.checkpoints.keras_hub.vision import read_stem, write_stem
from keras_transformer.checkpoints.weights.tables import Names, fused
from keras_transformer.config import TransformerConfig

_CONSTANTS = {**PUBLISHED.constants, "activation": "gelu", "initializer_range": 0.02}


def _read(values: Values) -> dict[str, Any]:
    stem = read_stem(values, class_token=False, whole_patches=True)
    if stem["patch_width"] is not None:
        raise ValueError(f"patch_size={str(values['patch_size'])[:200]} must be one number.")
    stages, window = stages_of(values), number(values, "window_size", 7)
    grid = [size // stem["patch_size"] for size in stem["image_size"]]
    for i, (depth, _, _) in enumerate(stages):
        moves = depth > 1 and min(grid) > window > 1
        if min(grid) < window or (moves and any(size % window for size in grid)):
            raise ValueError(
                f"image_shape={str(values['image_shape'])[:200]} is not supported: stage {i} has "
                f"{grid[0]} x {grid[1]} patches, which are not whole windows of {window} x {window}"
            )
        if i < len(stages) - 1 and any(size % 2 for size in grid):
            raise ValueError(
                f"image_shape={str(values['image_shape'])[:200]} is not supported: the "
                f"{grid[0]} x {grid[1]} patches of stage {i} have no halves."
            )
        grid = [size // 2 for size in grid]
    return {"stem": stem, **keywords_of(values)}


def _write(config: TransformerConfig) -> dict[str, Any]:
    stem = write_stem(config)
    return {**stem, "patch_size": stem["patch_size"][0], "drop_path": 0.0}


_QKV = ("query", "key", "value")
_LAYER = {
    "self_attention/output": "attn/proj",
    "self_attention_norm": "norm1",
    "feed_forward/intermediate": "mlp/fc1",
    "feed_forward/output": "mlp/fc2",
    "feed_forward_norm": "norm2",
}


def _lines(config: TransformerConfig) -> tuple[Line, ...]:
    """Return the lines of the layers, which are numbered within their stage there."""
    lines: tuple[Line, ...] = ()
    for i, stage, place in places_of(config):
        ours = f"encoder/layer_{i}/"
        stages = [f"layers/swin_transformer_stage{numbered(each)}/" for each in (stage - 1, stage)]
        theirs = f"{stages[1]}blocks/swin_transformer_block{numbered(place)}/"
        if stage and not place:
            merging = {"projection": "reduction", "norm": "norm"}
            lines += layers(merging, f"{ours}merging/", f"{stages[0]}downsample/")
        queries = [f"{ours}self_attention/{name}" for name in _QKV]
        lines += (
            *layers(_LAYER, ours, theirs, apart=False),
            *fused(queries, f"{theirs}attn/qkv", layers, apart=False),
            Line(f"{ours}self_attention/relative/embeddings", f"{theirs}attn/vars/0"),
        )
    return lines


SWIN = make_family(
    "swin",
    "SwinTransformer",
    {
        "dropout_rate": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "qkv_bias": ConfigField("attention_bias", True),
    },
    _CONSTANTS,
    layers(
        {
            "encoder/input_patches": "patch_embedding/proj",
            "encoder/embedding_norm": "patch_embedding/norm",
            "encoder/final_norm": "layer_normalization",
        },
        theirs="layers/",
    ),
    {
        "ImageClassifier": PublishedHead(
            weights=layers({"output": "dense"}, theirs=f"{TASK_PREFIX}layers/"),
            values={"pooling": "mean"},
        )
    },
    conversions=(Conversion(_read, _write),),
    parts=PartsWithoutKeywords(
        read_parts, lambda config: write_parts(config, _CONSTANTS, lambda mixers: {})
    ),
    of_config=_lines,
    needed=("image_shape", "embed_dim", "depths", "num_heads", "window_size"),
    more=("patch_size", "mlp_ratio", "drop_path"),
    required={"patch_norm": True, "data_format": "channels_last"},
    names=Names(ignored=(f"{TASK_PREFIX}*",)),
)
