"""GLM: GLM Team 2024, https://arxiv.org/abs/2406.12793, and its successor.

GLM4: Z.ai 2025, https://huggingface.co/zai-org/GLM-4-9B-0414.

A Llama with rotary positions of neighbouring features on a half of each head, biases of queries,
keys and values, and one matrix for both branches of its gate. GLM-4-0414 also normalizes the output
of each sub-layer.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.base.shared import NO_PADDING, rotary
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import fused, layers

_OURS = "decoder/layer_{i}/"
_BRANCHES = [f"{_OURS}feed_forward/{name}" for name in ("gate", "intermediate")]
_FUSED = fused(_BRANCHES, "layers.{i}.mlp.gate_up_proj")
_PLACES = {line.ours for line in _FUSED}
_OUTPUT_NORMS = {
    "self_attention_output_norm": "post_self_attn_layernorm",
    "feed_forward_output_norm": "post_mlp_layernorm",
}

GLM = dataclasses.replace(
    LLAMA,
    model_type="glm",
    architecture="GlmModel",
    fields={name: field for name, field in LLAMA.fields.items() if name != "mlp_bias"}
    | {
        "vocab_size": ConfigField("vocabulary_size", 151552),
        "num_hidden_layers": ConfigField("num_layers", 40),
        "num_key_value_heads": ConfigField("num_key_value_heads", 2),
        "head_dim": ConfigField("head_dim", 128),
        "intermediate_size": ConfigField("intermediate_dim", 13696),
        "max_position_embeddings": ConfigField("max_sequence_length", 131072),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1.5625e-7),
        "attention_bias": ConfigField("attention_bias", True),
    },
    constants={
        **LLAMA.constants,
        "use_bias": False,
        "attention_output_bias": False,
        "rotary_interleaved": True,
    },
    conversions=(rotary(default_share=0.5, default_head_dim=128), NO_PADDING),
    weights=(*(line for line in LLAMA.weights if line.ours not in _PLACES), *_FUSED),
)

GLM4 = dataclasses.replace(
    GLM,
    model_type="glm4",
    architecture="Glm4Model",
    constants={**GLM.constants, "normalize_output": True},
    weights=(*GLM.weights, *layers(_OUTPUT_NORMS, _OURS, "layers.{i}.")),
)
