"""Ministral3: Mistral AI 2025, https://huggingface.co/mistralai/Ministral-3-8B-Base-2512.

Ministral: Mistral AI 2024, https://huggingface.co/mistralai/Ministral-8B-Instruct-2410.

A Mistral whose queries are multiplied by a factor that grows with the position. The older Ministral
is a Mistral with a window in some layers.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import (
    NO_PADDING,
    number,
    rotary,
    windows,
)
from keras_transformer.checkpoints.families.decoders.llama import MISTRAL
from keras_transformer.config import TransformerConfig

_GROWTH = "llama_4_scaling_beta"
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    _GROWTH: 0.1,
}
_ROTARY = rotary()


def _read_rotary(values: Values) -> Values:
    options = values.get("rope_parameters") or values.get("rope_scaling") or _YARN
    ours = _ROTARY.read({**values, "rope_parameters": options})
    growth = 0.0 if options.get(_GROWTH) is None else number(options, _GROWTH, None, float)
    if growth and ours.get("rotary_scaling") in (None, "linear"):
        kind = ours.get("rotary_scaling") or "default"
        raise ValueError(f"{_GROWTH}={growth} is not supported with rope_type={kind!r}.")
    return {**ours, "rotary_query_growth": growth or None}


def _write_rotary(config: TransformerConfig) -> Values:
    options = {
        # Transformers computes the factor in any case, by these two values.
        _GROWTH: config.rotary_query_growth or 0.0,
        "original_max_position_embeddings": config.max_sequence_length,
        **_ROTARY.write(config)["rope_parameters"],
    }
    return {"rope_parameters": options}


MINISTRAL3 = dataclasses.replace(
    MISTRAL,
    model_type="ministral3",
    architecture="Ministral3Model",
    fields={
        **MISTRAL.fields,
        "vocab_size": ConfigField("vocabulary_size", 131072),
        "num_hidden_layers": ConfigField("num_layers", 34),
        "head_dim": ConfigField("head_dim", 128),
        "max_position_embeddings": ConfigField("max_sequence_length", 262144),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "sliding_window": ConfigField("window", None),
    },
    conversions=(Conversion(_read_rotary, _write_rotary), NO_PADDING),
)

MINISTRAL = dataclasses.replace(
    MISTRAL,
    model_type="ministral",
    architecture="MinistralModel",
    fields={name: field for name, field in MISTRAL.fields.items() if name != "sliding_window"},
    conversions=(rotary(), windows(32, 4096, lambda values, i: True)),
)
