"""DeepseekV2: DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434, and similar models.

DeepseekV3: DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437.

Latent attention, and after some dense layers experts with a shared one. The experts of a token are
from few groups; from version 3 on, a bias balances their choice. The layers that predict further
tokens in training are not loaded.
"""

import dataclasses
import math
from collections.abc import Callable
from types import SimpleNamespace
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
    number_of_layers,
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
from keras_transformer.config import Experts, LatentAttention, Router, TransformerConfig
from keras_transformer.config.flat import DEFAULTS, rotary_values
from keras_transformer.config.flat import rotary as rotary_part

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


def latent_of(config: TransformerConfig) -> LatentAttention | None:
    """Return the latent attention of the first layer that has one."""
    mixers = (block.mixer for block in config.last_side.every_block)
    return next((mixer for mixer in mixers if isinstance(mixer, LatentAttention)), None)


class _Query(WeightLine):
    """The projection of the queries, which has another name if it is from a latent vector."""

    def for_config(self, config):
        name = "q_proj" if getattr(latent_of(config), "q_lora_rank", None) is None else "q_b_proj"
        return dataclasses.replace(self, theirs=self.theirs.replace("*", name))


class _OfHeads(WeightLine):
    """Keys and values, side by side within each head."""

    def for_config(self, config):
        mixer = latent_of(config)
        if mixer is None:
            return self
        sizes = (mixer.qk_nope_head_dim, mixer.v_head_dim)
        return dataclasses.replace(self, sizes=sizes, groups=mixer.num_heads)


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
# Published names and defaults of the sizes of latent attention.
_SIZES = {
    "num_attention_heads": ("num_heads", 32),
    "kv_lora_rank": ("kv_lora_rank", 512),
    "q_lora_rank": ("q_lora_rank", 1536),
    "qk_nope_head_dim": ("qk_nope_head_dim", 128),
    "qk_rope_head_dim": ("qk_rope_head_dim", 64),
    "v_head_dim": ("v_head_dim", 128),
}
_LEFT_OUT = "q_lora_rank"  # null projects queries from the states themselves
_ALL_DIM = "mscale_all_dim"


def latent(interleaved: bool | None = None, **defaults: int) -> Conversion:
    """Return a conversion of latent attention.

    Args:
        interleaved: bool, whether neighbouring features are rotated. Read from `rope_interleave` if
            None.
        **defaults: int, the published defaults that differ from the ones of version 2.
    """
    usual = {name: defaults.get(name, default) for name, (_, default) in _SIZES.items()}

    def read(values: Values) -> dict[str, Any]:
        given = {**usual, **values}
        sizes = {
            ours: None if ours == _LEFT_OUT and given[name] is None else number(given, name, None)
            for name, (ours, _) in _SIZES.items()
        }
        of_keys = values.get("num_key_value_heads")
        if of_keys not in (None, sizes["num_heads"]):
            raise ValueError(
                f"num_key_value_heads={of_keys!r} is not supported with num_attention_heads="
                f"{sizes['num_heads']!r}: all heads have keys and values of their own."
            )
        # The share of rotated features is of the whole of `qk_rope_head_dim`.
        turned = _ROTARY.read({**values, "head_dim": sizes["qk_rope_head_dim"]})
        pairs = values.get("rope_interleave", True) if interleaved is None else interleaved
        width = sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"]
        mixer = LatentAttention(
            **sizes,
            bias=values.get("attention_bias", False),
            dropout=values.get("attention_dropout", 0.0),
            scale=_read_scale(values, turned, width),
            position=rotary_part({**turned, "position": "rotary", "rotary_interleaved": pairs}),
        )
        return {"mixer": mixer}

    def write(config: TransformerConfig) -> dict[str, Any]:
        mixer = latent_of(config)
        if mixer is None or mixer.position is None:
            return {}  # which no published values say
        theirs = {name: getattr(mixer, ours) for name, (ours, _) in _SIZES.items()}
        position = {**DEFAULTS, **rotary_values(mixer.position)}
        width = {"head_dim": mixer.qk_rope_head_dim}
        options = _ROTARY.write(SimpleNamespace(**position | width))
        if interleaved is None:
            options["rope_interleave"] = mixer.position.interleaved
        if mixer.scale is not None:
            options["rope_parameters"] |= _write_scale(mixer)
        return {
            **theirs,
            **options,
            "num_key_value_heads": mixer.num_heads,
            "attention_bias": mixer.bias,
            "attention_dropout": mixer.dropout,
        }

    return Conversion(read, write)


def _read_scale(values: Values, turned: Values, width: int) -> float | None:
    """Return the factor of the scores, if the published values raise it for longer texts."""
    options = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not options.get(_ALL_DIM) or turned.get("rotary_scaling") is None:
        return None
    if turned["rotary_scaling"] != "yarn":
        raise ValueError(
            f"{_ALL_DIM}={options[_ALL_DIM]!r} of rope_parameters is supported only for "
            "rope_type='yarn'."
        )
    share = number(options, _ALL_DIM, None, float)
    return _raised(width, turned["rotary_factor"], share)


def _raised(width: int, factor: float, share: float) -> float | None:
    """Return the factor of the scores of heads of this width. None stands for the usual one."""
    raised = 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0
    return None if raised == 1 else width**-0.5 * raised * raised


def _write_scale(mixer: LatentAttention) -> dict[str, Any]:
    """Return the published value from which `_read_scale` derives the factor of the scores."""
    factor = getattr(mixer.position.scaling, "factor", 1.0)
    if factor <= 1:
        return {}
    width = mixer.qk_head_dim
    exact = (math.sqrt(mixer.scale / width**-0.5) - 1) / (0.1 * math.log(factor))
    # Rounding may have moved it by a few places of the last digit.
    near = (exact + i * side * math.ulp(exact) for i in range(1, 65) for side in (1, -1))
    shares = (*(round(exact, digits) for digits in (6, 12)), exact, *near)
    fitting = (share for share in shares if _raised(width, factor, share) == mixer.scale)
    return {_ALL_DIM: next(fitting, exact)}


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


def router(
    scale: float,
    groups: int | None = None,
    limit: int | None = None,
    by: Callable[[Values], bool] | None = None,
    **options: Any,
) -> Conversion:
    """Return a conversion of the router.

    Args:
        scale: float, default of `routed_scaling_factor`.
        groups: int, default of `n_group`.
        limit: int, default of `topk_group`.
        by: function of the published values, whether experts are chosen by groups; None if they
            always are.
        **options: values of `config.Router` that are the same for the whole family.
    """

    def read(values: Values) -> dict[str, Any]:
        own = {"weight_scale": number(values, "routed_scaling_factor", scale, float)}
        if by is None or by(values):
            count, most = number(values, "n_group", groups), number(values, "topk_group", limit)
            if count != most:
                own |= {"groups": count, "group_limit": most}
        return {"router": Router(**options, **own)}

    def write(config: TransformerConfig) -> dict[str, Any]:
        layers_ = (block.feed_forward for block in config.last_side.every_block)
        routers = (one.router or Router() for one in layers_ if isinstance(one, Experts))
        one = next(routers, Router())
        theirs = {"n_group": one.groups, "topk_group": one.seen_groups}
        if by is not None:
            theirs["topk_method"] = "greedy" if one.groups == 1 else _LIMITED
        return {**theirs, "routed_scaling_factor": one.weight_scale}

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
_OF_MIXER = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "attention_bias",
    "attention_dropout", "mlp_bias",
)  # fmt: skip
_FIELDS = {name: field for name, field in LLAMA.fields.items() if name not in _OF_MIXER}
_CONSTANTS = {
    **LLAMA.constants,
    "position": "none",  # the mixer has the rotation
    "use_bias": False,
    "shared_expert_gate": False,
}

DEEPSEEK_V2 = Family(
    model_type="deepseek_v2",
    architecture="DeepseekV2Model",
    fields={
        **_FIELDS,
        "vocab_size": ConfigField("vocabulary_size", 102400),
    },
    constants={**_CONSTANTS, "normalize_expert_weights": False},
    conversions=(
        latent(interleaved=True),
        experts(64, 1407, 2, first_dense(32, 0)),
        router(1.0, by=_is_limited),
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
V3_ROUTER = {"activation": "sigmoid", "correction_bias": True, "group_score": "top_two"}

DEEPSEEK_V3 = dataclasses.replace(
    DEEPSEEK_V2,
    model_type="deepseek_v3",
    architecture="DeepseekV3Model",
    fields={
        **_FIELDS,
        "vocab_size": ConfigField("vocabulary_size", 129280),
        "hidden_size": ConfigField("hidden_dim", 7168),
        "num_hidden_layers": ConfigField("num_layers", 61),
        "intermediate_size": ConfigField("intermediate_dim", 18432),
        "max_position_embeddings": ConfigField("max_sequence_length", 4096),
        "num_experts_per_tok": ConfigField("experts_per_token", 8),
        "norm_topk_prob": ConfigField("normalize_expert_weights", True),
    },
    constants=_CONSTANTS,
    conversions=(
        latent(num_attention_heads=128),
        experts(256, 2048, 1, first_dense(61, 3)),
        router(2.5, 8, 4, **V3_ROUTER),
        NO_FURTHER_TOKENS,
    ),
    required={"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    weights=(*_WEIGHTS, CORRECTION),
    heads=decoder_heads(tokens="score"),
    names=Names(prefixes=("model.",), apart=_FURTHER_TOKENS),
)
