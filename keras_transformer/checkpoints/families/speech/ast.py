"""AST, the Audio Spectrogram Transformer: Gong et al. 2021, https://arxiv.org/abs/2104.01778.

A DeiT whose image is a spectrogram, with frequency bands as rows and frames as columns.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import Conversion, PublishedHead, Values
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.vision.vit import DEIT
from keras_transformer.checkpoints.weights.tables import Names, layers
from keras_transformer.config import TransformerConfig


def _read_stem(values: Values) -> dict[str, Any]:
    strides = {number(values, f"{axis}_stride", 10) for axis in ("frequency", "time")}
    if len(strides) > 1:
        raise ValueError(
            f"frequency_stride and time_stride must be the same, received {sorted(strides)}."
        )
    stem = {
        "kind": "patches",
        "image_size": (number(values, "num_mel_bins", 128), number(values, "max_length", 1024)),
        "patch_size": number(values, "patch_size", 16),
        "stride": strides.pop(),
        "num_channels": 1,
        "distillation_token": True,
    }
    return {"stem": stem}


def _write_stem(config: TransformerConfig) -> dict[str, Any]:
    stem = config.stem
    if stem is None or stem.kind != "patches":
        raise ValueError("A checkpoint of this family needs a stem of patches.")
    bins, length = stem.image_size
    strides = {"frequency_stride": stem.stride, "time_stride": stem.stride}
    return {"num_mel_bins": bins, "max_length": length, "patch_size": stem.patch_size, **strides}


_HEAD = {"output_norm": "classifier.layernorm", "output": "classifier.dense"}

AST = dataclasses.replace(
    DEIT,
    model_type="audio-spectrogram-transformer",
    architecture="ASTModel",
    conversions=(Conversion(_read_stem, _write_stem),),
    required={},
    weights=tuple(line for line in DEIT.weights if not line.ours.startswith("pooler/")),
    heads={
        "AudioClassifier": PublishedHead(
            weights=layers(_HEAD), values={"pooling": "tokens", "output_norm": True}
        )
    },
    names=Names(prefixes=("audio_spectrogram_transformer.",)),
    pooler=None,
)
