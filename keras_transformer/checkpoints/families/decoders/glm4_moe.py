"""Glm4Moe: Zeng et al. 2025, https://arxiv.org/abs/2508.06471, and GLM-4.7-Flash.

The experts and the router of DeepSeek-V3. `glm4_moe` (GLM-4.5) has attention with few key and value
heads, half of each rotated; `glm4_moe_lite` (GLM-4.7-Flash) has latent attention.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import number, number_of_layers, rotary
from keras_transformer.checkpoints.families.decoders.deepseek import (
    CORRECTION,
    DEEPSEEK_V3,
    NO_FURTHER_TOKENS,
    SHARED,
    V3_ROUTER,
    experts,
    first_dense,
    latent,
    router,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.families.decoders.olmoe import EXPERTS

_DENSE, _SPARSE = "dense", "sparse"


def _read_types(values: Values) -> dict[str, Any]:
    count = number_of_layers(values, 47)
    kinds = values.get("mlp_layer_types")
    if kinds is None:
        kinds = [_DENSE] + [_SPARSE] * (count - 1)
    known = isinstance(kinds, list) and all(kind in (_DENSE, _SPARSE) for kind in kinds)
    if not known or len(kinds) != count:
        raise ValueError(
            f"mlp_layer_types must be a list of {count} names, {_DENSE!r} or {_SPARSE!r}, received "
            f"{kinds!r}."
        )
    return {"sparse": [kind == _SPARSE for kind in kinds]}


_TYPES = Conversion(
    _read_types,
    lambda sparse: {"mlp_layer_types": [_SPARSE if own else _DENSE for own in sparse]},
)


def _read_head_dim(values: Values) -> dict[str, Any]:
    if values.get("head_dim") is not None:
        return {"head_dim": values["head_dim"]}
    width, heads = number(values, "hidden_size", 4096), number(values, "num_attention_heads", 96)
    return {"head_dim": width // max(heads, 1)}


_HEAD_DIM = Conversion(_read_head_dim, lambda config: {"head_dim": config.head_dim})

GLM4_MOE_LITE = dataclasses.replace(
    DEEPSEEK_V3,
    model_type="glm4_moe_lite",
    architecture="Glm4MoeLiteModel",
    fields={
        **DEEPSEEK_V3.fields,
        "vocab_size": ConfigField("vocabulary_size", 154880),
        "hidden_size": ConfigField("hidden_dim", 2048),
        "num_hidden_layers": ConfigField("num_layers", 47),
        "intermediate_size": ConfigField("intermediate_dim", 10240),
        "max_position_embeddings": ConfigField("max_sequence_length", 202752),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "num_experts_per_tok": ConfigField("experts_per_token", 4),
    },
    conversions=(
        latent(num_attention_heads=20, q_lora_rank=768, qk_nope_head_dim=192, v_head_dim=256),
        experts(64, 1536, 1, _TYPES),
        router(1.8, 1, 1, **V3_ROUTER),
    ),
    required={"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    heads={"CausalLM": DEEPSEEK_V3.heads["CausalLM"]},  # Transformers has no classifier for it
)

GLM4_MOE = dataclasses.replace(
    LLAMA,
    model_type="glm4_moe",
    architecture="Glm4MoeModel",
    fields={
        **{n: field for n, field in LLAMA.fields.items() if n not in ("mlp_bias", "head_dim")},
        "vocab_size": ConfigField("vocabulary_size", 151552),
        "num_hidden_layers": ConfigField("num_layers", 46),
        "num_attention_heads": ConfigField("num_heads", 96),
        "num_key_value_heads": ConfigField("num_key_value_heads", 8),
        "intermediate_size": ConfigField("intermediate_dim", 10944),
        "max_position_embeddings": ConfigField("max_sequence_length", 131072),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "use_qk_norm": ConfigField("query_key_norm", False),
        "num_experts_per_tok": ConfigField("experts_per_token", 8),
        "norm_topk_prob": ConfigField("normalize_expert_weights", True),
    },
    constants={
        **LLAMA.constants,
        "use_bias": False,
        "attention_output_bias": False,
        "shared_expert_gate": False,
    },
    conversions=(
        rotary(0.5, 42),
        _HEAD_DIM,
        experts(128, 1408, 1, first_dense(46, 1)),
        router(1.0, 1, 1, **V3_ROUTER),
        NO_FURTHER_TOKENS,
    ),
    weights=(*LLAMA.weights, *EXPERTS, *SHARED, CORRECTION),
    heads={"CausalLM": LLAMA.heads["CausalLM"]},  # Transformers has no classifier for it
    names=DEEPSEEK_V3.names,
)
