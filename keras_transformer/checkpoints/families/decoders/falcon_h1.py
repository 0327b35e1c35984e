"""FalconH1: Zuo et al. 2025, https://arxiv.org/abs/2507.22448.

Each layer has attention and a state space side by side, whose outputs are added. The states that
both read, their outputs, and most projections have factors of their own.
"""

import dataclasses
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import flag, head_dim, number, rotary
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.families.decoders.mamba2 import (
    BAMBA_BIASES,
    BAMBA_SIZES,
    expanded,
    state_lines,
)
from keras_transformer.checkpoints.weights.tables import attention, layers, output_matrix
from keras_transformer.config import Attention, Dense, Parallel, StateSpace, TransformerConfig
from keras_transformer.config.flat import DEFAULTS, rotary_values
from keras_transformer.config.flat import rotary as rotary_part
from keras_transformer.support.checking import is_number, shorten

_ROTARY = rotary()
_ATTENTION = {
    "num_attention_heads": ("num_heads", 32),
    "num_key_value_heads": ("num_key_value_heads", 8),
    "attention_bias": ("bias", False),
    "attention_dropout": ("dropout", 0.0),
}
# Factors of the states that attention and the state space read, and of their outputs.
_INPUTS = ("attention_in_multiplier", "ssm_in_multiplier")
_OUTPUTS = ("attention_out_multiplier", "ssm_out_multiplier")


def _factors(values: Values, name: str, count: int) -> tuple[float, ...]:
    """Return published factors, which are 1 if the config has none."""
    found = values.get(name)
    found = [1.0] * count if found is None else found
    if not isinstance(found, list | tuple) or len(found) != count or not all(map(is_number, found)):
        raise ValueError(f"{name} must be a list of {count} numbers, received {shorten(found)}.")
    return tuple(found)


def _scales(values: Values, names: Sequence[str]) -> tuple[float, ...] | None:
    """Return the factors of these names, None if all are 1."""
    found = tuple(number(values, name, 1.0, float) for name in names)
    return None if all(each == 1 for each in found) else found


def _attention(values: Values) -> Attention:
    own = {ours: values.get(name, default) for name, (ours, default) in _ATTENTION.items()}
    width = head_dim({"hidden_size": 4096, "num_attention_heads": 32, **values}, None)
    factor = number(values, "key_multiplier", 1.0, float)
    turned = _ROTARY.read({**values, "head_dim": width})
    return Attention(
        **own,
        head_dim=width,
        scale=None if factor == 1 else width**-0.5 * factor,
        position=rotary_part({**turned, "position": "rotary"}),
    )


def _key_factor(mixer: Attention) -> float:
    """Return the published factor of the keys, from which the factor of the scores is read."""
    usual = mixer.head_dim**-0.5
    if mixer.scale is None:
        return 1.0
    exact = mixer.scale / usual
    # Rounding may have moved it by a few places of the last digit.
    near = (exact + i * side * math.ulp(exact) for i in range(1, 9) for side in (1, -1))
    found = (*(round(exact, digits) for digits in (6, 12)), exact, *near)
    return next((each for each in found if usual * each == mixer.scale), exact)


def _states(values: Values) -> StateSpace:
    if values.get("mamba_d_ssm", 1024) is None:
        inner = number(values, "hidden_size", 4096) * number(values, "mamba_expand", 2)
    else:
        inner = number(values, "mamba_d_ssm", 1024)
    if values.get("mamba_d_head", "auto") == "auto":
        width = inner // max(number(values, "mamba_n_heads", 128), 1)
        values = {**values, "mamba_d_head": width}
    both = [flag(values, n, False) for n in ("mamba_proj_bias", "projectors_bias")]
    if both[0] != both[1]:
        raise ValueError(
            f"mamba_proj_bias={both[0]} and projectors_bias={both[1]} are not supported, only two "
            "equal values."
        )
    norm = "before_gate" if values.get("mamba_norm_before_gate", True) else "after_gate"
    factors = _factors(values, "ssm_multipliers", 5)
    return expanded(values, BAMBA_SIZES, BAMBA_BIASES, inner).replace(
        gated_norm=norm if flag(values, "mamba_rms_norm") else "none",
        projection_scales=None if all(each == 1 for each in factors) else factors,
    )


def _read(values: Values) -> dict[str, Any]:
    mixer = Parallel(
        members=(_attention(values), _states(values)),
        input_scales=_scales(values, _INPUTS),
        output_scales=_scales(values, _OUTPUTS),
    )
    return {"mixer": mixer}


def _write(config: TransformerConfig) -> dict[str, Any]:
    mixer = config.last_side.block.mixer
    kinds = [member.kind for member in mixer.every_mixer]
    if not isinstance(mixer, Parallel) or kinds != [Attention.kind, StateSpace.kind]:
        raise ValueError("each layer there has attention and a state space side by side.")
    own, states = mixer.members
    theirs = {name: getattr(own, ours) for name, (ours, _) in _ATTENTION.items()}
    if own.position is not None:
        options = {**DEFAULTS, **rotary_values(own.position), "head_dim": own.head_dim}
        theirs |= _ROTARY.write(SimpleNamespace(**options))
    for names, scales in ((_INPUTS, mixer.input_scales), (_OUTPUTS, mixer.output_scales)):
        theirs |= dict(zip(names, scales or (1.0, 1.0), strict=True))
    sizes = {name: getattr(states, ours) for name, (ours, _) in BAMBA_SIZES.items()}
    biases = {name: getattr(states, ours) for name, (ours, _) in BAMBA_BIASES.items()}
    return {
        **theirs,
        **sizes,
        **biases,
        "head_dim": own.head_dim,
        "key_multiplier": _key_factor(own),
        "mamba_d_ssm": states.inner_dim,
        "projectors_bias": states.bias,
        "mamba_rms_norm": states.gated_norm != "none",
        "mamba_norm_before_gate": states.gated_norm != "after_gate",
        "ssm_multipliers": list(states.projection_scales or (1.0,) * 5),
    }


def _with_scales(config: TransformerConfig, gate: float, output: float) -> TransformerConfig:
    """Return the config with these factors in its feed-forward layers."""
    side = config.last_side

    def changed(block):
        dense = block.feed_forward
        if not isinstance(dense, Dense):
            return block
        return block.replace(feed_forward=dense.replace(gate_scale=gate, output_scale=output))

    blocks = {"block": changed(side.block), "layers": tuple(map(changed, side.layers))}
    return config.replace(**{config.side_names[-1]: side.replace(**blocks)})


def _read_scales(values: Values, config: TransformerConfig) -> TransformerConfig:
    return _with_scales(config, *_factors(values, "mlp_multipliers", 2))


def _write_scales(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    dense = config.last_side.block.feed_forward
    if not isinstance(dense, Dense) or not dense.gated:
        return config, {}
    factors = [dense.gate_scale, dense.output_scale]
    return _with_scales(config, 1.0, 1.0), {"mlp_multipliers": factors}


_OURS, _THEIRS = "decoder/layer_{i}/", "layers.{i}."
_LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "o", ours="mixer/self_attention"),
    "mixer_norm": "input_layernorm",
    "feed_forward_norm": "pre_ff_layernorm",
    "feed_forward/gate": "feed_forward.gate_proj",
    "feed_forward/intermediate": "feed_forward.up_proj",
    "feed_forward/output": "feed_forward.down_proj",
}
_OF_MIXER = {*_ATTENTION, "head_dim"}

FALCON_H1 = dataclasses.replace(
    LLAMA,
    model_type="falcon_h1",
    architecture="FalconH1Model",
    fields={name: field for name, field in LLAMA.fields.items() if name not in _OF_MIXER}
    | {
        "vocab_size": ConfigField("vocabulary_size", 128000),
        "intermediate_size": ConfigField("intermediate_dim", 14336),
        "max_position_embeddings": ConfigField("max_sequence_length", 8192),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "embedding_multiplier": ConfigField("embedding_scale", 1.0),
        "lm_head_multiplier": ConfigField("logit_scale", 1.0),
    },
    constants={**LLAMA.constants, "position": "none"},  # the mixer has the rotation
    conversions=(Conversion(_read, _write),),
    parts=PartsWithoutKeywords(_read_scales, _write_scales),
    required={"hidden_act": "silu"},
    weights=(
        *layers({"token_embedding": "embed_tokens", "decoder/final_norm": "final_layernorm"}),
        output_matrix("lm_head.weight"),
        *layers(_LAYER, _OURS, _THEIRS),
        *(
            dataclasses.replace(line, ours=line.ours.replace("/mixer/", "/mixer/state_space/"))
            for line in state_lines("mamba")
        ),
    ),
    heads={"CausalLM": PublishedHead()},
)
