"""Persimmon: Elsen et al. 2023, https://www.adept.ai/blog/persimmon-8b.

A GPT-NeoX with sub-layers in series, squared ReLU, and norms of queries and keys.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.base.shared import decoder_heads, rotary
from keras_transformer.checkpoints.families.decoders.gpt_neox import GPT_NEOX
from keras_transformer.checkpoints.weights.tables import Names, fused, layers, output_matrix

_OTHER = ("use_parallel_residual", "attention_bias")
_QKV = [f"decoder/layer_{{i}}/self_attention/{name}" for name in ("query", "key", "value")]
_LAYER = {
    "self_attention/output": "self_attn.dense",
    "self_attention/query_norm": "self_attn.q_layernorm",
    "self_attention/key_norm": "self_attn.k_layernorm",
    "self_attention_norm": "input_layernorm",
    "feed_forward/intermediate": "mlp.dense_h_to_4h",
    "feed_forward/output": "mlp.dense_4h_to_h",
    "feed_forward_norm": "post_attention_layernorm",
}

PERSIMMON = dataclasses.replace(
    GPT_NEOX,
    model_type="persimmon",
    architecture="PersimmonModel",
    fields={name: field for name, field in GPT_NEOX.fields.items() if name not in _OTHER}
    | {
        "vocab_size": ConfigField("vocabulary_size", 262144),
        "hidden_size": ConfigField("hidden_dim", 4096),
        "num_hidden_layers": ConfigField("num_layers", 36),
        "intermediate_size": ConfigField("intermediate_dim", 16384),
        "hidden_act": ConfigField("activation", "relu2"),
        "max_position_embeddings": ConfigField("max_sequence_length", 16384),
        "qk_layernorm": ConfigField("query_key_norm", True),
    },
    conversions=(rotary(default_share=0.5, default_head_dim=64),),
    weights=(
        *layers({"token_embedding": "embed_tokens", "decoder/final_norm": "final_layernorm"}),
        output_matrix("lm_head.weight"),
        *fused(_QKV, "layers.{i}.self_attn.query_key_value", per_head=True),
        *layers(_LAYER, "decoder/layer_{i}/", "layers.{i}."),
    ),
    heads=decoder_heads(tokens="score"),
    names=Names(prefixes=("model.",)),
)
