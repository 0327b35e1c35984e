"""Phi3: Abdin et al. 2024, https://arxiv.org/abs/2404.14219.

A Llama whose queries, keys and values are one matrix, as are the two branches of its gate. Phi 4
has the same type: Abdin et al. 2024, https://arxiv.org/abs/2412.08905.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.base.shared import NO_PADDING, rotary
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import fused

_OURS = "decoder/layer_{i}/"
_QKV = [f"{_OURS}self_attention/{name}" for name in ("query", "key", "value")]
_BRANCHES = [f"{_OURS}feed_forward/{name}" for name in ("gate", "intermediate")]
_HEADS = ("num_heads", "num_key_value_heads", "num_key_value_heads")
_FUSED = (
    *fused(_QKV, "layers.{i}.self_attn.qkv_proj", sizes=_HEADS),
    *fused(_BRANCHES, "layers.{i}.mlp.gate_up_proj"),
)
_PLACES = {line.ours for line in _FUSED}

PHI3 = dataclasses.replace(
    LLAMA,
    model_type="phi3",
    architecture="Phi3Model",
    fields={n: f for n, f in LLAMA.fields.items() if n not in ("mlp_bias", "attention_bias")}
    | {
        "vocab_size": ConfigField("vocabulary_size", 32064),
        "hidden_size": ConfigField("hidden_dim", 3072),
        "intermediate_size": ConfigField("intermediate_dim", 8192),
        "resid_pdrop": ConfigField("dropout", 0.0),
        "max_position_embeddings": ConfigField("max_sequence_length", 4096),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "sliding_window": ConfigField("window", None),
    },
    constants={**LLAMA.constants, "use_bias": False},
    conversions=(
        rotary(default_head_dim=96, scalings=("longrope",), longrope=("su", "yarn")),
        NO_PADDING,
    ),
    weights=(*(line for line in LLAMA.weights if line.ours not in _PLACES), *_FUSED),
)
