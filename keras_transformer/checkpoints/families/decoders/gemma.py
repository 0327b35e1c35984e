"""Gemma: Mesnard et al. 2024, https://arxiv.org/abs/2403.08295, and successors.

Gemma2: Riviere et al. 2024, https://arxiv.org/abs/2408.00118;
Gemma3: Kamath et al. 2025, https://arxiv.org/abs/2503.19786.

A Llama with scaled embeddings, gelu gates and norms that multiply by their weight plus one. Gemma 2
also normalizes the output of each sub-layer, caps scores and logits and has a window in every
second layer. Gemma 3 has norms of queries and keys instead of the caps, and its layers with a
window have a rotary base of their own. EmbeddingGemma is a Gemma 3 with bidirectional attention.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ACTIVATIONS,
    ConfigField,
    Conversion,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    FULL,
    SLIDING,
    cycle_of_layers,
    decoder_heads,
    flag,
    layer_kinds,
    number,
    rotary,
    rotary_of_kinds,
    windows,
    write_kinds,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import layers
from keras_transformer.config import TransformerConfig

_FIELDS = {name: field for name, field in LLAMA.fields.items() if name != "mlp_bias"} | {
    "vocab_size": ConfigField("vocabulary_size", 256000),
    "hidden_size": ConfigField("hidden_dim", 3072),
    "num_hidden_layers": ConfigField("num_layers", 28),
    "num_attention_heads": ConfigField("num_heads", 16),
    "num_key_value_heads": ConfigField("num_key_value_heads", 16),
    "head_dim": ConfigField("head_dim", 256),
    "intermediate_size": ConfigField("intermediate_dim", 24576),
    "hidden_act": ConfigField("activation", "gelu_pytorch_tanh"),
    "max_position_embeddings": ConfigField("max_sequence_length", 8192),
    "tie_word_embeddings": ConfigField("tie_embeddings", True),
}
_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh"} | ACTIVATIONS  # the first name is the one written

GEMMA = dataclasses.replace(
    LLAMA,
    model_type="gemma",
    architecture="GemmaModel",
    fields=_FIELDS,
    # The published configs say "gelu" but mean its tanh form.
    activations=_ACTIVATIONS | {"gelu": "gelu_tanh"},
    constants={
        **LLAMA.constants,
        "use_bias": False,
        "normalization": "rms_norm_plus_one",
        "scale_embedding": True,
    },
    required={"use_bidirectional_attention": False},
)


def _read_scale(values: Values) -> dict[str, Any]:
    scalar = number(values, "query_pre_attn_scalar", 256, float)
    if not scalar > 0:
        raise ValueError(f"query_pre_attn_scalar must be positive, received {scalar!r}.")
    own = scalar != number(values, "head_dim", 256)
    return {"score_scale": scalar**-0.5 if own else None}


def _write_scale(config: TransformerConfig) -> dict[str, Any]:
    scale = config.score_scale
    return {"query_pre_attn_scalar": config.head_dim if scale is None else round(scale**-2)}


_SCALE = Conversion(_read_scale, _write_scale)
_OTHER_NORMS = {
    "self_attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
_FIELDS2 = {name: field for name, field in _FIELDS.items() if name != "hidden_act"} | {
    "hidden_size": ConfigField("hidden_dim", 2304),
    "num_hidden_layers": ConfigField("num_layers", 26),
    "num_attention_heads": ConfigField("num_heads", 8),
    "num_key_value_heads": ConfigField("num_key_value_heads", 4),
    "intermediate_size": ConfigField("intermediate_dim", 9216),
    "hidden_activation": ConfigField("activation", "gelu_pytorch_tanh"),
    "final_logit_softcapping": ConfigField("logit_soft_cap", 30.0),
    "attn_logit_softcapping": ConfigField("attention_soft_cap", 50.0),
}

GEMMA2 = dataclasses.replace(
    GEMMA,
    model_type="gemma2",
    architecture="Gemma2Model",
    fields=_FIELDS2,
    activations=_ACTIVATIONS,
    constants={**GEMMA.constants, "normalize_output": True},
    conversions=(rotary(), windows(26, 4096, lambda values, i: i % 2 == 0), _SCALE),
    weights=(
        *(line for line in LLAMA.weights if "feed_forward_norm" not in line.ours),
        *layers(_OTHER_NORMS, "decoder/layer_{i}/", "layers.{i}."),
    ),
)


def _read_layers(values: Values) -> dict[str, Any]:
    each = number(values, "sliding_window_pattern", 6)
    kinds = layer_kinds(values, 26, lambda i: (i + 1) % max(each, 1) != 0)
    local = {"rope_theta": values.get("rope_local_base_freq", 1e4), "rope_scaling": None}
    older = {FULL: {"rope_theta": 1e6, **values}, SLIDING: {**values, **local}}
    own = rotary_of_kinds(values, older)
    window = values.get("sliding_window", 4096)
    window = None if window is None else number(values, "sliding_window", 4096)
    both_sides = flag(values, "use_bidirectional_attention")
    if both_sides and window is not None:  # half of it on each side, plus the token itself
        window = window // 2 + 1
    own[FULL]["window"], own[SLIDING]["window"] = None, window
    return cycle_of_layers(kinds, own) | ({"kind": "encoder"} if both_sides else {})


def _write_layers(config: TransformerConfig) -> dict[str, Any]:
    theirs = write_kinds(config)
    if config.kind == "decoder":
        return {**theirs, "use_bidirectional_attention": False}
    window = theirs["sliding_window"] or 2049
    return {**theirs, "use_bidirectional_attention": True, "sliding_window": 2 * (window - 1)}


# Only lines for Gemma 3's normalization: the condition `when` is then free for the kind.
GEMMA3_LINES = [
    x for x in GEMMA2.weights if x.when in (None, ("normalization", "rms_norm_plus_one"))
]


GEMMA3 = dataclasses.replace(
    GEMMA2,
    model_type="gemma3_text",
    architecture="Gemma3TextModel",
    fields={name: f for name, f in _FIELDS2.items() if name != "attn_logit_softcapping"}
    | {
        "vocab_size": ConfigField("vocabulary_size", 262208),
        "max_position_embeddings": ConfigField("max_sequence_length", 131072),
        "final_logit_softcapping": ConfigField("logit_soft_cap", None),
    },
    constants={**GEMMA2.constants, "query_key_norm": True},
    conversions=(Conversion(_read_layers, _write_layers), _SCALE),
    required={"attn_logit_softcapping": None},
    weights=tuple(
        dataclasses.replace(line, ours=line.ours.replace("decoder", kind), when=("kind", kind))
        for kind in ("decoder", "encoder")
        for line in GEMMA3_LINES
    ),
    heads=decoder_heads("Gemma3ForCausalLM"),
)
