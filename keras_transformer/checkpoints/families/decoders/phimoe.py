"""Phimoe: Abdin et al. 2024, https://arxiv.org/abs/2404.14219 (Phi-3.5-MoE).

A Mixtral with LayerNorm, whose router takes one expert after the other. In training Transformers
draws experts at random; here they are the best ones, as in evaluation. Rows that are longer than
the original length have the long factors of LongRoPE, as published, while Transformers keeps the
short ones.
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
from keras_transformer.checkpoints.families.decoders.mixtral import MIXTRAL
from keras_transformer.checkpoints.weights.tables import WeightLine
from keras_transformer.config import Router, TransformerConfig

_ROTARY = rotary(default_base=1e6, scalings=("longrope",), longrope=("su",))
_FACTORS = ("short_mscale", "long_mscale")


def _read_rotary(values: Values) -> dict[str, Any]:
    options = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(options, dict):
        raise ValueError(f"rope_parameters must be an object, received {options!r}.")
    others = {name: value for name, value in options.items() if name not in _FACTORS}
    ours = _ROTARY.read({**values, "rope_parameters": others})
    if ours.get("rotary_scaling") is None:
        return ours
    short, long = (number(options, name, None, float) for name in _FACTORS)
    if short != long:
        raise ValueError(
            f"short_mscale={short} and long_mscale={long} of rope_parameters must be equal."
        )
    return {**ours, "rotary_attention_factor": short}


def _write_rotary(config: TransformerConfig) -> dict[str, Any]:
    theirs = _ROTARY.write(config)
    factor = config.rotary_attention_factor
    if factor is not None:
        theirs["rope_parameters"] |= dict.fromkeys(_FACTORS, factor)
    return theirs


def _read_router(values: Values) -> dict[str, Any]:
    noise = number(values, "router_jitter_noise", 0.01, float)
    return {"router": Router(activation="sparse_mixer", tolerance=noise)}


def _write_router(config: TransformerConfig) -> dict[str, Any]:
    router = getattr(config.last_side.block.feed_forward, "router", None) or Router()
    return {"router_jitter_noise": router.tolerance}


PHIMOE = dataclasses.replace(
    MIXTRAL,
    model_type="phimoe",
    architecture="PhimoeModel",
    fields={
        **MIXTRAL.fields,
        "vocab_size": ConfigField("vocabulary_size", 32064),
        "intermediate_size": ConfigField("intermediate_dim", 6400),
        "num_local_experts": ConfigField("num_experts", 16),
        "attention_bias": ConfigField("attention_bias", False),
        "lm_head_bias": ConfigField("output_bias", False),
    },
    constants={
        **MIXTRAL.constants,
        "normalization": "layer_norm",
        "normalize_expert_weights": False,
    },
    conversions=(
        Conversion(_read_rotary, _write_rotary),
        Conversion(_read_router, _write_router),
    ),
    required={"num_experts_per_tok": 2},
    weights=(*MIXTRAL.weights, WeightLine("output_bias/bias", "lm_head.bias", outside=True)),
    heads={"CausalLM": PublishedHead()},
)
