"""Llama: Touvron et al. 2023, https://arxiv.org/abs/2302.13971, and similar models.

Llama 2 and 3, SmolLM, TinyLlama ("llama"), Mistral, Qwen 2 and Qwen 3: rotary positions,
root-mean-square pre-norm, gated feed-forward, grouped key/value heads. They differ in biases, in
the window and in the norms of queries and keys.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField, Family
from keras_transformer.checkpoints.families.base.shared import (
    SWITCHED_WINDOW,
    decoder_heads,
    rotary,
)
from keras_transformer.checkpoints.weights.tables import Names, attention, layers, output_matrix

_LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "o"),
    "self_attention/query_norm": "self_attn.q_norm",
    "self_attention/key_norm": "self_attn.k_norm",
    "self_attention_norm": "input_layernorm",
    "feed_forward/gate": "mlp.gate_proj",
    "feed_forward/intermediate": "mlp.up_proj",
    "feed_forward/output": "mlp.down_proj",
    "feed_forward_norm": "post_attention_layernorm",
}
_FIELDS = {
    "vocab_size": ConfigField("vocabulary_size", 32000),
    "hidden_size": ConfigField("hidden_dim", 4096),
    "num_hidden_layers": ConfigField("num_layers", 32),
    "num_attention_heads": ConfigField("num_heads", 32),
    "num_key_value_heads": ConfigField("num_key_value_heads", None),
    "head_dim": ConfigField("head_dim", None),
    "intermediate_size": ConfigField("intermediate_dim", 11008),
    "hidden_act": ConfigField("activation", "silu"),
    "attention_dropout": ConfigField("attention_dropout", 0.0),
    "max_position_embeddings": ConfigField("max_sequence_length", 2048),
    "initializer_range": ConfigField("initializer_range", 0.02),
    "rms_norm_eps": ConfigField("normalization_epsilon", 1e-6),
    "tie_word_embeddings": ConfigField("tie_embeddings", False),
}
_CONSTANTS = {
    "kind": "decoder",
    "position": "rotary",
    "normalization": "rms_norm",
    "normalize_first": True,
    "gated": True,
}

LLAMA = Family(
    model_type="llama",
    architecture="LlamaModel",
    fields={
        **_FIELDS,
        "attention_bias": ConfigField("attention_bias", False),
        "mlp_bias": ConfigField("use_bias", False),
    },
    constants=_CONSTANTS,
    conversions=(rotary(),),
    weights=(
        *layers({"token_embedding": "embed_tokens", "decoder/final_norm": "norm"}),
        output_matrix("lm_head.weight"),
        *layers(_LAYER, "decoder/layer_{i}/", "layers.{i}."),
    ),
    heads=decoder_heads(tokens="score"),
    names=Names(prefixes=("model.",)),
)

MISTRAL = dataclasses.replace(
    LLAMA,
    model_type="mistral",
    architecture="MistralModel",
    fields={
        **_FIELDS,
        "num_key_value_heads": ConfigField("num_key_value_heads", 8),
        "intermediate_size": ConfigField("intermediate_dim", 14336),
        "max_position_embeddings": ConfigField("max_sequence_length", 131072),
        "sliding_window": ConfigField("window", 4096),
    },
    constants={**_CONSTANTS, "use_bias": False},
)

QWEN2 = dataclasses.replace(
    LLAMA,
    model_type="qwen2",
    architecture="Qwen2Model",
    fields={
        **_FIELDS,
        "vocab_size": ConfigField("vocabulary_size", 151936),
        "num_key_value_heads": ConfigField("num_key_value_heads", 32),
        "intermediate_size": ConfigField("intermediate_dim", 22016),
        "max_position_embeddings": ConfigField("max_sequence_length", 32768),
    },
    constants={
        **_CONSTANTS,
        "use_bias": False,
        "attention_bias": True,
        "attention_output_bias": False,
    },
    conversions=(rotary(), SWITCHED_WINDOW),
)

QWEN3 = dataclasses.replace(
    QWEN2,
    model_type="qwen3",
    architecture="Qwen3Model",
    fields={
        **QWEN2.fields,
        "head_dim": ConfigField("head_dim", 128),
        "attention_bias": ConfigField("attention_bias", False),
    },
    constants={**_CONSTANTS, "use_bias": False, "query_key_norm": True},
)
