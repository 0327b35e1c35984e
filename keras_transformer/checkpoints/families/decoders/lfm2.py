"""LFM2: Liquid AI 2025, https://arxiv.org/abs/2511.23404, with and without experts.

A Llama in which most layers have a gated short convolution instead of attention; the others
normalize each head's queries and keys. `lfm2_moe` has experts behind the first layers, chosen as in
DeepSeek-V3.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    FULL,
    cycle_of_layers,
    flag,
    listed_layers,
    number,
    number_of_layers,
    rotary,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import (
    WeightLine,
    attention,
    layers,
    output_matrix,
)
from keras_transformer.config import Router, ShortConvolution, TransformerConfig
from keras_transformer.support.checking import shorten

_CONVOLUTION = "conv"
_ONCE = {"token_embedding": "embed_tokens", "decoder/final_norm": "embedding_norm"}
_LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "out"),
    "self_attention/query_norm": "self_attn.q_layernorm",
    "self_attention/key_norm": "self_attn.k_layernorm",
    "self_attention_norm": "operator_norm",
    "mixer/input": "conv.in_proj",
    "mixer/output": "conv.out_proj",
    "mixer_norm": "operator_norm",
    "feed_forward/gate": "feed_forward.w1",
    "feed_forward/intermediate": "feed_forward.w3",
    "feed_forward/output": "feed_forward.w2",
    "feed_forward_norm": "ffn_norm",
}
_KERNEL, _BIAS = (
    f"decoder/layer_{{i}}/mixer/short_convolution/{name}" for name in ("kernel", "bias")
)
_TENSORS = (
    WeightLine(_KERNEL, "layers.{i}.conv.conv.weight", depthwise=True),
    WeightLine(_BIAS, "layers.{i}.conv.conv.bias"),
)


def _kinds_of_layers(values: Values) -> list[str]:
    """Return the kind of each layer."""
    count, kinds = number_of_layers(values, 32), values.get("layer_types")
    if kinds is None:
        full = listed_layers(values, "full_attn_idxs")
        kinds = [FULL if full is None or i in full else _CONVOLUTION for i in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count:
        raise ValueError(f"layer_types must be a list of {count} names, one a layer.")
    unknown = next((kind for kind in kinds if kind not in (FULL, _CONVOLUTION)), None)
    if unknown is not None or FULL not in kinds:
        raise ValueError(
            f"layer_types={shorten(kinds)} is not supported, only {FULL!r}, for one layer or "
            f"more, and {_CONVOLUTION!r}."
        )
    return kinds


def _mixers_of(values: Values) -> dict[str, ShortConvolution | None]:
    """Return the mixer of each kind of layer: for attention None, which is the usual one."""
    size, bias = number(values, "conv_L_cache", 3), flag(values, "conv_bias", False)
    return {FULL: None, _CONVOLUTION: ShortConvolution(size=size, bias=bias)}


def _read_layers(values: Values) -> dict[str, Any]:
    """Return which layers have a convolution in place of attention."""
    mixers = _mixers_of(values)
    own = {kind: {"mixer": mixer} for kind, mixer in mixers.items()}
    return cycle_of_layers(_kinds_of_layers(values), own)


def _write_layers(config: TransformerConfig) -> dict[str, Any]:
    mixers = [block.mixer for block in config.last_side.blocks]
    found = [mixer for mixer in mixers if isinstance(mixer, ShortConvolution)]
    first = found[0] if found else ShortConvolution()
    return {
        "layer_types": [_CONVOLUTION if mixer in found else FULL for mixer in mixers],
        "conv_L_cache": first.size,
        "conv_bias": first.bias,
    }


def _read_sparse_layers(values: Values) -> dict[str, Any]:
    """Return which layers have a convolution in place of attention, and which have experts."""
    kinds, first = _kinds_of_layers(values), number(values, "num_dense_layers", 2)
    found = number(values, "num_experts", 32)
    own = {
        (kind, sparse): {"mixer": mixer, "num_experts": found if sparse else 0}
        for sparse in (True, False)
        for kind, mixer in _mixers_of(values).items()
    }
    return cycle_of_layers([(kind, i >= first) for i, kind in enumerate(kinds)], own)


def _write_sparse_layers(config: TransformerConfig) -> dict[str, Any]:
    each = [layer.num_experts for layer in config.layers]
    return {
        **_write_layers(config),
        "num_experts": max(each) or 32,
        "num_dense_layers": each.count(0),
    }


def _read_router(values: Values) -> dict[str, Any]:
    router = Router(
        activation="sigmoid",
        correction_bias=flag(values, "use_expert_bias", True),
        weight_scale=number(values, "routed_scaling_factor", 1.0, float),
        epsilon=1e-6,
    )
    return {"router": router}


def _write_router(config: TransformerConfig) -> dict[str, Any]:
    experts = (block.feed_forward for block in config.last_side.every_block)
    router = next((each.router for each in experts if getattr(each, "router", None)), Router())
    return {
        "use_expert_bias": router.correction_bias,
        "routed_scaling_factor": router.weight_scale,
    }


def _read_width(values: Values) -> dict[str, Any]:
    """Return the width of the feed-forward layer, two thirds of the published one if it says so."""
    width = number(values, "intermediate_size", 12288)
    width = number(values, "block_ff_dim", width)
    if flag(values, "block_auto_adjust_ff_dim", True):
        width = 2 * width // 3
        if values.get("block_ffn_dim_multiplier", 1.0) is not None:
            width = int(number(values, "block_ffn_dim_multiplier", 1.0, float) * width)
            each = max(number(values, "block_multiple_of", 256), 1)
            width = each * -(-width // each)
    return {"intermediate_dim": width}


def _write_width(config: TransformerConfig) -> dict[str, Any]:
    return {"intermediate_size": config.intermediate_dim, "block_auto_adjust_ff_dim": False}


_TIES = Conversion(
    lambda values: {
        "tie_embeddings": values.get("tie_embedding", values.get("tie_word_embeddings", True))
    },
    lambda config: {"tie_word_embeddings": config.tie_embeddings},
)
_OTHER = (
    "attention_bias", "mlp_bias", "attention_dropout", "hidden_act", "intermediate_size",
    "rms_norm_eps", "tie_word_embeddings",
)  # fmt: skip

LFM2 = dataclasses.replace(
    LLAMA,
    model_type="lfm2",
    architecture="Lfm2Model",
    fields={name: field for name, field in LLAMA.fields.items() if name not in _OTHER}
    | {
        "vocab_size": ConfigField("vocabulary_size", 65536),
        "hidden_size": ConfigField("hidden_dim", 2560),
        "num_key_value_heads": ConfigField("num_key_value_heads", 8),
        "max_position_embeddings": ConfigField("max_sequence_length", 128000),
        "norm_eps": ConfigField("normalization_epsilon", 1e-5),
    },
    constants={
        **LLAMA.constants,
        "activation": "silu",
        "use_bias": False,
        "query_key_norm": True,
    },
    conversions=(
        rotary(default_base=1000000.0),
        Conversion(_read_layers, _write_layers),
        Conversion(_read_width, _write_width),
        _TIES,
    ),
    weights=(
        *layers(_ONCE),
        output_matrix("lm_head.weight"),
        *layers(_LAYER, "decoder/layer_{i}/", "layers.{i}."),
        *_TENSORS,
    ),
    heads={"CausalLM": PublishedHead()},
)

_SPARSE = {
    "feed_forward/router": "feed_forward.gate",
    "feed_forward/expert_gate": "feed_forward.experts.*.w1",
    "feed_forward/expert_intermediate": "feed_forward.experts.*.w3",
    "feed_forward/expert_output": "feed_forward.experts.*.w2",
}

LFM2_MOE = dataclasses.replace(
    LFM2,
    model_type="lfm2_moe",
    architecture="Lfm2MoeModel",
    fields={
        **LFM2.fields,
        "hidden_size": ConfigField("hidden_dim", 2048),
        "intermediate_size": ConfigField("intermediate_dim", 7168),
        "moe_intermediate_size": ConfigField("expert_dim", 1792),
        "num_experts_per_tok": ConfigField("experts_per_token", 4),
        "norm_topk_prob": ConfigField("normalize_expert_weights", True),
    },
    conversions=(
        rotary(default_base=1000000.0),
        Conversion(_read_sparse_layers, _write_sparse_layers),
        Conversion(_read_router, _write_router),
        _TIES,
    ),
    weights=(
        *LFM2.weights,
        *layers(_SPARSE, "decoder/layer_{i}/", "layers.{i}."),
        WeightLine(
            "decoder/layer_{i}/feed_forward/correction_bias",
            "layers.{i}.feed_forward.expert_bias",
        ),
    ),
)
