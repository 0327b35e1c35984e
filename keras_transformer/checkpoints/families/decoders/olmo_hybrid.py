"""OLMo Hybrid: Ai2 2026, https://huggingface.co/allenai/Olmo-Hybrid-7B.

An OLMo 2 most of whose layers have the gated delta rule in place of attention, with norms before it
and behind attention.
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
    NO_PADDING,
    cycle_of_layers,
    flag,
    number,
    rotary,
)
from keras_transformer.checkpoints.families.decoders.gated_delta import (
    LINEAR,
    LINEAR_ATTENTION,
    MIXER,
    OURS,
    SIZES,
    THEIRS,
    delta_lines,
    delta_of,
    kinds_of_layers,
    read_mixer,
    write_mixers,
)
from keras_transformer.checkpoints.families.decoders.olmo2 import OLMO2
from keras_transformer.checkpoints.weights.tables import WeightLine
from keras_transformer.config import TransformerConfig

# How many times a value may be overshot with `linear_allow_neg_eigval`, and without.
_STRENGTHS = {True: 2.0, False: 1.0}
_ROTARY = rotary()
_NOT_TURNED = {"rope_parameters": {"rope_type": "default", "rope_theta": None}}


def _read(values: Values) -> dict[str, Any]:
    kinds = kinds_of_layers(values, 32)
    heads = number(values, "num_attention_heads", 30)
    known = {*SIZES, "hidden_act"}
    given = {name: value for name, value in values.items() if name in known and value is not None}
    given = {"linear_num_key_heads": heads, "linear_num_value_heads": heads, **given}
    keys = number(given, "linear_num_key_heads", heads)
    width = int(0.75 * number(values, "hidden_size", 3840) / max(keys, 1))
    width = number(given, "linear_key_head_dim", width)
    given = {"linear_key_head_dim": width, "linear_value_head_dim": 2 * width, **given}
    strength = _STRENGTHS[flag(values, "linear_allow_neg_eigval", True)]
    own = {FULL: {"mixer": None, "normalize_first": False, "normalize_output": True}}
    if LINEAR in kinds:
        mixer = read_mixer(given).replace(strength=strength, epsilon=1e-5)
        own[LINEAR] = {"mixer": mixer, "normalize_first": True, "normalize_output": False}
    rope = values.get("rope_parameters")
    given = rope if isinstance(rope, dict) and "rope_theta" in rope else values
    # A missing value stands for the usual base, null for no rotation.
    turned = given.get("rope_theta", 10000.0) is not None
    position = {"position": "rotary", **_ROTARY.read(values)} if turned else {"position": "none"}
    return {**position, **cycle_of_layers(kinds, own)}


def _write(config: TransformerConfig) -> dict[str, Any]:
    mixer, position = delta_of(config), getattr(config.last_side.attention, "position", None)
    return {
        **write_mixers(config),
        "linear_allow_neg_eigval": mixer is not None and mixer.strength == 2,
        **(_NOT_TURNED if position is None else _ROTARY.write(config)),
    }


# The norms of both kinds of layers. Transformers also writes attention's by the second name.
_NORMS = tuple(
    WeightLine(f"{OURS}{ours}/scale", f"{THEIRS}{theirs}.weight", also=(f"{THEIRS}{other}.weight",))
    for ours, theirs, other in (
        ("mixer_norm", "attention_layer_norm", "input_layernorm"),
        ("feed_forward_norm", "feedforward_layer_norm", "post_attention_layernorm"),
        ("self_attention_output_norm", "post_attention_layernorm", "feedforward_layer_norm"),
    )
)
_CONVOLUTIONS = tuple(
    WeightLine(
        f"{MIXER}{name}_convolution/kernel",
        f"{LINEAR_ATTENTION}{name[0]}_conv1d.weight",
        depthwise=True,
    )
    for name in ("query", "key", "value")
)

OLMO_HYBRID = dataclasses.replace(
    OLMO2,
    model_type="olmo_hybrid",
    architecture="OlmoHybridModel",
    fields={
        **OLMO2.fields,
        "vocab_size": ConfigField("vocabulary_size", 100352),
        "hidden_size": ConfigField("hidden_dim", 3840),
        "num_attention_heads": ConfigField("num_heads", 30),
        "max_position_embeddings": ConfigField("max_sequence_length", 65536),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-6),
    },
    constants={
        name: value
        for name, value in OLMO2.constants.items()
        if name not in ("position", "normalize_first", "normalize_output")
    },
    conversions=(Conversion(_read, _write), NO_PADDING),
    weights=(
        *(line for line in OLMO2.weights if line.ours not in {each.ours for each in _NORMS}),
        *_NORMS,
        *_CONVOLUTIONS,
        *delta_lines(
            "o_norm",
            query="q_proj",
            key="k_proj",
            value="v_proj",
            gate="g_proj",
            strength="b_proj",
            step="a_proj",
            output="o_proj",
        ),
    ),
    heads={"CausalLM": PublishedHead()},
)
