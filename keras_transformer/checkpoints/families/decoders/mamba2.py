"""Mamba2: Dao and Gu 2024, https://arxiv.org/abs/2405.21060, and Bamba.

Bamba: Ganti et al. 2024, https://huggingface.co/blog/bamba.

Blocks of a state space alone, without attention, feed-forward layers and positions. Bamba has
feed-forward layers, and attention in some layers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    FULL,
    cycle_of_layers,
    listed_layers,
    number,
    number_of_layers,
    rotary,
)
from keras_transformer.checkpoints.families.decoders.gated_delta import LINEAR
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    layers,
    output_matrix,
)
from keras_transformer.config import StateSpace, TransformerConfig

_Table = Mapping[str, tuple[str, Any]]
# Each size of the state space, with its published name and default.
_SIZES = {
    "num_heads": ("num_heads", 128),
    "head_dim": ("head_dim", 64),
    "state_size": ("state_dim", 128),
    "n_groups": ("num_groups", 8),
    "conv_kernel": ("convolution_size", 4),
    "chunk_size": ("chunk_size", 256),
}
_BIASES = {"use_conv_bias": ("convolution_bias", True), "use_bias": ("bias", False)}
# The same for Bamba, whose names differ.
BAMBA_SIZES = {
    "mamba_n_heads": ("num_heads", 128),
    "mamba_d_head": ("head_dim", 64),
    "mamba_d_state": ("state_dim", 256),
    "mamba_n_groups": ("num_groups", 1),
    "mamba_d_conv": ("convolution_size", 4),
    "mamba_chunk_size": ("chunk_size", 256),
}
BAMBA_BIASES = {"mamba_conv_bias": ("convolution_bias", True), "mamba_proj_bias": ("bias", False)}
# Infinity as JSON has it, and as Transformers writes it.
_UNLIMITED = (float("inf"), {"__float__": "Infinity"})


_OLDER = {"mamba": LINEAR, "attention": FULL}


def current_kinds(kinds: list[Any]) -> list[Any]:
    """Return the kinds of layers of a config by their current names."""
    return [_OLDER.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]


def read_state_space(values: Values, sizes: _Table, biases: _Table, **further: Any) -> StateSpace:
    """Return the state space that published values describe, by tables of their names."""
    return StateSpace(
        **{ours: number(values, name, default) for name, (ours, default) in sizes.items()},
        **{ours: values.get(name, default) for name, (ours, default) in biases.items()},
        **further,
    )


def state_space_of(config: TransformerConfig) -> StateSpace | None:
    """Return the state space of the first layer that has one."""
    mixers = (block.mixer for block in config.last_side.every_block)
    return next((mixer for mixer in mixers if isinstance(mixer, StateSpace)), None)


def expanded(values: Values, sizes: _Table, biases: _Table, width: int) -> StateSpace:
    """Return the state space that published values describe, whose heads have `width` together."""
    mixer = read_state_space(values, sizes, biases)
    if mixer.inner_dim != width:
        raise ValueError(
            f"The heads of a state space must be as wide together as the expanded states, {width}, "
            f"received {mixer.inner_dim}."
        )
    limits = values.get("time_step_limit")
    if limits is not None and not any(limits in ([0.0, most], (0.0, most)) for most in _UNLIMITED):
        raise ValueError(
            f"time_step_limit={limits!r} is not supported, only [0, infinity]: Transformers limits "
            "the steps of the tokens of a prompt, but not of the tokens after it."
        )
    return mixer


def _read_mixer(values: Values) -> dict[str, Any]:
    width = number(values, "hidden_size", 4096) * number(values, "expand", 2)
    return {"mixer": expanded(values, _SIZES, _BIASES, width)}


def _write_mixer(config: TransformerConfig) -> dict[str, Any]:
    return _written(config, {**_SIZES, **_BIASES}, "expand")


def _written(config: TransformerConfig, names: _Table, expand: str) -> dict[str, Any]:
    """Return the published values of the state space; `expand` is the name of its width."""
    mixer = state_space_of(config)
    if mixer is None:
        return {}
    theirs = {name: getattr(mixer, ours) for name, (ours, _) in names.items()}
    return {**theirs, expand: mixer.inner_dim // config.hidden_dim}


_ONCE = {"token_embedding": "embeddings", "decoder/final_norm": "norm_f"}
_OURS, _THEIRS = "decoder/layer_{i}/mixer/", "layers.{i}."


def state_lines(name: str) -> tuple[WeightLine, ...]:
    """Return the lines of a state space, which the published layers call `name`."""
    theirs = f"{_THEIRS}{name}."
    return (
        *layers({"input": "in_proj", "output": "out_proj"}, _OURS, theirs),
        WeightLine(f"{_OURS}short_convolution/kernel", f"{theirs}conv1d.weight", depthwise=True),
        WeightLine(f"{_OURS}short_convolution/bias", f"{theirs}conv1d.bias"),
        WeightLine(f"{_OURS}decay", f"{theirs}A_log"),
        WeightLine(f"{_OURS}skip", f"{theirs}D"),
        WeightLine(f"{_OURS}step_bias", f"{theirs}dt_bias"),
        WeightLine(f"{_OURS}norm/scale", f"{theirs}norm.weight"),
    )


MAMBA2 = Family(
    model_type="mamba2",
    architecture="Mamba2Model",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 32768),
        "hidden_size": ConfigField("hidden_dim", 4096),
        "num_hidden_layers": ConfigField("num_layers", 64),
        "max_position_embeddings": ConfigField("max_sequence_length", 2048),
        "initializer_range": ConfigField("initializer_range", 0.1),
        "layer_norm_epsilon": ConfigField("normalization_epsilon", 1e-5),
        "tie_word_embeddings": ConfigField("tie_embeddings", False),
    },
    constants={
        "kind": "decoder",
        "position": "none",
        "normalization": "rms_norm",
        "normalize_first": True,
        "intermediate_dim": 0,
    },
    conversions=(Conversion(_read_mixer, _write_mixer),),
    required={"hidden_act": "silu"},
    weights=(
        *layers(_ONCE),
        output_matrix("lm_head.weight"),
        *layers({"mixer_norm": "norm"}, "decoder/layer_{i}/", _THEIRS),
        *state_lines("mixer"),
    ),
    heads={"CausalLM": PublishedHead()},
    names=Names(prefixes=("backbone.",)),
)

# Values of attention, which a config has if some layer has attention.
_ATTENTION = {
    "num_attention_heads": ("num_heads", 32),
    "num_key_value_heads": ("num_key_value_heads", 8),
    "attention_bias": ("attention_bias", False),
    "attention_dropout": ("attention_dropout", 0.0),
}
_ROTARY = rotary(0.5)


def read_bamba_mixer(values: Values) -> StateSpace:
    """Return the state space that a config of Bamba, or one with the same names, describes."""
    inner = number(values, "hidden_size", 4096) * number(values, "mamba_expand", 2)
    if values.get("mamba_d_head", "auto") == "auto":
        width = inner // max(number(values, "mamba_n_heads", 128), 1)
        values = {**values, "mamba_d_head": width}
    return expanded(values, BAMBA_SIZES, BAMBA_BIASES, inner)


def write_bamba_mixer(config: TransformerConfig) -> dict[str, Any]:
    """Return the published values of the state space of the first layer that has one."""
    return _written(config, {**BAMBA_SIZES, **BAMBA_BIASES}, "mamba_expand")


def _read_bamba(values: Values) -> dict[str, Any]:
    count, width = number_of_layers(values, 32), number(values, "hidden_size", 4096)
    mixer = read_bamba_mixer(values)
    found = listed_layers(values, "attn_layer_indices") or frozenset()
    if not any(0 <= i < count for i in found):
        return {"mixer": mixer, "position": "none"}
    given = values.get("rope_parameters") or {}
    if isinstance(given, dict) and given.get("partial_rotary_factor", 0.5) != 0.5:
        raise ValueError(
            f"partial_rotary_factor={given['partial_rotary_factor']!r} is not supported, only 0.5."
        )
    own = {ours: values.get(name, default) for name, (ours, default) in _ATTENTION.items()}
    kinds = [i in found for i in range(count)]
    turns = cycle_of_layers(kinds, {True: {"mixer": None}, False: {"mixer": mixer}})
    values = {**values, "head_dim": width // max(number(own, "num_heads", 32), 1)}
    return {**own, **turns, "position": "rotary", **_ROTARY.read(values)}


def _write_bamba(config: TransformerConfig) -> dict[str, Any]:
    mixers = [block.mixer for block in config.last_side.blocks]
    theirs: dict[str, Any] = {
        "attn_layer_indices": [i for i, each in enumerate(mixers) if each.kind == "attention"],
        **write_bamba_mixer(config),
    }
    if theirs["attn_layer_indices"]:
        theirs |= {name: getattr(config, ours) for name, (ours, _) in _ATTENTION.items()}
        theirs |= _ROTARY.write(config)
    return theirs


_LAYERS = {
    "mixer_norm": "input_layernorm",
    "self_attention_norm": "input_layernorm",
    "feed_forward_norm": "pre_ff_layernorm",
    "feed_forward/gate": "feed_forward.gate_proj",
    "feed_forward/intermediate": "feed_forward.up_proj",
    "feed_forward/output": "feed_forward.down_proj",
    **attention("self_attn.{}_proj", "q", "k", "v", "o"),
}

BAMBA = dataclasses.replace(
    LLAMA,
    model_type="bamba",
    architecture="BambaModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 128000),
        "hidden_size": ConfigField("hidden_dim", 4096),
        "num_hidden_layers": ConfigField("num_layers", 32),
        "intermediate_size": ConfigField("intermediate_dim", 14336),
        "hidden_act": ConfigField("activation", "silu"),
        "max_position_embeddings": ConfigField("max_sequence_length", 262144),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "tie_word_embeddings": ConfigField("tie_embeddings", False),
        "mlp_bias": ConfigField("use_bias", False),
    },
    constants={name: value for name, value in LLAMA.constants.items() if name != "position"},
    conversions=(Conversion(_read_bamba, _write_bamba),),
    required={"hidden_act": "silu"},
    weights=(
        *layers({"token_embedding": "embed_tokens", "decoder/final_norm": "final_layernorm"}),
        output_matrix("lm_head.weight"),
        *layers(_LAYERS, "decoder/layer_{i}/", _THEIRS),
        *state_lines("mamba"),
    ),
    heads={"CausalLM": PublishedHead()},
)
