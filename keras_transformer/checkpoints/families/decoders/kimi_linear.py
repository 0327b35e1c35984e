"""KimiLinear: Kimi Team 2025, https://arxiv.org/abs/2510.26692.

Most layers have the gated delta rule with a factor for each feature of keys (Kimi Delta Attention),
the others latent attention without positions. The experts and the router are DeepSeek-V3's.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    FULL,
    NO_PADDING,
    cycle_of_layers,
    listed_layers,
    number,
    number_of_layers,
)
from keras_transformer.checkpoints.families.decoders.deepseek import (
    CORRECTION,
    DEEPSEEK_V3,
    SHARED,
    V3_ROUTER,
    latent_of,
    router,
)
from keras_transformer.checkpoints.families.decoders.gated_delta import (
    LINEAR,
    MIXER,
    OURS,
    THEIRS,
    delta_of,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import WeightLine, layers
from keras_transformer.config import Experts, GatedDelta, LatentAttention, TransformerConfig
from keras_transformer.support.checking import shorten

_DENSE, _SPARSE = "dense", "sparse"
_LATENT = {
    "num_attention_heads": ("num_heads", 32),
    "kv_lora_rank": ("kv_lora_rank", 512),
    "qk_nope_head_dim": ("qk_nope_head_dim", 128),
    "qk_rope_head_dim": ("qk_rope_head_dim", 64),
    "v_head_dim": ("v_head_dim", 128),
}
# Each size of the delta rule, with its names in the nested config of older files.
_DELTA = {
    "linear_num_heads": ("num_heads", 32),
    "linear_head_dim": ("head_dim", 128),
    "linear_conv_kernel_dim": ("short_conv_kernel_size", 4),
}
_ROUTER = router(2.446, 1, 1, **V3_ROUTER)


def _nested(values: Values) -> dict[str, Any]:
    nested = values.get("linear_attn_config") or {}
    if not isinstance(nested, dict):
        raise ValueError(f"linear_attn_config must be an object, received {shorten(nested)}.")
    return nested


def _kinds(values: Values) -> list[tuple[str, str]]:
    """Return the kinds of the mixer and of the feed-forward layer of each layer."""
    count, nested = number_of_layers(values, 27), _nested(values)
    mixers, forwards = values.get("layer_types"), values.get("mlp_layer_types")
    full = listed_layers(nested, "full_attn_layers")  # counted from 1
    if mixers is None and full is not None:
        mixers = [FULL if i + 1 in full else LINEAR for i in range(count)]
    if mixers is None:
        mixers = [FULL if i and i % 4 == 0 else LINEAR for i in range(count)]
    if forwards is None:
        first = number(values, "first_k_dense_replace", 1)
        forwards = [_DENSE if i < first else _SPARSE for i in range(count)]
    for name, found, known in (
        ("layer_types", mixers, (LINEAR, FULL)),
        ("mlp_layer_types", forwards, (_DENSE, _SPARSE)),
    ):
        fits = isinstance(found, list) and len(found) == count
        if not fits or not all(kind in known for kind in found):
            raise ValueError(
                f"{name} must be a list of {count} names, each {known[0]!r} or {known[1]!r}, "
                f"received {shorten(found)}."
            )
    return list(zip(mixers, forwards, strict=True))


def _delta(values: Values) -> GatedDelta:
    given = {
        name: _nested(values).get(older, values.get(name, default))
        for name, (older, default) in _DELTA.items()
    }
    heads, width, size = (number(given, name, None) for name in _DELTA)
    return GatedDelta(
        num_key_heads=heads,
        num_value_heads=heads,
        key_dim=width,
        value_dim=width,
        convolution_size=size,
        activation=LLAMA.activation("hidden_act", values.get("hidden_act", "silu")),
        decay="feature",
        rank=width,
        gate_activation="sigmoid",
        chunk_size=16,
    )


def _latent(values: Values) -> LatentAttention:
    sizes = {ours: number(values, name, default) for name, (ours, default) in _LATENT.items()}
    rank = values.get("q_lora_rank")
    return LatentAttention(
        **sizes,
        q_lora_rank=None if rank is None else number(values, "q_lora_rank", rank),
        bias=values.get("attention_bias", False),
        dropout=values.get("attention_dropout", 0.0),
    )


def _read(values: Values) -> dict[str, Any]:
    kinds = _kinds(values)
    made = {LINEAR: _delta, FULL: _latent}
    width, shared = (
        number(values, name, default)
        for name, default in (("moe_intermediate_size", 1024), ("num_shared_experts", 1))
    )
    found = number(values, "num_experts", 256)
    own = {
        (mixer, forward): {
            "mixer": made[mixer](values),
            "num_experts": found if forward == _SPARSE else 0,
        }
        for forward in (_SPARSE, _DENSE)
        for mixer in dict.fromkeys(kind for kind, _ in kinds)
    }
    groups = {"n_group": values.get("num_expert_group", 1)}
    return {
        "expert_dim": width,
        "shared_expert_dim": width * shared,
        **_ROUTER.read({**values, **groups}),
        **cycle_of_layers(kinds, own),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    blocks = list(config.last_side.blocks)
    theirs: dict[str, Any] = {
        "layer_types": [LINEAR if isinstance(b.mixer, GatedDelta) else FULL for b in blocks],
        "mlp_layer_types": [
            _SPARSE if isinstance(b.feed_forward, Experts) else _DENSE for b in blocks
        ],
    }
    experts = next((b.feed_forward for b in blocks if isinstance(b.feed_forward, Experts)), None)
    if experts is not None:
        written = _ROUTER.write(config)
        theirs |= {
            "num_experts": experts.number,
            "moe_intermediate_size": experts.dim,
            "num_shared_experts": experts.shared_dim // experts.dim,
            "num_expert_group": written.pop("n_group"),
            **written,
        }
    delta, latent = delta_of(config), latent_of(config)
    if delta is not None:
        theirs |= {
            "linear_num_heads": delta.num_key_heads,
            "linear_head_dim": delta.key_dim,
            "linear_conv_kernel_dim": delta.convolution_size,
        }
    if latent is not None:
        theirs |= {name: getattr(latent, ours) for name, (ours, _) in _LATENT.items()}
        theirs |= {
            "num_key_value_heads": latent.num_heads,
            "q_lora_rank": latent.q_lora_rank,
            "attention_bias": latent.bias,
            "attention_dropout": latent.dropout,
        }
    return theirs


class _OfHeads(WeightLine):
    """The decays of heads, which the published model stores with four axes."""

    def shape(self, ours):
        return (1, 1, *ours, 1)

    def split(self, array):
        return array.reshape(-1)

    def join(self, arrays):
        return arrays[0].reshape(1, 1, -1, 1)


_ATTENTION = f"{THEIRS}self_attn."
_SPARSE_NAMES = {
    "feed_forward/router": "block_sparse_moe.gate",
    "feed_forward/expert_gate": "block_sparse_moe.experts.*.w1",
    "feed_forward/expert_intermediate": "block_sparse_moe.experts.*.w3",
    "feed_forward/expert_output": "block_sparse_moe.experts.*.w2",
}


def _renamed(line: WeightLine) -> WeightLine:
    """Return a line of DeepSeek's by the name of the layer of experts here."""
    return dataclasses.replace(line, theirs=_by_experts(line.theirs))


def _by_experts(name: str) -> str:
    return name.replace(".mlp.", ".block_sparse_moe.")


def _dense(line: WeightLine) -> WeightLine:
    """Return a line of DeepSeek's; Transformers writes dense layers by the name of experts too."""
    also = (_by_experts(line.theirs),) if ".mlp." in line.theirs else ()
    return dataclasses.replace(line, also=(*line.also, *also))


_DELTA_LINES = (
    *layers(
        {
            "query": "q_proj",
            "key": "k_proj",
            "value": "v_proj",
            "gate_down": "g_a_proj",
            "gate": "g_b_proj",
            "step_down": "f_a_proj",
            "step": "f_b_proj",
            "strength": "b_proj",
            "output": "o_proj",
        },
        MIXER,
        _ATTENTION,
    ),
    *(
        WeightLine(
            f"{MIXER}{name}_convolution/kernel",
            f"{_ATTENTION}{name[0]}_conv1d.weight",
            depthwise=True,
        )
        for name in ("query", "key", "value")
    ),
    _OfHeads(f"{MIXER}decay", f"{_ATTENTION}A_log"),
    WeightLine(f"{MIXER}step_bias", f"{_ATTENTION}dt_bias"),
    WeightLine(f"{MIXER}norm/scale", f"{_ATTENTION}o_norm.weight"),
)
_OF_EXPERTS = ("expert_", "router", "shared/", "correction_bias")

KIMI_LINEAR = dataclasses.replace(
    DEEPSEEK_V3,
    model_type="kimi_linear",
    architecture="KimiLinearModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 163840),
        "hidden_size": ConfigField("hidden_dim", 2304),
        "num_hidden_layers": ConfigField("num_layers", 27),
        "intermediate_size": ConfigField("intermediate_dim", 9216),
        "hidden_act": ConfigField("activation", "silu"),
        "model_max_length": ConfigField("max_sequence_length", 1048576),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "tie_word_embeddings": ConfigField("tie_embeddings", False),
        "num_experts_per_token": ConfigField("experts_per_token", 8),
        "moe_renormalize": ConfigField("normalize_expert_weights", True),
    },
    conversions=(Conversion(_read, _write), NO_PADDING),
    required={},
    weights=(
        *(
            _dense(line)
            for line in DEEPSEEK_V3.weights
            if not any(part in line.ours for part in _OF_EXPERTS)
        ),
        *layers(_SPARSE_NAMES, OURS, THEIRS),
        *map(_renamed, (*SHARED, CORRECTION)),
        *layers({"mixer_norm": "input_layernorm"}, OURS, THEIRS),
        *_DELTA_LINES,
    ),
    heads={"CausalLM": DEEPSEEK_V3.heads["CausalLM"]},
    names=LLAMA.names,
)
