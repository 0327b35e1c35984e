"""Qwen3-Next: Qwen Team 2025, https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct; Qwen3.5.

Hybrids, most of whose layers have the gated delta rule of Yang and others (2024, arXiv 2412.06464)
in place of attention, which is gated, rotates a quarter of each head, and normalizes queries and
keys by 1 + weight. Qwen3.5, with and without experts, is read without its images.
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
    cycle_of_layers,
    decoder_heads,
    listed_layers,
    number,
    number_of_layers,
    rotary,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.families.decoders.qwen_moe import QWEN2_MOE
from keras_transformer.checkpoints.weights.tables import WeightLine, layers
from keras_transformer.config import GatedDelta, TransformerConfig
from keras_transformer.support.checking import shorten

LINEAR = "linear_attention"
# Each size of the gated delta rule, with its published name and default.
SIZES = {
    "linear_num_key_heads": ("num_key_heads", 16),
    "linear_num_value_heads": ("num_value_heads", 32),
    "linear_key_head_dim": ("key_dim", 128),
    "linear_value_head_dim": ("value_dim", 128),
    "linear_conv_kernel_dim": ("convolution_size", 4),
}
OURS, THEIRS = "decoder/layer_{i}/", "layers.{i}."
MIXER, LINEAR_ATTENTION = f"{OURS}mixer/", f"{THEIRS}linear_attn."


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


def read_mixer(values: Values) -> GatedDelta:
    """Return the gated delta rule that a published config describes."""
    sizes = {ours: number(values, name, default) for name, (ours, default) in SIZES.items()}
    activation = LLAMA.activation("hidden_act", values.get("hidden_act", "silu"))
    return GatedDelta(activation=activation, **sizes)


def write_mixers(config: TransformerConfig) -> dict[str, Any]:
    """Return the published values of the gated delta rule, and the kind of each layer."""
    mixer = delta_of(config)
    linear = [isinstance(layer.only_side.block.mixer, GatedDelta) for layer in config.layers]
    sizes = {} if mixer is None else {n: getattr(mixer, ours) for n, (ours, _) in SIZES.items()}
    return {**sizes, "layer_types": [LINEAR if each else FULL for each in linear]}


def delta_layers(default_layers: int) -> Conversion:
    """Return a conversion of layers with attention and with the gated delta rule."""

    def read(values: Values) -> dict[str, Any]:
        kinds = kinds_of_layers(values, default_layers)
        own = {FULL: {"mixer": None}}
        if LINEAR in kinds:
            own[LINEAR] = {"mixer": read_mixer(values)}
        return cycle_of_layers(kinds, own)

    return Conversion(read, write_mixers)


def _read_sparse_layers(values: Values) -> dict[str, Any]:
    """Return which layers have experts, and which the gated delta rule."""
    kinds = kinds_of_layers(values, 48)
    named = "num_local_experts" if "num_local_experts" in values else "num_experts"
    found = number(values, named, 512)
    step = number(values, "decoder_sparse_step", 1)
    if step < 1:
        raise ValueError(f"decoder_sparse_step must be at least 1, received {step}.")
    dense = listed_layers(values, "mlp_only_layers") or frozenset()
    mixers = {FULL: None, LINEAR: read_mixer(values) if LINEAR in kinds else None}
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
        **write_mixers(config),
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
    return [f"{MIXER}{name}/kernel" for name in names]


def _gated_queries(config: TransformerConfig) -> tuple[WeightLine, ...]:
    """Return the lines of the queries and of the gate, side by side in each head."""
    attention = config.last_side.attention
    if attention is None:
        return ()
    sizes, lines = [attention.head_dim] * 2, ()
    for name, end, turned in (("kernel", "weight", True), ("bias", "bias", False)):
        ours = [f"{OURS}self_attention/{part}/{name}" for part in ("query", "gate")]
        theirs = f"{THEIRS}self_attn.q_proj.{end}"
        lines += _parts(ours, theirs, sizes, attention.num_heads, transpose=turned)
    return lines


def _convolutions(mixer: GatedDelta) -> tuple[WeightLine, ...]:
    keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_value_heads * mixer.value_dim
    ours = _kernels("query_convolution", "key_convolution", "value_convolution")
    return _parts(ours, f"{LINEAR_ATTENTION}conv1d.weight", [keys, keys, values], depthwise=True)


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
        *_parts(inputs, f"{LINEAR_ATTENTION}in_proj_qkvz.weight", sizes, **options),
        *_parts(both, f"{LINEAR_ATTENTION}in_proj_ba.weight", [each] * 2, **options),
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
        *_parts(
            inputs, f"{LINEAR_ATTENTION}in_proj_qkv.weight", [keys, keys, values], transpose=True
        ),
    )


def delta_lines(norm: str, **denses: str) -> tuple[WeightLine, ...]:
    """Return the lines that all configs of a family share, with the names of projections."""
    return (
        *layers(denses, MIXER, LINEAR_ATTENTION),
        WeightLine(f"{MIXER}decay", f"{LINEAR_ATTENTION}A_log"),
        WeightLine(f"{MIXER}step_bias", f"{LINEAR_ATTENTION}dt_bias"),
        WeightLine(f"{MIXER}norm/scale", f"{LINEAR_ATTENTION}{norm}.weight"),
    )


def _without_queries(lines: tuple[WeightLine, ...]) -> tuple[WeightLine, ...]:
    return tuple(line for line in lines if "self_attn.q_proj" not in line.theirs)


_MIXER_NORM = layers({"mixer_norm": "input_layernorm"}, OURS, THEIRS)
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
        *delta_lines("norm", output="out_proj"),
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
    conversions=(rotary(0.25, 256), delta_layers(32)),
    weights=(
        *_without_queries(LLAMA.weights),
        *_MIXER_NORM,
        *delta_lines(
            "norm", gate="in_proj_z", strength="in_proj_b", step="in_proj_a", output="out_proj"
        ),
    ),
    of_config=_lines_of_3_5,
    heads=decoder_heads("Qwen3_5ForCausalLM"),
)

_OF_EXPERTS = ("expert_", "router", "shared")

QWEN3_5_MOE_TEXT = dataclasses.replace(
    QWEN3_5_TEXT,
    model_type="qwen3_5_moe_text",
    architecture="Qwen3_5MoeTextModel",
    fields={
        **{n: each for n, each in QWEN3_5_TEXT.fields.items() if n != "intermediate_size"},
        "hidden_size": ConfigField("hidden_dim", 2048),
        "num_hidden_layers": ConfigField("num_layers", 40),
        "num_key_value_heads": ConfigField("num_key_value_heads", 2),
        "num_experts": ConfigField("num_experts", 256),
        "num_experts_per_tok": ConfigField("experts_per_token", 8),
        "moe_intermediate_size": ConfigField("intermediate_dim", 512),
        "shared_expert_intermediate_size": ConfigField("shared_expert_dim", 512),
        "router_aux_loss_coef": ConfigField("load_balancing_factor", 0.001),
    },
    conversions=(rotary(0.25, 256), delta_layers(40)),
    weights=(
        *(line for line in QWEN3_5_TEXT.weights if ".mlp." not in line.theirs),
        *(line for line in QWEN2_MOE.weights if any(x in line.ours for x in _OF_EXPERTS)),
    ),
    heads={"CausalLM": PublishedHead(architectures=("Qwen3_5MoeForCausalLM",))},
)
