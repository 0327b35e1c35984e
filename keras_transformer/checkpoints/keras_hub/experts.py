"""KerasHub decoders with experts: Mixtral, the MoE models of Qwen 2, 3 and 3.5, and gpt-oss.

Facts are from KerasHub 0.32, `models/mixtral/*.py`, `models/qwen_moe/*.py`,
`models/qwen3_moe/*.py`, `models/qwen3_5_moe/*.py` and `models/gpt_oss/*.py`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import (
    cycle_of_layers,
    flag,
    number,
    number_of_layers,
)
from keras_transformer.checkpoints.families.decoders.gpt_oss import GPT_OSS
from keras_transformer.checkpoints.families.decoders.qwen_moe import (
    layers_alike,
    layers_with_experts,
)
from keras_transformer.checkpoints.keras_hub.decoders import (
    LINEAR_ROTATION,
    LLAMA_TABLE,
    TIED,
    like_llama,
    like_qwen3_5,
)
from keras_transformer.checkpoints.keras_hub.family import DROPOUT, HEAD_WIDTH, Line, layers
from keras_transformer.checkpoints.weights.tables import attention, fused
from keras_transformer.config import TransformerConfig

_OURS = "decoder/layer_{i}/"
_PARTS = ("query", "key", "value", "output")
_BRANCHES = tuple(f"{_OURS}feed_forward/expert_{name}" for name in ("gate", "intermediate"))
_OUTPUT = f"{_OURS}feed_forward/expert_output"
_GIVEN = {
    "num_experts": ConfigField("num_experts", None),
    "top_k": ConfigField("experts_per_token", 2),
}

# Mixtral

_MIXTRAL = "layers/mixtral_transformer_decoder{i}/"
_MIXTRAL_EXPERTS = f"{_MIXTRAL}_sparse_moe_block/expert_bank/vars/"
_MIXTRAL_TABLE = {
    **attention("_self_attention_layer/{}_dense", *_PARTS),
    "self_attention_norm": "_self_attention_layernorm",
    "feed_forward_norm": "_feedforward_layernorm",
    "feed_forward/router": "_sparse_moe_block/_sparse_feedforward_gate_dense",
}

# Qwen


def _of_qwen(values: Values, switch: str | None) -> dict[str, Any]:
    """Return the published values of the layers; `switch` is the argument that enables a window."""
    size = values.get("sliding_window_size", 32768)
    return {
        "num_hidden_layers": values["num_layers"],
        "num_experts": values["num_experts"],
        "decoder_sparse_step": values.get("decoder_sparse_step", 1),
        "mlp_only_layers": values.get("mlp_only_layers") or None,
        "use_sliding_window": bool(size) if switch is None else flag(values, switch),
        "sliding_window": size or None,
    }


def _qwen_layers(switch: str | None) -> Conversion:
    published = layers_with_experts(1, layers_alike)

    def write(config: TransformerConfig) -> dict[str, Any]:
        theirs = published.write(config)
        names = ("num_experts", "decoder_sparse_step", "mlp_only_layers")
        size = theirs["sliding_window"]
        used = {} if switch is None else {switch: size is not None}
        windows = {"sliding_window_size": size} if switch is None or size is not None else {}
        return {name: theirs[name] for name in names} | used | windows

    return Conversion(lambda values: published.read(_of_qwen(values, switch)), write)


_QWEN_FIELDS = {
    **TIED,
    "tie_word_embeddings": ConfigField("tie_embeddings", False),
    "moe_intermediate_dim": ConfigField("expert_dim", None),
    "top_k": ConfigField("experts_per_token", 4),
    "norm_top_k_prob": ConfigField("normalize_expert_weights", False),
    "router_aux_loss_coefficient": ConfigField("load_balancing_factor", 0.001),
}
_QWEN_ARGUMENTS = (
    "num_experts",
    "decoder_sparse_step",
    "mlp_only_layers",
    "sliding_window_size",
    "rope_scaling_factor",
)
_DENSE = {
    f"feed_forward/{name}": f"mlp/_feedforward_{name}_dense"
    for name in ("gate", "intermediate", "output")
}
_SHARED = {
    **{
        ours.replace("/", "/shared/"): its.replace("/", "/shared_expert_dense/")
        for ours, its in _DENSE.items()
    },
    "feed_forward/shared_score": "mlp/shared_expert_gate_dense",
}
_OF_QWEN = {**_DENSE, "feed_forward/router": "mlp/_sparse_feedforward_gate_dense"}
_QWEN2_TABLE = {
    **attention("_self_attention_layer/{}_dense", *_PARTS),
    # The projection of the output alone still has a private name.
    "self_attention/output": "_self_attention_layer/_output_dense",
    "self_attention_norm": "_self_attention_layernorm",
    "feed_forward_norm": "_feedforward_layernorm",
    **_OF_QWEN,
    **_SHARED,
}


def _bank(layer: str) -> tuple[Line, ...]:
    """Return the lines of Qwen's experts, whose gates are beside what they multiply."""
    bank = f"layers/{layer}{{i}}/mlp/expert_bank/vars/"
    return (
        *fused(_BRANCHES, f"{bank}0", layers, ends=("", "/bias")),
        Line(f"{_OUTPUT}/kernel", f"{bank}1"),
    )


_QWEN3_5 = "qwen3_5_moe_transformer_decoder"
_QWEN3_5_TABLE = {
    "feed_forward/router": "mlp/_router_gate",
    "feed_forward/shared_score": "mlp/_shared_expert_gate",
    **{
        f"feed_forward/shared/{name}": f"mlp/shared_expert/_feedforward_{name}_dense"
        for name in ("gate", "intermediate", "output")
    },
}

# gpt-oss

_GPT_OSS = "layers/gpt_oss_transformer_decoder{i}/"
_GPT_OSS_EXPERTS = f"{_GPT_OSS}sparse_moe_block/experts/vars/"
_GPT_OSS_TABLE = {
    **attention("self_attention_layer/{}_dense", *_PARTS),
    "self_attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward/router": "sparse_moe_block/router/router_dense",
}


def _read_gpt_oss(values: Values) -> dict[str, Any]:
    # Every second layer has a window, of which the token itself is one more.
    size = number(values, "sliding_window", 4096) + 1
    count = number_of_layers({"num_hidden_layers": values["num_layers"]}, 1)
    own = {False: {"window": None}, True: {"window": size}}
    ours = cycle_of_layers([i % 2 == 1 for i in range(count)], own)
    factor = number(values, "rope_scaling_factor", 1.0, float)
    return ours | {
        "head_dim": values.get("head_dim") or HEAD_WIDTH.read(values)["head_dim"],
        "rotary_factor": factor,
    }


def _write_gpt_oss(config: TransformerConfig) -> dict[str, Any]:
    found = [layer.window for layer in config.layers if layer.window is not None]
    return {
        "head_dim": config.head_dim,
        "rope_scaling_factor": config.rotary_factor,
        **({"sliding_window": found[0] - 1} if found else {}),
    }


_YARN = {
    "rotary_scaling": "yarn",
    "rotary_min_turns": 1.0,
    "rotary_max_turns": 32.0,
    "rotary_original_length": 4096,
    "rotary_truncate": False,
}

EXPERTS = (
    like_llama(
        "mixtral",
        "Mixtral",
        "mixtral_transformer_decoder",
        "mixtral_layer_normalization",
        fields={**_GIVEN, "router_aux_loss_coef": ConfigField("load_balancing_factor", 0.02)},
        constants={"tie_embeddings": False, "normalize_expert_weights": True},
        table=_MIXTRAL_TABLE,
        further=(
            *(
                Line(f"{path}/kernel", f"{_MIXTRAL_EXPERTS}{place}")
                for place, path in enumerate((*_BRANCHES, _OUTPUT))
            ),
        ),
        conversions=(HEAD_WIDTH, DROPOUT, LINEAR_ROTATION),
        # KerasHub stores the window but does not use it.
        more=("rope_scaling_factor", "sliding_window"),
        required={"router_jitter_noise": 0.0, "output_router_logits": False},
    ),
    like_llama(
        "qwen2_moe",
        "QwenMoe",
        "qwen_moe_transformer_decoder",
        "qwen_layer_norm",
        fields={
            **_QWEN_FIELDS,
            "shared_expert_intermediate_dim": ConfigField("shared_expert_dim", None),
        },
        constants={"attention_bias": True, "attention_output_bias": False},
        table=_QWEN2_TABLE,
        further=_bank("qwen_moe_transformer_decoder"),
        conversions=(
            HEAD_WIDTH,
            DROPOUT,
            LINEAR_ROTATION,
            _qwen_layers("use_sliding_window_attention"),
        ),
        more=(*_QWEN_ARGUMENTS, "use_sliding_window_attention"),
        required={"output_router_logits": False},
    ),
    like_llama(
        "qwen3_moe",
        "Qwen3Moe",
        "qwen3_moe_transformer_decoder",
        "qwen3_moe_layer_norm",
        fields={**_QWEN_FIELDS, "head_dim": ConfigField("head_dim", None)},
        constants={"query_key_norm": True},
        table={**LLAMA_TABLE, **_OF_QWEN},
        further=_bank("qwen3_moe_transformer_decoder"),
        conversions=(DROPOUT, LINEAR_ROTATION, _qwen_layers(None)),
        more=_QWEN_ARGUMENTS,
    ),
    like_qwen3_5(
        "qwen3_5_moe_text",
        "Qwen3_5Moe",
        _QWEN3_5,
        _QWEN3_5_TABLE,
        {
            "num_experts": ConfigField("num_experts", None),
            "top_k": ConfigField("experts_per_token", None),
            "moe_intermediate_dim": ConfigField("intermediate_dim", None),
            "shared_expert_intermediate_size": ConfigField("shared_expert_dim", None),
            "router_aux_loss_coefficient": ConfigField("load_balancing_factor", 0.001),
        },
        _bank(_QWEN3_5),
    ),
    like_llama(
        "gpt_oss",
        "GptOss",
        "gpt_oss_transformer_decoder",
        "gpt_oss_layer_normalization",
        fields=_GIVEN,
        constants={
            **{
                name: GPT_OSS.constants[name]
                for name in ("activation", "use_bias", "router_bias", "attention_sinks")
            },
            **_YARN,
            "tie_embeddings": False,
            "gate_limit": 7.0,
        },
        table=_GPT_OSS_TABLE,
        further=(
            *fused(
                _BRANCHES,
                _GPT_OSS_EXPERTS,
                layers,
                ends=("0", "1"),
                interleaved=True,
            ),
            Line(f"{_OUTPUT}/kernel", f"{_GPT_OSS_EXPERTS}2"),
            Line(f"{_OUTPUT}/bias", f"{_GPT_OSS_EXPERTS}3"),
            Line(f"{_OURS}self_attention/sinks", f"{_GPT_OSS}self_attention_layer/vars/0"),
        ),
        conversions=(DROPOUT, Conversion(_read_gpt_oss, _write_gpt_oss)),
        more=("head_dim", "rope_scaling_factor", "sliding_window"),
        required={"output_router_logits": False},
    ),
)
