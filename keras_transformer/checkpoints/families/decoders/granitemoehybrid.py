"""GraniteMoeHybrid: IBM 2025, https://huggingface.co/ibm-granite/granite-4.0-h-small.

Granite 4: a Granite most of whose layers have a state space in place of attention, with experts and
one that all tokens share, or with that one alone. Attention has rotary positions or none.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import Conversion, Values
from keras_transformer.checkpoints.families.base.shared import (
    FULL,
    cycle_of_layers,
    number,
    number_of_layers,
    rotary,
)
from keras_transformer.checkpoints.families.decoders.gated_delta import LINEAR
from keras_transformer.checkpoints.families.decoders.granite import GRANITE
from keras_transformer.checkpoints.families.decoders.granitemoe import GRANITEMOE, SHARED
from keras_transformer.checkpoints.families.decoders.mamba2 import (
    current_kinds,
    read_bamba_mixer,
    state_lines,
    write_bamba_mixer,
)
from keras_transformer.checkpoints.weights.tables import layers
from keras_transformer.config import StateSpace, TransformerConfig
from keras_transformer.support.checking import shorten

# Values of attention, which a config has if some layer has attention.
_ATTENTION = {
    "num_attention_heads": ("num_heads", 32),
    "num_key_value_heads": ("num_key_value_heads", None),
    "attention_bias": ("attention_bias", False),
    "attention_dropout": ("attention_dropout", 0.0),
}
_ROTARY = rotary()


def _kinds(values: Values) -> list[str]:
    """Return the kind of each layer."""
    count = number_of_layers(values, 32)
    found = values.get("layer_types", values.get("layers_block_type"))
    found = [LINEAR] * count if found is None else found
    kinds = current_kinds(found) if isinstance(found, list) else []
    if len(kinds) != count or not all(kind in (LINEAR, FULL) for kind in kinds):
        raise ValueError(
            f"layer_types must be a list of {count} names, each {LINEAR!r} or {FULL!r}, received "
            f"{shorten(found)}."
        )
    return kinds


def _read_layers(values: Values) -> dict[str, Any]:
    """Return which layers have a state space, and the values of the others."""
    kinds = _kinds(values)
    own: dict[str, dict[str, Any]] = {FULL: {"mixer": None}}
    if LINEAR in kinds:
        own[LINEAR] = {"mixer": read_bamba_mixer(values)}
    turns = cycle_of_layers(kinds, own)
    if FULL not in kinds:
        return {**turns, "position": "none"}
    theirs = {ours: values.get(name, default) for name, (ours, default) in _ATTENTION.items()}
    scale = number(values, "attention_multiplier", 1.0, float)
    turned = values.get("position_embedding_type") == "rope"
    position = {"position": "rotary", **_ROTARY.read(values)} if turned else {"position": "none"}
    return {**theirs, **turns, **position, "score_scale": scale}


def _write_layers(config: TransformerConfig) -> dict[str, Any]:
    linear = [isinstance(block.mixer, StateSpace) for block in config.last_side.blocks]
    theirs = {
        "layer_types": [LINEAR if each else FULL for each in linear],
        **write_bamba_mixer(config),
    }
    attention = config.last_side.attention
    if attention is None:
        return theirs
    theirs |= {name: getattr(config, ours) for name, (ours, _) in _ATTENTION.items()}
    scale = attention.scale
    theirs["attention_multiplier"] = config.head_dim**-0.5 if scale is None else scale
    turned = attention.position is not None
    rope = {"position_embedding_type": "rope", **_ROTARY.write(config)}
    return {**theirs, **(rope if turned else {"position_embedding_type": None})}


def _read_experts(values: Values) -> dict[str, Any]:
    """Return the experts and the shared one, which without experts is the feed-forward layer."""
    shared = number(values, "shared_intermediate_size", 1024)
    if shared < 1:
        raise ValueError(f"shared_intermediate_size must be at least 1, received {shared}.")
    found = values.get("num_local_experts", 8)
    if not found:
        return {"intermediate_dim": shared}
    return {
        "num_experts": number(values, "num_local_experts", found),
        "experts_per_token": number(values, "num_experts_per_tok", 2),
        "intermediate_dim": number(values, "intermediate_size", 11008),
        "shared_expert_dim": shared,
        "load_balancing_factor": values.get("router_aux_loss_coef", 0.001),
    }


def _write_experts(config: TransformerConfig) -> dict[str, Any]:
    if not config.num_experts:
        return {"num_local_experts": 0, "shared_intermediate_size": config.intermediate_dim}
    return {
        "num_local_experts": config.num_experts,
        "num_experts_per_tok": config.experts_per_token,
        "intermediate_size": config.expert_dim,
        "shared_intermediate_size": config.shared_expert_dim,
        "router_aux_loss_coef": config.load_balancing_factor,
    }


def _read_logits(values: Values) -> dict[str, Any]:
    divisor = number(values, "logits_scaling", 1.0, float)
    if not divisor > 0:
        raise ValueError(f"logits_scaling must be positive, received {divisor!r}.")
    return {"logit_scale": 1 / divisor}


_OURS, _THEIRS = "decoder/layer_{i}/", "layers.{i}."
_OF_LAYERS = {*_ATTENTION, "head_dim", "intermediate_size", "mlp_bias"}


# Without experts the shared one is the feed-forward layer.
_DENSE = tuple(
    dataclasses.replace(line, ours=line.ours.replace("/shared/", "/")) for line in SHARED
)

GRANITEMOEHYBRID = dataclasses.replace(
    GRANITE,
    model_type="granitemoehybrid",
    architecture="GraniteMoeHybridModel",
    fields={name: field for name, field in GRANITE.fields.items() if name not in _OF_LAYERS},
    constants={
        **{name: value for name, value in GRANITE.constants.items() if name != "position"},
        "use_bias": False,
        "shared_expert_gate": False,
    },
    conversions=(
        Conversion(_read_layers, _write_layers),
        Conversion(_read_experts, _write_experts),
        Conversion(_read_logits, lambda config: {"logits_scaling": 1 / config.logit_scale}),
    ),
    weights=(
        *(line for line in GRANITEMOE.weights if ".mlp." not in line.theirs),
        *SHARED,
        *_DENSE,
        *layers({"mixer_norm": "input_layernorm"}, _OURS, _THEIRS),
        *state_lines("mamba"),
    ),
)
