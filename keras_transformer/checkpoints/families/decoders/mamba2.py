"""Mamba 2: Dao and Gu 2024, https://arxiv.org/abs/2405.21060.

Blocks of a state space alone, without attention, feed-forward layers and positions.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers, output_matrix
from keras_transformer.config import StateSpace, TransformerConfig

# Each size of the state space, with its published name and default.
_SIZES = {
    "num_heads": ("num_heads", 128),
    "head_dim": ("head_dim", 64),
    "state_size": ("state_dim", 128),
    "n_groups": ("num_groups", 8),
    "conv_kernel": ("convolution_size", 4),
    "chunk_size": ("chunk_size", 256),
}
# Infinity as JSON has it, and as Transformers writes it.
_UNLIMITED = (float("inf"), {"__float__": "Infinity"})
_BIASES = {"use_conv_bias": ("convolution_bias", True), "use_bias": ("bias", False)}


def _read_mixer(values: Values) -> dict[str, Any]:
    sizes = {ours: number(values, name, default) for name, (ours, default) in _SIZES.items()}
    mixer = StateSpace(
        **sizes, **{ours: values.get(name, default) for name, (ours, default) in _BIASES.items()}
    )
    width = number(values, "hidden_size", 4096) * number(values, "expand", 2)
    if mixer.inner_dim != width:
        raise ValueError(
            f"num_heads * head_dim must equal hidden_size * expand, received {mixer.inner_dim} and "
            f"{width}."
        )
    limits = values.get("time_step_limit")
    if limits is not None and not any(limits in ([0.0, most], (0.0, most)) for most in _UNLIMITED):
        raise ValueError(
            f"time_step_limit={limits!r} is not supported, only [0, infinity]: Transformers limits "
            "the steps of a prompt, but not those of further tokens."
        )
    return {"mixer": mixer}


def _write_mixer(config: TransformerConfig) -> dict[str, Any]:
    mixer = config.last_side.block.mixer
    if not isinstance(mixer, StateSpace):
        return {}
    names = {**_SIZES, **_BIASES}
    return {
        **{name: getattr(mixer, ours) for name, (ours, _) in names.items()},
        "expand": mixer.inner_dim // config.hidden_dim,
    }


_ONCE = {"token_embedding": "embeddings", "decoder/final_norm": "norm_f"}
_LAYER = {
    "mixer_norm": "norm",
    "mixer/input": "mixer.in_proj",
    "mixer/output": "mixer.out_proj",
}
_OURS, _THEIRS = "decoder/layer_{i}/mixer/", "layers.{i}.mixer."

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
        *layers(_LAYER, "decoder/layer_{i}/", "layers.{i}."),
        WeightLine(f"{_OURS}convolution/kernel", f"{_THEIRS}conv1d.weight", depthwise=True),
        WeightLine(f"{_OURS}convolution/bias", f"{_THEIRS}conv1d.bias"),
        WeightLine(f"{_OURS}decay", f"{_THEIRS}A_log"),
        WeightLine(f"{_OURS}skip", f"{_THEIRS}D"),
        WeightLine(f"{_OURS}step_bias", f"{_THEIRS}dt_bias"),
        WeightLine(f"{_OURS}norm/scale", f"{_THEIRS}norm.weight"),
    ),
    heads={"CausalLM": PublishedHead()},
    names=Names(prefixes=("backbone.",)),
)
