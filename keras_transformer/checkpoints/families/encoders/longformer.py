"""Longformer: Beltagy et al. 2020, https://arxiv.org/abs/2004.05150.

A RoBERTa whose tokens attend within a window, and whose global tokens, with separate projections,
attend to everything.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import cycle_of_layers, number
from keras_transformer.checkpoints.families.encoders.roberta import ROBERTA
from keras_transformer.checkpoints.weights.tables import Names, layers
from keras_transformer.config import MOST_LAYERS, TransformerConfig

GLOBAL = {f"self_attention/{name}_global": f"{name}_global" for name in ("query", "key", "value")}


def read_windows(values: Values, layers_name: str, default_layers: int) -> dict[str, Any]:
    """Return the windows of all layers from the published widths, which count both directions."""
    count = number(values, layers_name, default_layers)
    widths = values.get("attention_window", 512)
    widths = widths if isinstance(widths, list) else [widths] * min(max(count, 0), MOST_LAYERS)
    if len(widths) != count or not widths:
        raise ValueError(f"attention_window has {len(widths)} widths, {layers_name} is {count}.")
    for width in widths:
        if not isinstance(width, int) or isinstance(width, bool) or width < 2 or width % 2:
            raise ValueError(
                f"attention_window must be even numbers of at least 2, received {width!r}."
            )
    return cycle_of_layers(widths, {width: {"window": width // 2 + 1} for width in widths})


def write_windows(config: TransformerConfig) -> dict[str, Any]:
    """Return the published window widths for an encoder's config."""
    return {
        "attention_window": [
            2 * (layer.window - 1) if layer.window else 0 for layer in config.layers
        ]
    }


LONGFORMER = dataclasses.replace(
    ROBERTA,
    model_type="longformer",
    architecture="LongformerModel",
    fields={**ROBERTA.fields, "vocab_size": ConfigField("vocabulary_size", 30522)},
    constants={**ROBERTA.constants, "global_projection": True},
    conversions=(
        *ROBERTA.conversions,
        Conversion(lambda values: read_windows(values, "num_hidden_layers", 12), write_windows),
    ),
    required={},
    weights=(
        *ROBERTA.weights,
        *layers(GLOBAL, "encoder/layer_{i}/", "encoder.layer.{i}.attention.self."),
    ),
    names=Names(prefixes=("longformer.",), suffixes=ROBERTA.names.suffixes),
)
