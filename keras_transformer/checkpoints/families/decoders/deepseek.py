"""DeepseekV2: DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434, and similar models.

DeepseekV3: DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437.

Latent attention, and after some dense layers experts with a shared one. The experts of a token are
from few groups; from version 3 on, a bias balances their choice. The layers that predict further
tokens in training are not loaded.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    cycle_of_layers,
    decoder_heads,
    number,
    rotary,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.families.decoders.olmoe import EXPERTS
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    fused,
    layers,
    output_matrix,
)
from keras_transformer.config import MOST_LAYERS, TransformerConfig

_OURS, _THEIRS = "decoder/layer_{i}/", "layers.{i}."
_LAYER = {
    "self_attention/query_down": "self_attn.q_a_proj",
    "self_attention/query_norm": "self_attn.q_a_layernorm",
    "self_attention/latent": "self_attn.kv_a_proj_with_mqa",
    "self_attention/latent_norm": "self_attn.kv_a_layernorm",
    "self_attention/output": "self_attn.o_proj",
    "self_attention_norm": "input_layernorm",
    "feed_forward/gate": "mlp.gate_proj",
    "feed_forward/intermediate": "mlp.up_proj",
    "feed_forward/output": "mlp.down_proj",
    "feed_forward_norm": "post_attention_layernorm",
}
SHARED = layers(
    {
        "feed_forward/shared/gate": "mlp.shared_experts.gate_proj",
        "feed_forward/shared/intermediate": "mlp.shared_experts.up_proj",
        "feed_forward/shared/output": "mlp.shared_experts.down_proj",
    },
    _OURS,
    _THEIRS,
)
CORRECTION = WeightLine(
    f"{_OURS}feed_forward/correction_bias", f"{_THEIRS}mlp.gate.e_score_correction_bias"
)


class _Query(WeightLine):
    """The projection of the queries, which has another name if it is from a latent vector."""

    def for_config(self, config):
        name = "q_proj" if config.q_lora_rank is None else "q_b_proj"
        return dataclasses.replace(self, theirs=self.theirs.replace("*", name))


class _OfHeads(WeightLine):
    """Keys and values, side by side within each head."""

    def for_config(self, config):
        sizes = (config.qk_nope_head_dim, config.v_head_dim)
        return dataclasses.replace(self, sizes=sizes, groups=config.num_heads)


_WEIGHTS = (
    *layers({"token_embedding": "embed_tokens", "decoder/final_norm": "norm"}),
    output_matrix("lm_head.weight"),
    *layers(_LAYER, _OURS, _THEIRS),
    *layers({"self_attention/query": "self_attn.*"}, _OURS, _THEIRS, line=_Query),
    *fused(
        (f"{_OURS}self_attention/key", f"{_OURS}self_attention/value"),
        f"{_THEIRS}self_attn.kv_b_proj",
        line=_OfHeads,
    ),
    *EXPERTS,
    *SHARED,
)
_ROTARY = rotary()


def _read_rotary(values: Values) -> dict[str, Any]:
    options = values.get("rope_parameters") or values.get("rope_scaling") or {}
    ours = _ROTARY.read(values)
    scaled = isinstance(options, dict) and options.get("mscale_all_dim")
    if ours.get("rotary_scaling") not in (None, "yarn") and scaled:
        raise ValueError(
            f"mscale_all_dim={options['mscale_all_dim']!r} of rope_parameters is supported only "
            "for rope_type='yarn'."
        )
    return ours


def _read_heads(values: Values) -> dict[str, Any]:
    heads, of_keys = values.get("num_attention_heads"), values.get("num_key_value_heads")
    if None not in (heads, of_keys) and heads != of_keys:
        raise ValueError(
            f"num_key_value_heads={of_keys!r} is not supported with num_attention_heads={heads!r}: "
            "all heads have keys and values of their own."
        )
    return {}


def _refuse_bytes(values: Values) -> dict[str, Any]:
    if values.get("quantization_config"):
        raise ValueError(
            "quantization_config is not supported: the weights are stored in blocks of few bits, "
            "such as FP8. Take a checkpoint in bfloat16."
        )
    return {}


HEADS = Conversion(_read_heads, lambda config: {"num_key_value_heads": config.num_heads})
NOT_QUANTIZED = Conversion(_refuse_bytes, lambda config: {})
LATENT_ROTARY = Conversion(_read_rotary, _ROTARY.write)


def first_dense(default_layers: int, default: int) -> Conversion:
    """Return a conversion of `first_k_dense_replace` to and from a list: which layers have experts.

    Args:
        default_layers: int, default of `num_hidden_layers`.
        default: int, default of `first_k_dense_replace`.
    """

    def read(values: Values) -> dict[str, Any]:
        first = number(values, "first_k_dense_replace", default)
        return {"sparse": [i >= first for i in range(number_of_layers(values, default_layers))]}

    return Conversion(read, lambda sparse: {"first_k_dense_replace": sparse.count(False)})


def number_of_layers(values: Values, default: int) -> int:
    """Return `num_hidden_layers`. Raises ValueError if it is not the depth of a model."""
    count = number(values, "num_hidden_layers", default)
    if not 0 < count <= MOST_LAYERS:
        raise ValueError(f"num_hidden_layers={count} is not from 1 to {MOST_LAYERS:,}.")
    return count


def experts(number_of: int, width: int, shared: int, places: Conversion) -> Conversion:
    """Return a conversion of experts, those shared by all tokens, and the layers that have them.

    Args:
        number_of: int, default of `n_routed_experts`.
        width: int, default of `moe_intermediate_size`.
        shared: int, default of `n_shared_experts`.
        places: conversion of the published values to `{"sparse": list}`, and of the list to them.
    """

    def read(values: Values) -> dict[str, Any]:
        dim = number(values, "moe_intermediate_size", width)
        of_all = number(values, "n_shared_experts", shared)
        if of_all < 1:
            raise ValueError(f"n_shared_experts must be at least 1, received {of_all}.")
        found = number(values, "n_routed_experts", number_of)
        own = {True: {"num_experts": found}, False: {"num_experts": 0}}
        kinds = cycle_of_layers(places.read(values)["sparse"], own)
        return {"expert_dim": dim, "shared_expert_dim": of_all * dim, **kinds}

    def write(config: TransformerConfig) -> dict[str, Any]:
        each = [layer.num_experts for layer in config.layers]
        # In a model without experts their sizes do not matter.
        of_all = config.shared_expert_dim // config.expert_dim if any(each) else shared
        return {
            **places.write([count > 0 for count in each]),
            "n_routed_experts": max(each) or number_of,
            "moe_intermediate_size": config.expert_dim,
            "n_shared_experts": of_all,
        }

    return Conversion(read, write)


def groups(
    default: int | None, default_limit: int | None, by: Callable | None = None
) -> Conversion:
    """Return a conversion of groups of experts; `by(values)` says whether they are used."""

    def read(values: Values) -> dict[str, Any]:
        unused = {"expert_groups": 1, "expert_group_limit": None}
        if by is not None and not by(values):
            return unused
        count = number(values, "n_group", default)
        limit = number(values, "topk_group", default_limit)
        return unused if count == limit else {"expert_groups": count, "expert_group_limit": limit}

    def write(config: TransformerConfig) -> dict[str, Any]:
        count, limit = config.expert_groups, config.expert_group_limit
        theirs = {"n_group": count, "topk_group": limit or count}
        if by is not None:
            theirs["topk_method"] = "greedy" if count == 1 else _LIMITED
        return theirs

    return Conversion(read, write)


_LIMITED = "group_limited_greedy"


def _is_limited(values: Values) -> bool:
    method = values.get("topk_method", "greedy")
    if method not in ("greedy", _LIMITED):
        raise ValueError(f"topk_method={method!r} is not supported, only 'greedy', {_LIMITED!r}.")
    return method == _LIMITED


# Transformers has no default.
_PER_TOKEN = Conversion(
    lambda values: {"experts_per_token": values.get("num_experts_per_tok") or 6},
    lambda config: {"num_experts_per_tok": config.experts_per_token},
)
_LATENT = {
    "kv_lora_rank": ConfigField("kv_lora_rank", 512),
    "q_lora_rank": ConfigField("q_lora_rank", 1536),
    "qk_nope_head_dim": ConfigField("qk_nope_head_dim", 128),
    "qk_rope_head_dim": ConfigField("qk_rope_head_dim", 64),
    "v_head_dim": ConfigField("v_head_dim", 128),
    "attention_bias": ConfigField("attention_bias", False),
}
_FIELDS = {
    name: field
    for name, field in LLAMA.fields.items()
    if name not in ("num_key_value_heads", "head_dim", "mlp_bias")
}
_CONSTANTS = {
    **LLAMA.constants,
    "use_bias": False,
    "latent_norm_epsilon": 1e-6,
    "shared_expert_gate": False,
}

DEEPSEEK_V2 = Family(
    model_type="deepseek_v2",
    architecture="DeepseekV2Model",
    fields={
        **_FIELDS,
        **_LATENT,
        "vocab_size": ConfigField("vocabulary_size", 102400),
        "routed_scaling_factor": ConfigField("expert_weight_scale", 1.0),
    },
    constants={**_CONSTANTS, "rotary_interleaved": True, "normalize_expert_weights": False},
    conversions=(
        LATENT_ROTARY,
        HEADS,
        NOT_QUANTIZED,
        experts(64, 1407, 2, first_dense(32, 0)),
        groups(None, None, _is_limited),
        _PER_TOKEN,
    ),
    required={
        "norm_topk_prob": False,
        "mlp_bias": False,
        "scoring_func": "softmax",
        "moe_layer_freq": 1,
    },
    weights=_WEIGHTS,
    heads=decoder_heads(),
    names=Names(prefixes=("model.",)),
)

# What only a layer that predicts further tokens has.
_FURTHER_TOKENS = "eh_proj.weight"
NO_FURTHER_TOKENS = Conversion(lambda values: {}, lambda config: {"num_nextn_predict_layers": 0})
V3_ROUTER = {
    "router_activation": "sigmoid",
    "router_correction_bias": True,
    "expert_group_score": "top_two",
    "shared_expert_gate": False,
}

DEEPSEEK_V3 = dataclasses.replace(
    DEEPSEEK_V2,
    model_type="deepseek_v3",
    architecture="DeepseekV3Model",
    fields={
        **_FIELDS,
        **_LATENT,
        "vocab_size": ConfigField("vocabulary_size", 129280),
        "hidden_size": ConfigField("hidden_dim", 7168),
        "num_hidden_layers": ConfigField("num_layers", 61),
        "num_attention_heads": ConfigField("num_heads", 128),
        "intermediate_size": ConfigField("intermediate_dim", 18432),
        "max_position_embeddings": ConfigField("max_sequence_length", 4096),
        "num_experts_per_tok": ConfigField("experts_per_token", 8),
        "norm_topk_prob": ConfigField("normalize_expert_weights", True),
        "routed_scaling_factor": ConfigField("expert_weight_scale", 2.5),
        "rope_interleave": ConfigField("rotary_interleaved", True),
    },
    constants={**_CONSTANTS, **V3_ROUTER},
    conversions=(
        LATENT_ROTARY,
        HEADS,
        NOT_QUANTIZED,
        experts(256, 2048, 1, first_dense(61, 3)),
        groups(8, 4),
        NO_FURTHER_TOKENS,
    ),
    required={"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    weights=(*_WEIGHTS, CORRECTION),
    heads=decoder_heads(tokens="score"),
    names=Names(prefixes=("model.",), apart=_FURTHER_TOKENS),
)
