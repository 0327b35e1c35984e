"""GptOss: Agarwal et al. 2025, https://arxiv.org/abs/2508.10925.

Experts with biases and a clamped gate, a window in every second layer, and attention sinks. The
expert weights are published as MXFP4, 4-bit numbers.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import rotary, windows
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import WeightLine, fused, layers

_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_ROTARY = rotary(default_base=150000.0)


def _read_rotary(values: Values) -> Values:
    said = values.get("rope_parameters") or values.get("rope_scaling")
    return _ROTARY.read(values if said else {**values, "rope_parameters": _YARN})


_OURS, _THEIRS = "decoder/layer_{i}/feed_forward/", "layers.{i}.mlp."
_TENSOR = {"ends": ("", "_bias"), "transpose": False}
_EXPERTS = (
    *layers({"router": "router"}, _OURS, _THEIRS),
    *fused(
        (f"{_OURS}expert_gate", f"{_OURS}expert_intermediate"),
        f"{_THEIRS}experts.gate_up_proj",
        interleaved=True,
        **_TENSOR,
    ),
    *layers({"expert_output": "experts.down_proj"}, _OURS, _THEIRS, **_TENSOR),
    WeightLine("decoder/layer_{i}/self_attention/sinks", "layers.{i}.self_attn.sinks"),
)

GPT_OSS = dataclasses.replace(
    LLAMA,
    model_type="gpt_oss",
    architecture="GptOssModel",
    fields={name: f for name, f in LLAMA.fields.items() if name not in ("mlp_bias", "hidden_act")}
    | {
        "vocab_size": ConfigField("vocabulary_size", 201088),
        "hidden_size": ConfigField("hidden_dim", 2880),
        "num_hidden_layers": ConfigField("num_layers", 36),
        "num_attention_heads": ConfigField("num_heads", 64),
        "num_key_value_heads": ConfigField("num_key_value_heads", 8),
        "head_dim": ConfigField("head_dim", 64),
        "intermediate_size": ConfigField("intermediate_dim", 2880),
        "max_position_embeddings": ConfigField("max_sequence_length", 131072),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "attention_bias": ConfigField("attention_bias", True),
        "num_local_experts": ConfigField("num_experts", 128),
        "num_experts_per_tok": ConfigField("experts_per_token", 4),
        "swiglu_limit": ConfigField("gate_limit", 7.0),
        "router_aux_loss_coef": ConfigField("load_balancing_factor", 0.001),
    },
    constants={
        **LLAMA.constants,
        "activation": "quick_gelu",
        "use_bias": True,
        "router_bias": True,
        "attention_sinks": True,
    },
    conversions=(
        Conversion(_read_rotary, _ROTARY.write),
        windows(36, 128, lambda values, i: i % 2 == 0),
    ),
    required={"hidden_act": "silu", "swiglu_alpha": 1.702},
    weights=(*LLAMA.weights, *_EXPERTS),
)
