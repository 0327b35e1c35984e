"""RecurrentGemma: Botev et al. 2024, https://arxiv.org/abs/2404.07839.

A Gemma two thirds of whose layers have a gated linear recurrence (Griffin) in place of attention;
the others have a window.
"""

import dataclasses
import struct
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
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
from keras_transformer.config import LinearRecurrence, TransformerConfig
from keras_transformer.support.checking import shorten

_RECURRENT, _ATTENTION = "recurrent", "attention"
_ROTARY = rotary(0.5, scalings=())
# Values of attention, which a config has if some layer has attention.
_OF_ATTENTION = {
    "num_key_value_heads": ("num_key_value_heads", None),
    "attention_window_size": ("window", 2048),
    "attention_bias": ("attention_bias", False),
    "attention_dropout": ("attention_dropout", 0.0),
}


def _kinds(values: Values) -> list[str]:
    """Return the kind of each layer."""
    count = number_of_layers(values, 26)
    found = values.get("block_types", (_RECURRENT, _RECURRENT, _ATTENTION))
    known = isinstance(found, (list, tuple)) and len(found) > 0
    if not known or not all(kind in (_RECURRENT, _ATTENTION) for kind in found):
        raise ValueError(
            f"block_types must be a list of {_RECURRENT!r} and {_ATTENTION!r}, received "
            f"{shorten(found)}."
        )
    return [found[i % len(found)] for i in range(count)]


def _read_layers(values: Values) -> dict[str, Any]:
    kinds = _kinds(values)
    width, heads = number(values, "hidden_size", 2560), number(values, "num_attention_heads", 10)
    mixer = LinearRecurrence(
        state_dim=width if values.get("lru_width") is None else number(values, "lru_width", width),
        num_heads=heads,
        convolution_size=number(values, "conv1d_width", 4),
        activation=LLAMA.activation(
            "hidden_activation", values.get("hidden_activation", "gelu_pytorch_tanh")
        ),
    )
    own = {_RECURRENT: {"mixer": mixer}, _ATTENTION: {"mixer": None}}
    turns = cycle_of_layers(kinds, own)
    if _ATTENTION not in kinds:
        return {**turns, "position": "none"}
    theirs = {ours: values.get(name, default) for name, (ours, default) in _OF_ATTENTION.items()}
    head_dim = width // max(heads, 1)
    turned = _ROTARY.read({**values, "head_dim": head_dim})
    own_heads = {"num_heads": heads, "head_dim": head_dim}
    return {**theirs, **own_heads, **turns, "position": "rotary", **turned}


def _write_layers(config: TransformerConfig) -> dict[str, Any]:
    mixers = [block.mixer for block in config.last_side.blocks]
    found = [mixer for mixer in mixers if isinstance(mixer, LinearRecurrence)]
    theirs: dict[str, Any] = {
        "block_types": [_RECURRENT if mixer in found else _ATTENTION for mixer in mixers]
    }
    for mixer in found[:1]:
        theirs |= {
            "lru_width": mixer.state_dim,
            "num_attention_heads": mixer.num_heads,
            "conv1d_width": mixer.convolution_size,
        }
    if config.last_side.attention is not None:
        theirs |= {name: getattr(config, ours) for name, (ours, _) in _OF_ATTENTION.items()}
        theirs |= {"num_attention_heads": config.num_heads, **_ROTARY.write(config)}
    return theirs


def _read_width(values: Values) -> dict[str, Any]:
    """Return the width of the feed-forward layer, which is half of the published one."""
    return {"intermediate_dim": number(values, "intermediate_size", 7680) // 2}


def _read_embedding_scale(values: Values) -> dict[str, Any]:
    """Return the square root of the width, which the published model has in bfloat16."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number(values, "hidden_size", 2560) ** 0.5))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000  # to the nearest, ties to even
    return {"embedding_scale": struct.unpack("<f", struct.pack("<I", bits))[0]}


_OURS, _THEIRS = "decoder/layer_{i}/", "layers.{i}."
_MIXER, _BLOCK = f"{_OURS}mixer/", f"{_THEIRS}temporal_block."
_LAYER = {
    "mixer_norm": "temporal_pre_norm",
    "self_attention_norm": "temporal_pre_norm",
    **attention("temporal_block.{}_proj", "q", "k", "v", "o"),
    "mixer/input": "temporal_block.linear_x",
    "mixer/gate": "temporal_block.linear_y",
    "mixer/output": "temporal_block.linear_out",
    "feed_forward_norm": "channel_pre_norm",
    "feed_forward/gate": "mlp_block.gate_proj",
    "feed_forward/intermediate": "mlp_block.up_proj",
    "feed_forward/output": "mlp_block.down_proj",
}
_RECURRENCE = (
    WeightLine(f"{_MIXER}short_convolution/kernel", f"{_BLOCK}conv_1d.weight", depthwise=True),
    WeightLine(f"{_MIXER}short_convolution/bias", f"{_BLOCK}conv_1d.bias"),
    WeightLine(f"{_MIXER}decay", f"{_BLOCK}rg_lru.recurrent_param"),
    *(
        WeightLine(f"{_MIXER}{ours}/{part}", f"{_BLOCK}rg_lru.{theirs}_{end}")
        for ours, theirs in (("input_gate", "input_gate"), ("recurrence_gate", "recurrent_gate"))
        for part, end in (("kernel", "weight"), ("bias", "bias"))
    ),
)

RECURRENT_GEMMA = dataclasses.replace(
    LLAMA,
    model_type="recurrent_gemma",
    architecture="RecurrentGemmaModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 256000),
        "hidden_size": ConfigField("hidden_dim", 2560),
        "num_hidden_layers": ConfigField("num_layers", 26),
        "hidden_activation": ConfigField("activation", "gelu_pytorch_tanh"),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-6),
        # Which published configs do not say: it was trained with this length.
        "max_position_embeddings": ConfigField("max_sequence_length", 8192),
        "logits_soft_cap": ConfigField("logit_soft_cap", 30.0),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={
        "kind": "decoder",
        "normalization": "rms_norm_plus_one",
        "normalize_first": True,
        "gated": True,
        "use_bias": True,
        "attention_output_bias": True,
    },
    conversions=(
        Conversion(_read_layers, _write_layers),
        Conversion(_read_width, lambda config: {"intermediate_size": 2 * config.intermediate_dim}),
        Conversion(_read_embedding_scale, lambda config: {}),
    ),
    weights=(
        *layers({"token_embedding": "embed_tokens", "decoder/final_norm": "final_norm"}),
        output_matrix("lm_head.weight"),
        *layers(_LAYER, _OURS, _THEIRS),
        *_RECURRENCE,
    ),
    heads={"CausalLM": PublishedHead()},
)
