"""LFM2: Liquid AI 2025, https://arxiv.org/abs/2511.23404.

A Llama in which most layers have a gated short convolution instead of attention; the others
normalize each head's queries and keys.
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
from keras_transformer.config import ShortConvolution, TransformerConfig

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


def _read_layers(values: Values) -> dict[str, Any]:
    """Return which layers have a convolution in place of attention."""
    count, kinds = number_of_layers(values, 32), values.get("layer_types")
    if kinds is None:
        full = values.get("full_attn_idxs")
        full = range(count) if full is None else full
        kinds = [FULL if i in full else _CONVOLUTION for i in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count:
        raise ValueError(f"layer_types must be a list of {count} names, one a layer.")
    unknown = next((kind for kind in kinds if kind not in (FULL, _CONVOLUTION)), None)
    if unknown is not None or FULL not in kinds:
        raise ValueError(
            f"layer_types={kinds!r} is not supported, only {FULL!r}, for one layer or more, and "
            f"{_CONVOLUTION!r}."
        )
    own: dict[str, dict[str, Any]] = {FULL: {"mixer": None}}
    if _CONVOLUTION in kinds:
        size, bias = number(values, "conv_L_cache", 3), bool(values.get("conv_bias", False))
        own[_CONVOLUTION] = {"mixer": ShortConvolution(size=size, bias=bias)}
    return cycle_of_layers(kinds, own)


def _write_layers(config: TransformerConfig) -> dict[str, Any]:
    mixers = [block.mixer for block in config.last_side.blocks]
    found = [mixer for mixer in mixers if isinstance(mixer, ShortConvolution)]
    first = found[0] if found else ShortConvolution()
    return {
        "layer_types": [_CONVOLUTION if mixer in found else FULL for mixer in mixers],
        "conv_L_cache": first.size,
        "conv_bias": first.bias,
    }


def _read_width(values: Values) -> dict[str, Any]:
    """Return the width of the feed-forward layer, two thirds of the published one if it says so."""
    width = number(values, "intermediate_size", 12288)
    width = number(values, "block_ff_dim", width)
    if values.get("block_auto_adjust_ff_dim", True):
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
