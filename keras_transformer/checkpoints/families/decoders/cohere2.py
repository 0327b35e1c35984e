"""Cohere2: Cohere 2025, https://arxiv.org/abs/2504.00698.

Attention and feed-forward in parallel, after one norm without bias. Three of four layers have a
window and rotary positions of neighbouring features, the fourth neither. The logits are scaled.
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
    SLIDING,
    cycle_of_layers,
    layer_kinds,
    number,
    rotary,
    write_windows,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA

_OTHER = ("head_dim", "mlp_bias", "rms_norm_eps")


def _read_layers(values: Values) -> dict[str, Any]:
    every = number(values, "sliding_window_pattern", 4)
    kinds = layer_kinds(values, 40, lambda i: (i + 1) % max(every, 1) != 0)
    plain = {"window": None, "position": "none"}
    if values.get("sliding_window", 4096) is None:
        return plain
    window = number(values, "sliding_window", 4096)
    return cycle_of_layers(kinds, {SLIDING: {"window": window, "position": "rotary"}, FULL: plain})


COHERE2 = dataclasses.replace(
    LLAMA,
    model_type="cohere2",
    architecture="Cohere2Model",
    fields={name: field for name, field in LLAMA.fields.items() if name not in _OTHER}
    | {
        "vocab_size": ConfigField("vocabulary_size", 256000),
        "hidden_size": ConfigField("hidden_dim", 8192),
        "num_hidden_layers": ConfigField("num_layers", 40),
        "num_attention_heads": ConfigField("num_heads", 64),
        "intermediate_size": ConfigField("intermediate_dim", 22528),
        "max_position_embeddings": ConfigField("max_sequence_length", 8192),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "logit_scale": ConfigField("logit_scale", 0.0625),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={
        **LLAMA.constants,
        "use_bias": False,
        "normalization": "layer_norm_no_bias",
        "parallel_residual": True,
        "share_normalization": True,
        "rotary_interleaved": True,
    },
    conversions=(rotary(), Conversion(_read_layers, write_windows)),
    heads={"CausalLM": PublishedHead()},
)
