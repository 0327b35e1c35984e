"""Llama4: Meta AI 2025, https://ai.meta.com/blog/llama-4-multimodal-intelligence/.

A Llama with experts whose weights multiply their inputs, and a shared expert. Most layers attend
within chunks, rotate neighbouring features, and normalize the rotated queries and keys without a
weight; the others see all tokens without a rotation, with queries that grow with the position.
"""

import dataclasses
from types import SimpleNamespace
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    FULL,
    NO_PADDING,
    cycle_of_layers,
    flag,
    listed_layers,
    number,
    number_of_layers,
    rotary,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import fused, layers
from keras_transformer.config import (
    Attention,
    Chunks,
    Norm,
    QueryGrowth,
    Rotary,
    Router,
    TransformerConfig,
)
from keras_transformer.config.flat import DEFAULTS, rotary_values
from keras_transformer.config.flat import rotary as rotary_part
from keras_transformer.support.checking import shorten

CHUNKED = "chunked_attention"
_ROTARY = rotary(default_base=500000.0)
# Each value of attention, with its published name and default.
_ATTENTION = {
    "num_attention_heads": ("num_heads", 40),
    "num_key_value_heads": ("num_key_value_heads", 8),
    "head_dim": ("head_dim", 128),
    "attention_bias": ("bias", False),
    "attention_dropout": ("dropout", 0.0),
}


def _turned_layers(values: Values, count: int) -> list[bool]:
    """Return which layers have a rotation; the published list has 1 for these."""
    found = values.get("no_rope_layers")
    if not found:
        every = max(number(values, "no_rope_layer_interval", 4), 1)
        return [(i + 1) % every != 0 for i in range(count)]
    known = isinstance(found, list) and all(isinstance(each, int) for each in found)
    if not known or len(found) < count or not {*found} <= {0, 1}:
        raise ValueError(
            f"no_rope_layers must be a list of {count} numbers, each 0 or 1, received "
            f"{shorten(found)}."
        )
    return [bool(each) for each in found[:count]]


def _sparse_layers(values: Values, count: int) -> list[bool]:
    """Return which layers have experts."""
    found = listed_layers(values, "moe_layers")
    if found is None:
        step = number(values, "interleave_moe_layer_step", 1)
        if step < 1:
            raise ValueError(f"interleave_moe_layer_step must be at least 1, received {step}.")
        return [(i + 1) % step == 0 for i in range(count)]
    return [i in found for i in range(count)]


def _chunked_layers(values: Values, turned: list[bool]) -> list[bool]:
    """Return which layers attend within chunks."""
    found = values.get("layer_types")
    if found is None:
        return turned
    known = isinstance(found, list) and len(found) == len(turned)
    if not known or not all(kind in (CHUNKED, FULL) for kind in found):
        raise ValueError(
            f"layer_types must be a list of {len(turned)} names, each {CHUNKED!r} or {FULL!r}, "
            f"received {shorten(found)}."
        )
    return [kind == CHUNKED for kind in found]


def _mixer(values: Values, turned: bool, chunked: bool) -> Attention:
    sizes = {ours: values.get(name, default) for name, (ours, default) in _ATTENTION.items()}
    position = growth = norm = None
    if flag(values, "attn_temperature_tuning", True):
        growth = QueryGrowth(
            rate=number(values, "attn_scale", 0.1, float),
            length=number(values, "floor_scale", 8192),
        )
    if turned:
        width = number(values, "head_dim", 128)
        options = _ROTARY.read({**values, "head_dim": width})
        position = rotary_part({**options, "position": "rotary", "rotary_interleaved": True})
        if flag(values, "use_qk_norm", True):
            epsilon = number(values, "rms_norm_eps", 1e-5, float)
            norm = Norm(type="rms_norm_no_weight", epsilon=epsilon)
    return Attention(
        **sizes,
        query_key_norm=None if norm is None else "rotated",
        head_norm=norm,
        position=position if turned else growth,
        pattern=Chunks(size=number(values, "attention_chunk_size", 8192)) if chunked else None,
    )


def _read(values: Values) -> dict[str, Any]:
    count = number_of_layers(values, 48)
    turned, width = _turned_layers(values, count), number(values, "intermediate_size", 8192)
    chunked, sparse = _chunked_layers(values, turned), _sparse_layers(values, count)
    kinds = list(zip(sparse, turned, chunked, strict=True))
    found = number(values, "num_local_experts", 16)
    own = {
        kind: {"mixer": _mixer(values, *kind[1:]), "num_experts": found if kind[0] else 0}
        for kind in sorted(set(kinds), reverse=True)
    }
    return {"expert_dim": width, "shared_expert_dim": width, **cycle_of_layers(kinds, own)}


def _write(config: TransformerConfig) -> dict[str, Any]:
    mixers = [block.mixer for block in config.last_side.blocks]
    if not all(isinstance(mixer, Attention) for mixer in mixers):
        raise ValueError("each layer there has attention.")
    turned = [isinstance(mixer.position, Rotary) for mixer in mixers]
    chunks = [mixer.pattern for mixer in mixers if isinstance(mixer.pattern, Chunks)]
    growths = [mixer.position for mixer in mixers if isinstance(mixer.position, QueryGrowth)]
    sparse = [layer.num_experts for layer in config.layers]
    theirs = {
        **{name: getattr(mixers[0], ours) for name, (ours, _) in _ATTENTION.items()},
        "no_rope_layers": list(map(int, turned)),
        "layer_types": [CHUNKED if mixer.pattern in chunks else FULL for mixer in mixers],
        "moe_layers": [i for i, found in enumerate(sparse) if found],
        "num_local_experts": max(sparse) or 16,
        "intermediate_size": config.expert_dim,
        "use_qk_norm": any(mixer.query_key_norm for mixer in mixers),
        "attn_temperature_tuning": bool(growths),
    }
    if chunks:
        theirs["attention_chunk_size"] = chunks[0].size
    if growths:
        theirs |= {"attn_scale": growths[0].rate, "floor_scale": growths[0].length}
    if any(turned):
        first = mixers[turned.index(True)]
        options = {**DEFAULTS, **rotary_values(first.position), "head_dim": first.head_dim}
        theirs |= _ROTARY.write(SimpleNamespace(**options))
    return theirs


_OURS, _THEIRS = "decoder/layer_{i}/feed_forward/", "layers.{i}.feed_forward."
_DENSE = {"gate": "gate_proj", "intermediate": "up_proj", "output": "down_proj"}
_SHARED = {f"shared/{ours}": f"shared_expert.{theirs}" for ours, theirs in _DENSE.items()}
_TENSOR = {"ends": ("", "_bias"), "transpose": False}
_OF_ATTENTION = {*_ATTENTION, "mlp_bias", "intermediate_size"}

LLAMA4_TEXT = dataclasses.replace(
    LLAMA,
    model_type="llama4_text",
    architecture="Llama4TextModel",
    fields={name: field for name, field in LLAMA.fields.items() if name not in _OF_ATTENTION}
    | {
        "vocab_size": ConfigField("vocabulary_size", 202048),
        "hidden_size": ConfigField("hidden_dim", 5120),
        "num_hidden_layers": ConfigField("num_layers", 48),
        "intermediate_size_mlp": ConfigField("intermediate_dim", 16384),
        "num_experts_per_tok": ConfigField("experts_per_token", 1),
        "max_position_embeddings": ConfigField("max_sequence_length", 131072),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
    },
    constants={
        **LLAMA.constants,
        "position": "none",  # the mixers have the rotations
        "use_bias": False,
        "shared_expert_gate": False,
        "normalize_expert_weights": False,
        "router": Router(activation="sigmoid", weighted="inputs"),
    },
    conversions=(Conversion(_read, _write), NO_PADDING),
    weights=(
        *(line for line in LLAMA.weights if ".mlp." not in line.theirs),
        *layers({**_DENSE, **_SHARED, "router": "router"}, _OURS, _THEIRS),
        *fused(
            (f"{_OURS}expert_gate", f"{_OURS}expert_intermediate"),
            f"{_THEIRS}experts.gate_up_proj",
            **_TENSOR,
        ),
        *layers({"expert_output": "experts.down_proj"}, _OURS, _THEIRS, **_TENSOR),
    ),
    heads={"CausalLM": PublishedHead(architectures=("Llama4ForCausalLM",))},
)
