"""Granite: Granite Team 2024, https://github.com/ibm-granite/granite-3.0-language-models.

A Llama with factors on the embeddings, the sub-layer outputs, the scores and the logits.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number, rotary
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.config import TransformerConfig


def _read_scales(values: Values) -> dict[str, Any]:
    divisor = number(values, "logits_scaling", 1.0, float)
    if not divisor > 0:
        raise ValueError(f"logits_scaling must be positive, received {divisor!r}.")
    scale = number(values, "attention_multiplier", 1.0, float)
    return {"logit_scale": 1 / divisor, "score_scale": scale}


def _write_scales(config: TransformerConfig) -> dict[str, Any]:
    scale = config.head_dim**-0.5 if config.score_scale is None else config.score_scale
    return {"logits_scaling": 1 / config.logit_scale, "attention_multiplier": scale}


GRANITE = dataclasses.replace(
    LLAMA,
    model_type="granite",
    architecture="GraniteModel",
    fields={
        **LLAMA.fields,
        "embedding_multiplier": ConfigField("embedding_scale", 1.0),
        "residual_multiplier": ConfigField("residual_scale", 1.0),
    },
    conversions=(rotary(), Conversion(_read_scales, _write_scales)),
    heads={"CausalLM": PublishedHead()},
)
