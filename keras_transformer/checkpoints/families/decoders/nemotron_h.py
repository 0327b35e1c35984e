"""NemotronH: NVIDIA 2025, https://arxiv.org/abs/2504.03624, and Nemotron 3.

Published layers are a norm and one sub-layer each: a state space, attention without positions, a
feed-forward layer or experts. Here a layer of the last two kinds is in one block with the layer
before it, which computes the same.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import FULL, cycle_of_layers, number
from keras_transformer.checkpoints.families.decoders.deepseek import (
    NO_FURTHER_TOKENS,
    V3_ROUTER,
    router,
)
from keras_transformer.checkpoints.families.decoders.gated_delta import LINEAR
from keras_transformer.checkpoints.families.decoders.mamba2 import (
    current_kinds,
    read_state_space,
    state_lines,
    state_space_of,
)
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    layers,
    output_matrix,
)
from keras_transformer.config import MOST_LAYERS, Dense, Experts, StateSpace, TransformerConfig
from keras_transformer.support.checking import shorten

_DENSE, _SPARSE = "mlp", "moe"
_LETTERS = {"M": LINEAR, "*": FULL, "-": _DENSE, "E": _SPARSE}
# Each value of the parts, with its published name and default.
_STATES = {
    "mamba_num_heads": ("num_heads", 128),
    "mamba_head_dim": ("head_dim", 64),
    "ssm_state_size": ("state_dim", 128),
    "n_groups": ("num_groups", 8),
    "conv_kernel": ("convolution_size", 4),
    "chunk_size": ("chunk_size", 128),
}
_BIASES = {"use_conv_bias": ("convolution_bias", True), "use_bias": ("bias", False)}
_ATTENTION = {
    "num_attention_heads": ("num_heads", 32),
    "num_key_value_heads": ("num_key_value_heads", 8),
    "head_dim": ("head_dim", 128),
    "attention_dropout": ("attention_dropout", 0.0),
}
_EXPERTS = {
    "num_experts_per_tok": ("experts_per_token", 2),
    "moe_intermediate_size": ("expert_dim", 7688),
    "moe_shared_expert_intermediate_size": ("shared_expert_dim", 7688),
    "norm_topk_prob": ("normalize_expert_weights", True),
}
_ROUTER = router(1.0, 1, 1, **V3_ROUTER)


def _sublayers(values: Values) -> list[str]:
    """Return the kind of each published layer."""
    found = values.get("layers_block_type", values.get("layer_types"))
    if found is None:
        found = values.get("hybrid_override_pattern")
        if isinstance(found, str):
            found = [_LETTERS.get(letter, letter) for letter in found]
    found = [LINEAR, _SPARSE, FULL, _DENSE] if found is None else found
    known = isinstance(found, list) and 0 < len(found) <= MOST_LAYERS
    kinds = current_kinds(found) if known else []
    if not kinds or not all(kind in _LETTERS.values() for kind in kinds):
        raise ValueError(
            "layers_block_type must be a list of names, each one of "
            f"{', '.join(map(repr, _LETTERS.values()))}, received {shorten(found)}."
        )
    return kinds


def _paired(kinds: list[str]) -> list[tuple[str, str | None]]:
    """Return the kinds of the mixer and of the feed-forward layer of each of our blocks."""
    pairs: list[tuple[str, str | None]] = []
    for kind in kinds:
        if kind in (LINEAR, FULL):
            pairs.append((kind, None))
        elif pairs and pairs[-1][1] is None:
            pairs[-1] = (pairs[-1][0], kind)
        else:
            raise ValueError(
                f"layers_block_type={shorten(kinds)} is not supported: each {_DENSE!r} and "
                f"{_SPARSE!r} must be behind a layer of another kind, {LINEAR!r} or {FULL!r}."
            )
    return pairs


def _read(values: Values) -> dict[str, Any]:
    pairs = _paired(_sublayers(values))
    mixers, forwards = ({pair[i] for pair in pairs} for i in (0, 1))
    if _SPARSE in forwards and values.get("mlp_bias"):
        raise ValueError("mlp_bias=True is not supported with experts, only False.")
    width, count = number(values, "intermediate_size", 21504), 0
    theirs: dict[str, Any] = {}
    if FULL in mixers:
        theirs |= {ours: values.get(name, default) for name, (ours, default) in _ATTENTION.items()}
    if _SPARSE in forwards:
        count = number(values, "n_routed_experts", 8)
        theirs |= {ours: values.get(name, default) for name, (ours, default) in _EXPERTS.items()}
        theirs |= _ROUTER.read(values)
    of_mixer: dict[str, Any] = {FULL: None}
    if LINEAR in mixers:
        least = number(values, "time_step_min", 0.001, float) or None
        of_mixer[LINEAR] = read_state_space(values, _STATES, _BIASES, least_step=least)
    of_forward = {
        _SPARSE: {"intermediate_dim": width, "num_experts": count},
        _DENSE: {"intermediate_dim": width, "num_experts": 0},
        None: {"intermediate_dim": 0, "num_experts": 0},
    }
    own = {
        (mixer, forward): {"mixer": part, **sizes}
        for forward, sizes in of_forward.items()
        for mixer, part in of_mixer.items()
    }
    return {**theirs, "num_layers": len(pairs), **cycle_of_layers(pairs, own)}


def _kinds_of(config: TransformerConfig) -> list[str]:
    """Return the kinds of the published layers."""
    names = {type(None): (), Dense: (_DENSE,), Experts: (_SPARSE,)}
    return [
        kind
        for block in config.last_side.blocks
        for kind in (
            LINEAR if isinstance(block.mixer, StateSpace) else FULL,
            *names[type(block.feed_forward)],
        )
    ]


def _write(config: TransformerConfig) -> dict[str, Any]:
    theirs: dict[str, Any] = {"layers_block_type": _kinds_of(config)}
    mixer = state_space_of(config)
    if mixer is not None:
        names = {**_STATES, **_BIASES}
        theirs |= {name: getattr(mixer, ours) for name, (ours, _) in names.items()}
        theirs["time_step_min"] = mixer.least_step or 0.0
    if config.last_side.attention is not None:
        theirs |= {name: getattr(config, ours) for name, (ours, _) in _ATTENTION.items()}
    width = max((layer.intermediate_dim for layer in config.layers), default=0)
    theirs |= {"intermediate_size": width} if width else {}
    found = next((layer for layer in config.layers if layer.num_experts), None)
    if found is not None:
        theirs |= {name: getattr(found, ours) for name, (ours, _) in _EXPERTS.items()}
        theirs |= {"n_routed_experts": found.num_experts, **_ROUTER.write(config)}
    return theirs


_MIXERS = (
    *layers({"mixer_norm": "norm"}, "decoder/layer_{i}/", "layers.{i}."),
    *layers(
        {"self_attention_norm": "norm", **attention("mixer.{}_proj", "q", "k", "v", "o")},
        "decoder/layer_{i}/",
        "layers.{i}.",
    ),
    *state_lines("mixer"),
)
_FORWARDS = (
    *layers({"feed_forward_norm": "norm"}, "decoder/layer_{i}/", "layers.{i}."),
    *layers(
        {
            "intermediate": "up_proj",
            "output": "down_proj",
            "router": "gate",
            "expert_intermediate": "experts.*.up_proj",
            "expert_output": "experts.*.down_proj",
            "shared/intermediate": "shared_experts.up_proj",
            "shared/output": "shared_experts.down_proj",
        },
        "decoder/layer_{i}/feed_forward/",
        "layers.{i}.mixer.",
    ),
    WeightLine(
        "decoder/layer_{i}/feed_forward/correction_bias",
        "layers.{i}.mixer.gate.e_score_correction_bias",
    ),
)


def _lines(config: TransformerConfig) -> tuple[WeightLine, ...]:
    """Return the lines of the blocks, each sub-layer of which is a published layer by itself."""
    return tuple(_lines_of_blocks(config))


def _lines_of_blocks(config: TransformerConfig) -> Iterator[WeightLine]:
    block = -1
    for number_, kind in enumerate(_kinds_of(config)):
        is_mixer = kind in (LINEAR, FULL)
        block += is_mixer
        for line in _MIXERS if is_mixer else _FORWARDS:
            ours, theirs = line.ours.replace("{i}", str(block)), line.theirs
            yield dataclasses.replace(line, ours=ours, theirs=theirs.replace("{i}", str(number_)))


NEMOTRON_H = Family(
    model_type="nemotron_h",
    architecture="NemotronHModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 131072),
        "hidden_size": ConfigField("hidden_dim", 4096),
        "mlp_hidden_act": ConfigField("activation", "relu2"),
        "mlp_bias": ConfigField("use_bias", False),
        "max_position_embeddings": ConfigField("max_sequence_length", 4096),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "layer_norm_epsilon": ConfigField("normalization_epsilon", 1e-5),
        "tie_word_embeddings": ConfigField("tie_embeddings", False),
    },
    constants={
        "kind": "decoder",
        "position": "none",
        "normalization": "rms_norm",
        "normalize_first": True,
        "attention_bias": False,
        "attention_output_bias": False,
        "shared_expert_gate": False,
    },
    conversions=(Conversion(_read, _write), NO_FURTHER_TOKENS),
    required={"mamba_hidden_act": "silu", "moe_latent_size": None},
    weights=(
        *layers({"token_embedding": "embeddings", "decoder/final_norm": "norm_f"}),
        output_matrix("lm_head.weight"),
    ),
    of_config=_lines,
    heads={"CausalLM": PublishedHead()},
    names=Names(prefixes=("backbone.", "model."), ignored=("mtp.*",)),
)
