"""Swin V2: Liu et al. 2021, https://arxiv.org/abs/2111.09883.

A Swin with norms behind its sub-layers, scores that are scaled cosines, and biases of distances
that a small network computes, so that windows may have another size than in training.
"""

import dataclasses
import functools
from typing import Any

from keras_transformer.checkpoints.families.base.family import PartsWithoutKeywords, Values
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.vision.dpt import read_blocks
from keras_transformer.checkpoints.families.vision.swin import (
    DENSES,
    SWIN,
    Stage,
    lines_of,
    read_parts,
    stages_of,
    write_parts,
)
from keras_transformer.checkpoints.weights.tables import Names, WeightLine
from keras_transformer.config import (
    Attention,
    ConcatenatedMerging,
    ContinuousWindowBias,
    GridWindows,
    PatchStemConfig,
    TransformerConfig,
)


def _stage(stem: PatchStemConfig, values: Values, i: int, width: int) -> Stage:
    # Windows are no larger than the grid of a stage has rows, and not shifted if they are as large.
    rows = stem.image_size[0] // stem.patch_size // 2**i
    if rows < 1:
        raise ValueError(
            f"image_size={stem.image_size} is too small for {len(stages_of(values))} stages of "
            f"patches of {stem.patch_size}."
        )
    given, trained = number(values, "window_size", 7), _trained_sizes(values)
    return Stage(
        windows=GridWindows(size=min(given, rows), always_shifted=True),
        shift=0 if rows <= given else given // 2,
        bias=ContinuousWindowBias(trained_size=trained[i] or None),
        merging=ConcatenatedMerging(hidden_dim=width, norm_place="behind"),
    )


def _trained_sizes(values: Values) -> list[int]:
    """Return the sizes of windows in pre-training, 0 where they were the same."""
    name, count = "pretrained_window_sizes", len(stages_of(values))
    if values.get(name) is None:
        return [0] * count
    found = read_blocks(values, name)
    if len(found) < count or min(found) < 0 or 1 in found:
        raise ValueError(
            f"{name} must be {count} numbers, 0 or at least 2, one for each of the depths, "
            f"received {found}."
        )
    return found


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    return read_parts(values, config, functools.partial(_stage, config.encoder.input))


def _further(mixers: list[Attention]) -> dict[str, Any]:
    biases = [getattr(mixer, "score_bias", None) for mixer in mixers]
    return {"pretrained_window_sizes": [getattr(bias, "trained_size", 0) or 0 for bias in biases]}


_NETWORK = "attention.self.continuous_position_bias_mlp."
_LAYER = {
    **DENSES,
    "self_attention_output_norm": "layernorm_before",
    "feed_forward_output_norm": "layernorm_after",
    "self_attention/relative/hidden": f"{_NETWORK}0",
    "self_attention/relative/output": f"{_NETWORK}2",
}
# Theirs has a number for each head, of shape (heads, 1, 1).
_STRENGTH = (
    WeightLine("self_attention/score/log_strength", "attention.self.logit_scale", column=2),
)


def _lines(config: TransformerConfig) -> tuple[WeightLine, ...]:
    return lines_of(config, _LAYER, _STRENGTH)


SWINV2 = dataclasses.replace(
    SWIN,
    model_type="swinv2",
    architecture="Swinv2Model",
    constants={
        **SWIN.constants,
        "normalize_first": False,
        "normalize_output": True,
        "final_normalization": True,
        "score": "scaled_cosine",
        "key_bias": False,
    },
    parts=PartsWithoutKeywords(
        _read_parts, lambda config: write_parts(config, SWINV2.constants, _further)
    ),
    of_config=_lines,
    names=Names(prefixes=("swinv2.",), ignored=SWIN.names.ignored),
)
