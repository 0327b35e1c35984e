"""The decoders with rotary positions in KerasHub's form: GPT-NeoX, and what is built like Llama.

Facts are from KerasHub 0.32, `models/*/*_backbone.py`, `*_decoder.py` and `*_attention.py`.
"""

from typing import Any

from keras_transformer.checkpoints.families.conversions import number
from keras_transformer.checkpoints.families.family import Conversion, Field, Head, Values
from keras_transformer.checkpoints.keras_hub.family import (
    ACTIVATION,
    DROPOUT,
    FIELDS,
    HEAD_WIDTH,
    KerasHubFamily,
    family,
)
from keras_transformer.checkpoints.keras_hub.lines import TASK_PREFIX, Line, dense, layer_norm
from keras_transformer.checkpoints.weights import Names
from keras_transformer.config import TransformerConfig

_LLAMA3 = {
    "rope_frequency_adjustment_factor": "rotary_factor",
    "rope_low_freq_factor": "rotary_min_turns",
    "rope_high_freq_factor": "rotary_max_turns",
    "rope_pretraining_sequence_length": "rotary_original_length",
}


def _read_llama3(values: Values) -> dict[str, Any]:
    given = {ours: values[name] for name, ours in _LLAMA3.items() if values.get(name)}
    return {"rotary_scaling": "llama3", **given} if given else {}


def _write_llama3(config: TransformerConfig) -> dict[str, Any]:
    stretched = config.rotary_scaling == "llama3"
    return {name: getattr(config, ours) for name, ours in _LLAMA3.items() if stretched}


def _read_linear(values: Values) -> dict[str, Any]:
    factor = number(values, "rope_scaling_factor", 1.0, float)
    return {} if factor == 1 else {"rotary_scaling": "linear", "rotary_factor": factor}


def _write_linear(config: TransformerConfig) -> dict[str, Any]:
    linear = config.rotary_scaling == "linear"
    return {"rope_scaling_factor": config.rotary_factor} if linear else {}


def _read_share(values: Values) -> dict[str, Any]:
    width = values["hidden_dim"] // values["num_heads"]
    return {"rotary_dim": int(width * number(values, "rotary_percentage", 0.25, float))}


def _write_share(config: TransformerConfig) -> dict[str, Any]:
    return {"rotary_percentage": (config.rotary_dim or config.head_dim) / config.head_dim}


def _read_switched_window(values: Values) -> dict[str, Any]:
    used = values.get("use_sliding_window_attention", False)
    return {"window": values.get("sliding_window_size", 32768) if used else None}


def _write_switched_window(config: TransformerConfig) -> dict[str, Any]:
    if config.window is None:
        return {"use_sliding_window_attention": False}
    return {"use_sliding_window_attention": True, "sliding_window_size": config.window}


_FIELDS = {
    **{name: field for name, field in FIELDS.items() if name != "num_heads"},
    "dropout": Field("dropout", 0.0),
    "num_query_heads": Field("num_heads", None),
    "num_key_value_heads": Field("num_key_value_heads", None),
    "rope_max_wavelength": Field("rotary_base", 10000.0),
    "layer_norm_epsilon": Field("normalization_epsilon", 1e-6),
}
# Here the projections of an attention layer have these private names to this day.
_NAMES = Names(ignored=(f"{TASK_PREFIX}*",))
_TIED = Field("tie_embeddings", True)
_DECODER = {
    "kind": "decoder",
    "position": "rotary",
    "normalize_first": True,
    "initializer_range": 0.02,
    # These classes have no longest text. No number depends on it, and `from_preset` changes it.
    "max_sequence_length": 32768,
}


def _like_llama(model_type: str, name: str, layer: str, norm: str, **values: Any) -> KerasHubFamily:
    """A decoder as Llama's, whose layers have their own class.

    Args:
        model_type: the family.
        name: of the backbone's class, without `Backbone`.
        layer: the name of a block's layer in the file, from its class.
        norm: that of the last normalization.
        **values: of the family; its `constants` are added to Llama's.
    """
    ours, theirs = "decoder/layer_{i}", f"layers/{layer}{{i}}"
    attention = f"{theirs}/_self_attention_layer"
    own = f"{ours}/self_attention"
    usual = {"tie_word_embeddings": Field("tie_embeddings", False)}
    return family(
        model_type,
        name,
        fields={**_FIELDS, **values.pop("fields", usual)},
        constants={
            **_DECODER,
            "normalization": "rms_norm",
            "gated": True,
            "activation": "silu",
            "use_bias": False,
            **values.pop("constants", {}),
        },
        conversions=values.pop(
            "conversions", (HEAD_WIDTH, DROPOUT, Conversion(_read_llama3, _write_llama3))
        ),
        weights=(
            Line("token_embedding/embeddings", "layers/reversible_embedding/vars/0"),
            Line("token_embedding/reverse_embeddings", "layers/reversible_embedding/vars/1"),
            *(
                line
                for part in ("query", "key", "value")
                for line in dense(f"{own}/{part}", f"{attention}/_{part}_dense", 1, 0)
            ),
            *dense(f"{own}/output", f"{attention}/_output_dense", 0),
            Line(f"{own}/query_norm/scale", f"{attention}/_query_dense_layer_norm/vars/0"),
            Line(f"{own}/key_norm/scale", f"{attention}/_key_dense_layer_norm/vars/0"),
            Line(f"{own}_norm/scale", f"{theirs}/_self_attention_layernorm/vars/0"),
            *(
                line
                for part in ("gate", "intermediate", "output")
                for line in dense(
                    f"{ours}/feed_forward/{part}", f"{theirs}/_feedforward_{part}_dense"
                )
            ),
            Line(f"{ours}/feed_forward_norm/scale", f"{theirs}/_feedforward_layernorm/vars/0"),
            Line("decoder/final_norm/scale", f"layers/{norm}/vars/0"),
        ),
        heads={"CausalLM": Head(architectures=(f"{name}CausalLM",))},
        names=_NAMES,
        **values,
    )


_LLAMA = ("llama_transformer_decoder", "llama_layer_norm")
_LLAMA_MORE = {
    "more": tuple(_LLAMA3),
    "required": {"rope_position_scaling_factor": 1.0},  # which KerasHub has, and does not use
}
_LINEAR = Conversion(_read_linear, _write_linear)
_NEOX_LAYER, _NEOX_THEIRS = "decoder/layer_{i}", "layers/gpt_neo_x_decoder{i}"
_NEOX_ATTENTION = f"{_NEOX_THEIRS}/_self_attention_layer"

DECODERS = (
    family(
        "gpt_neox",
        "GPTNeoX",
        fields={
            **FIELDS,
            "dropout": Field("dropout", 0.0),
            "rotary_max_wavelength": Field("rotary_base", 10000.0),
            "layer_norm_epsilon": Field("normalization_epsilon", 1e-5),
            "max_sequence_length": Field("max_sequence_length", 512),
        },
        constants={**_DECODER, "activation": "gelu_tanh", "parallel_residual": True},
        conversions=(HEAD_WIDTH, DROPOUT, ACTIVATION, Conversion(_read_share, _write_share)),
        more=("activation", "rotary_percentage"),
        weights=(
            Line("token_embedding/embeddings", "layers/reversible_embedding/vars/0"),
            *(
                line
                for place, part in enumerate(("query", "key", "value"))
                for line in dense(
                    f"{_NEOX_LAYER}/self_attention/{part}",
                    f"{_NEOX_ATTENTION}/_qkv_dense",
                    1,
                    0,
                    part=(place, 3),
                    per_head=True,
                )
            ),
            *dense(f"{_NEOX_LAYER}/self_attention/output", f"{_NEOX_ATTENTION}/_output_dense"),
            *layer_norm(
                f"{_NEOX_LAYER}/self_attention_norm", f"{_NEOX_THEIRS}/_self_attention_layer_norm"
            ),
            *(
                line
                for part in ("intermediate", "output")
                for line in dense(
                    f"{_NEOX_LAYER}/feed_forward/{part}",
                    f"{_NEOX_THEIRS}/_feedforward_{part}_dense",
                )
            ),
            *layer_norm(
                f"{_NEOX_LAYER}/feed_forward_norm", f"{_NEOX_THEIRS}/_feedforward_layer_norm"
            ),
            *layer_norm("decoder/final_norm", "layers/layer_normalization"),
        ),
        heads={"CausalLM": Head(architectures=("GPTNeoXCausalLM",))},
        names=_NAMES,
    ),
    _like_llama("llama", "Llama", *_LLAMA, **_LLAMA_MORE),
    _like_llama("llama", "Llama3", *_LLAMA, **_LLAMA_MORE),
    _like_llama(
        "mistral",
        "Mistral",
        "mistral_transformer_decoder",
        "mistral_layer_normalization",
        fields={"sliding_window": Field("window", 512), "head_dim": Field("head_dim", None)},
        constants={"tie_embeddings": False},
        conversions=(DROPOUT, _LINEAR),
        more=("rope_scaling_factor",),
    ),
    _like_llama(
        "qwen2",
        "Qwen",
        "qwen_transformer_decoder",
        "qwen_layer_norm",
        fields={"tie_word_embeddings": _TIED},
        constants={"attention_bias": True, "attention_output_bias": False},
        conversions=(
            HEAD_WIDTH,
            DROPOUT,
            _LINEAR,
            Conversion(_read_switched_window, _write_switched_window),
        ),
        more=("rope_scaling_factor", "use_sliding_window_attention", "sliding_window_size"),
    ),
    _like_llama(
        "qwen3",
        "Qwen3",
        "qwen3_transformer_decoder",
        "qwen3_layer_norm",
        fields={
            "tie_word_embeddings": _TIED,
            "head_dim": Field("head_dim", None),
            "sliding_window_size": Field("window", 32768),
        },
        constants={"query_key_norm": True},
        conversions=(DROPOUT, _LINEAR),
        more=("rope_scaling_factor",),
    ),
)
