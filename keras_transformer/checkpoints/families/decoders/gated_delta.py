"""Qwen3-Next: Qwen Team 2025, https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct, and others.

Qwen3.5, without its images. OLMo Hybrid.

Hybrids, most of whose layers have the gated delta rule of Yang and others (2024, arXiv 2412.06464)
in place of attention. Qwen's attention is gated, rotates a quarter of each head, and normalizes
queries and keys by 1 + weight. OLMo's norms are before the gated delta rule and behind attention.
"""

import dataclasses
from collections.abc import Sequence
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
    decoder_heads,
    number,
    number_of_layers,
    rotary,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.families.decoders.olmo2 import OLMO2
from keras_transformer.checkpoints.families.decoders.qwen_moe import QWEN2_MOE
from keras_transformer.checkpoints.weights.tables import WeightLine, layers
from keras_transformer.config import GatedDelta, TransformerConfig
from keras_transformer.support.checking import shorten

LINEAR = "linear_attention"
# Each size of the gated delta rule, with its published name and default.
_SIZES = {
    "linear_num_key_heads": ("num_key_heads", 16),
    "linear_num_value_heads": ("num_value_heads", 32),
    "linear_key_head_dim": ("key_dim", 128),
    "linear_value_head_dim": ("value_dim", 128),
    "linear_conv_kernel_dim": ("convolution_size", 4),
}
_OURS, _THEIRS = "decoder/layer_{i}/", "layers.{i}."
_MIXER, _LINEAR = f"{_OURS}mixer/", f"{_THEIRS}linear_attn."


def delta_of(config: TransformerConfig) -> GatedDelta | None:
    """Return the gated delta rule of the first layer that has one."""
    mixers = (block.mixer for block in config.last_side.every_block)
    return next((mixer for mixer in mixers if isinstance(mixer, GatedDelta)), None)


def kinds_of_layers(values: Values, default_layers: int, every: int = 4) -> list[str]:
    """Return the kind of each layer: its `layer_types`, or attention in one of `every`.

    Raises ValueError if no layer has attention.
    """
    count, kinds = number_of_layers(values, default_layers), values.get("layer_types")
    if kinds is None:
        every = max(number(values, "full_attention_interval", every), 1)
        kinds = [LINEAR if (i + 1) % every else FULL for i in range(count)]
        return kinds if FULL in kinds else [*kinds[:-1], FULL]
    known = isinstance(kinds, list) and len(kinds) == count and FULL in kinds
    if not known or not all(kind in (LINEAR, FULL) for kind in kinds):
        raise ValueError(
            f"layer_types must be a list of {count} names, each {LINEAR!r} or {FULL!r}, and at "
            f"least one {FULL!r}, received {shorten(kinds)}."
        )
    return kinds


def _read_mixer(values: Values) -> GatedDelta:
    sizes = {ours: number(values, name, default) for name, (ours, default) in _SIZES.items()}
    activation = LLAMA.activation("hidden_act", values.get("hidden_act", "silu"))
    return GatedDelta(activation=activation, **sizes)


def _write_mixers(config: TransformerConfig) -> dict[str, Any]:
    mixer = delta_of(config)
    linear = [isinstance(layer.only_side.block.mixer, GatedDelta) for layer in config.layers]
    sizes = {} if mixer is None else {n: getattr(mixer, ours) for n, (ours, _) in _SIZES.items()}
    return {**sizes, "layer_types": [LINEAR if each else FULL for each in linear]}


def _read_layers(values: Values) -> dict[str, Any]:
    kinds = kinds_of_layers(values, 32)
    own = {FULL: {"mixer": None}}
    if LINEAR in kinds:
        own[LINEAR] = {"mixer": _read_mixer(values)}
    return cycle_of_layers(kinds, own)


def _read_sparse_layers(values: Values) -> dict[str, Any]:
    """Return which layers have experts, and which the gated delta rule."""
    kinds = kinds_of_layers(values, 48)
    named = "num_local_experts" if "num_local_experts" in values else "num_experts"
    found = number(values, named, 512)
    step, dense = number(values, "decoder_sparse_step", 1), values.get("mlp_only_layers") or []
    if step < 1 or not isinstance(dense, list):
        raise ValueError(
            "decoder_sparse_step must be at least 1 and mlp_only_layers a list, received "
            f"{step} and {dense!r}."
        )
    mixers = {FULL: None, LINEAR: _read_mixer(values) if LINEAR in kinds else None}
    own = {
        (kind, has): {"mixer": mixer, "num_experts": found if has else 0}
        for kind, mixer in mixers.items()
        for has in (True, False)
    }
    sparse = [i not in dense and (i + 1) % step == 0 for i in range(len(kinds))]
    return cycle_of_layers(list(zip(kinds, sparse, strict=True)), own)


def _write_sparse_layers(config: TransformerConfig) -> dict[str, Any]:
    each = [layer.num_experts for layer in config.layers]
    return {
        **_write_mixers(config),
        "num_experts": max(each),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i, found in enumerate(each) if not found],
    }


def _parts(
    names: Sequence[str], theirs: str, sizes: Sequence[int], groups: int = 1, **options: Any
) -> tuple[WeightLine, ...]:
    """Return the lines of variables side by side in a tensor."""
    return tuple(
        WeightLine(
            name, theirs, part=(place, len(names)), sizes=tuple(sizes), groups=groups, **options
        )
        for place, name in enumerate(names)
    )


def _kernels(*names: str) -> list[str]:
    return [f"{_MIXER}{name}/kernel" for name in names]


def _gated_queries(config: TransformerConfig) -> tuple[WeightLine, ...]:
    """Return the lines of the queries and of the gate, side by side in each head."""
    attention = config.last_side.attention
    if attention is None:
        return ()
    sizes, lines = [attention.head_dim] * 2, ()
    for name, end, turned in (("kernel", "weight", True), ("bias", "bias", False)):
        ours = [f"{_OURS}self_attention/{part}/{name}" for part in ("query", "gate")]
        theirs = f"{_THEIRS}self_attn.q_proj.{end}"
        lines += _parts(ours, theirs, sizes, attention.num_heads, transpose=turned)
    return lines


def _convolutions(mixer: GatedDelta) -> tuple[WeightLine, ...]:
    keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_value_heads * mixer.value_dim
    ours = _kernels("query_convolution", "key_convolution", "value_convolution")
    return _parts(ours, f"{_LINEAR}conv1d.weight", [keys, keys, values], depthwise=True)


def _lines_of_next(config: TransformerConfig) -> tuple[WeightLine, ...]:
    mixer = delta_of(config)
    if mixer is None:
        return _gated_queries(config)
    each = mixer.num_value_heads // mixer.num_key_heads
    sizes = [mixer.key_dim] * 2 + [each * mixer.value_dim] * 2
    options = {"groups": mixer.num_key_heads, "transpose": True}
    inputs, both = _kernels("query", "key", "value", "gate"), _kernels("strength", "step")
    return (
        *_gated_queries(config),
        *_convolutions(mixer),
        *_parts(inputs, f"{_LINEAR}in_proj_qkvz.weight", sizes, **options),
        *_parts(both, f"{_LINEAR}in_proj_ba.weight", [each] * 2, **options),
    )


def _lines_of_3_5(config: TransformerConfig) -> tuple[WeightLine, ...]:
    mixer = delta_of(config)
    if mixer is None:
        return _gated_queries(config)
    keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_value_heads * mixer.value_dim
    inputs = _kernels("query", "key", "value")
    return (
        *_gated_queries(config),
        *_convolutions(mixer),
        *_parts(inputs, f"{_LINEAR}in_proj_qkv.weight", [keys, keys, values], transpose=True),
    )


def _delta_lines(norm: str, **denses: str) -> tuple[WeightLine, ...]:
    """Return the lines that all configs of a family share, with the names of projections."""
    return (
        *layers(denses, _MIXER, _LINEAR),
        WeightLine(f"{_MIXER}decay", f"{_LINEAR}A_log"),
        WeightLine(f"{_MIXER}step_bias", f"{_LINEAR}dt_bias"),
        WeightLine(f"{_MIXER}norm/scale", f"{_LINEAR}{norm}.weight"),
    )


def _without_queries(lines: tuple[WeightLine, ...]) -> tuple[WeightLine, ...]:
    return tuple(line for line in lines if "self_attn.q_proj" not in line.theirs)


_MIXER_NORM = layers({"mixer_norm": "input_layernorm"}, _OURS, _THEIRS)
_QWEN = {
    **LLAMA.constants,
    "normalization": "rms_norm_plus_one",
    "use_bias": False,
    "query_key_norm": True,
    "attention_gate": True,
}

QWEN3_NEXT = dataclasses.replace(
    QWEN2_MOE,
    model_type="qwen3_next",
    architecture="Qwen3NextModel",
    fields={
        **{name: each for name, each in QWEN2_MOE.fields.items() if name != "qkv_bias"},
        "num_hidden_layers": ConfigField("num_layers", 48),
        "num_key_value_heads": ConfigField("num_key_value_heads", 2),
        "head_dim": ConfigField("head_dim", 256),
        "attention_bias": ConfigField("attention_bias", False),
        "num_experts_per_tok": ConfigField("experts_per_token", 10),
        "moe_intermediate_size": ConfigField("expert_dim", 512),
        "shared_expert_intermediate_size": ConfigField("shared_expert_dim", 512),
        "norm_topk_prob": ConfigField("normalize_expert_weights", True),
    },
    constants=_QWEN,
    conversions=(rotary(0.25, 256), Conversion(_read_sparse_layers, _write_sparse_layers)),
    weights=(
        *_without_queries(QWEN2_MOE.weights),
        *_MIXER_NORM,
        *_delta_lines("norm", output="out_proj"),
    ),
    of_config=_lines_of_next,
)

QWEN3_5_TEXT = dataclasses.replace(
    LLAMA,
    model_type="qwen3_5_text",
    architecture="Qwen3_5TextModel",
    fields={
        **{name: each for name, each in LLAMA.fields.items() if name != "mlp_bias"},
        "vocab_size": ConfigField("vocabulary_size", 248320),
        "intermediate_size": ConfigField("intermediate_dim", 12288),
        "num_attention_heads": ConfigField("num_heads", 16),
        "num_key_value_heads": ConfigField("num_key_value_heads", 4),
        "head_dim": ConfigField("head_dim", 256),
        "max_position_embeddings": ConfigField("max_sequence_length", 32768),
    },
    constants=_QWEN,
    conversions=(rotary(0.25, 256), Conversion(_read_layers, _write_mixers)),
    weights=(
        *_without_queries(LLAMA.weights),
        *_MIXER_NORM,
        *_delta_lines(
            "norm", gate="in_proj_z", strength="in_proj_b", step="in_proj_a", output="out_proj"
        ),
    ),
    of_config=_lines_of_3_5,
    heads=decoder_heads("Qwen3_5ForCausalLM"),
)

# How many times a value may be overshot with `linear_allow_neg_eigval`, and without.
_STRENGTHS = {True: 2.0, False: 1.0}
_OF_OLMO = rotary()
_NOT_TURNED = {"rope_parameters": {"rope_type": "default", "rope_theta": None}}


def _read_olmo(values: Values) -> dict[str, Any]:
    kinds = kinds_of_layers(values, 32)
    heads = number(values, "num_attention_heads", 30)
    known = {*_SIZES, "hidden_act"}
    given = {name: value for name, value in values.items() if name in known and value is not None}
    given = {"linear_num_key_heads": heads, "linear_num_value_heads": heads, **given}
    keys = number(given, "linear_num_key_heads", heads)
    width = int(0.75 * number(values, "hidden_size", 3840) / max(keys, 1))
    width = number(given, "linear_key_head_dim", width)
    given = {"linear_key_head_dim": width, "linear_value_head_dim": 2 * width, **given}
    strength = _STRENGTHS[bool(values.get("linear_allow_neg_eigval", True))]
    own = {FULL: {"mixer": None, "normalize_first": False, "normalize_output": True}}
    if LINEAR in kinds:
        mixer = _read_mixer(given).replace(strength=strength, epsilon=1e-5)
        own[LINEAR] = {"mixer": mixer, "normalize_first": True, "normalize_output": False}
    rope = values.get("rope_parameters")
    given = rope if isinstance(rope, dict) and "rope_theta" in rope else values
    # A missing value stands for the usual base, null for no rotation.
    turned = given.get("rope_theta", 10000.0) is not None
    position = {"position": "rotary", **_OF_OLMO.read(values)} if turned else {"position": "none"}
    return {**position, **cycle_of_layers(kinds, own)}


def _write_olmo(config: TransformerConfig) -> dict[str, Any]:
    mixer, position = delta_of(config), getattr(config.last_side.attention, "position", None)
    return {
        **_write_mixers(config),
        "linear_allow_neg_eigval": mixer is not None and mixer.strength == 2,
        **(_NOT_TURNED if position is None else _OF_OLMO.write(config)),
    }


# The norms of both kinds of layers; Transformers writes those of attention by the second name too.
_OLMO_NORMS = tuple(
    WeightLine(
        f"{_OURS}{ours}/scale", f"{_THEIRS}{theirs}.weight", also=(f"{_THEIRS}{other}.weight",)
    )
    for ours, theirs, other in (
        ("mixer_norm", "attention_layer_norm", "input_layernorm"),
        ("feed_forward_norm", "feedforward_layer_norm", "post_attention_layernorm"),
        ("self_attention_output_norm", "post_attention_layernorm", "feedforward_layer_norm"),
    )
)
_OLMO_CONVOLUTIONS = tuple(
    WeightLine(
        f"{_MIXER}{name}_convolution/kernel", f"{_LINEAR}{name[0]}_conv1d.weight", depthwise=True
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
    conversions=(Conversion(_read_olmo, _write_olmo), NO_PADDING),
    weights=(
        *(line for line in OLMO2.weights if line.ours not in {each.ours for each in _OLMO_NORMS}),
        *_OLMO_NORMS,
        *_OLMO_CONVOLUTIONS,
        *_delta_lines(
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
