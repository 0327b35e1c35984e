"""CodeGen: Nijkamp et al. 2022, https://arxiv.org/abs/2203.13474.

A GPT-J with one matrix of queries, values and keys, stored in the four parts of its training.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.decoders.gptj import GPTJ
from keras_transformer.checkpoints.weights.tables import Names, fused

_PARTS = 4
_QVK = [f"decoder/layer_{{i}}/self_attention/{name}" for name in ("query", "value", "key")]
_FUSED = fused(_QVK, "h.{i}.attn.qkv_proj", groups=_PARTS)
_PLACES = {line.ours for line in _FUSED}


def _check_heads(values: Values) -> dict[str, Any]:
    heads = number(values, "n_head", 16)
    if heads % _PARTS:
        raise ValueError(f"n_head={heads} is not supported, only multiples of {_PARTS}.")
    return {}


CODEGEN = dataclasses.replace(
    GPTJ,
    model_type="codegen",
    architecture="CodeGenModel",
    conversions=(*GPTJ.conversions, Conversion(_check_heads, lambda config: {})),
    weights=(*(line for line in GPTJ.weights if line.ours not in _PLACES), *_FUSED),
    heads={"CausalLM": PublishedHead()},
    names=Names(prefixes=("transformer.",)),
)
