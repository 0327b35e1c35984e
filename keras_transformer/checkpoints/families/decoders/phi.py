"""Phi: Gunasekar et al. 2023, https://arxiv.org/abs/2306.11644; also Phi-1.5 and Phi-2.

Attention and feed-forward in parallel, after one norm; rotary positions on a part of each head.
"""

from keras_transformer.checkpoints.families.base.family import ConfigField, Family
from keras_transformer.checkpoints.families.base.shared import decoder_heads, rotary
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    layers,
    output_matrix,
)

_LAYER = {
    **attention("self_attn.{}", "q_proj", "k_proj", "v_proj", "dense"),
    "self_attention/query_norm": "self_attn.q_layernorm",
    "self_attention/key_norm": "self_attn.k_layernorm",
    "self_attention_norm": "input_layernorm",
    "feed_forward/intermediate": "mlp.fc1",
    "feed_forward/output": "mlp.fc2",
}

PHI = Family(
    model_type="phi",
    architecture="PhiModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 51200),
        "hidden_size": ConfigField("hidden_dim", 2048),
        "num_hidden_layers": ConfigField("num_layers", 24),
        "num_attention_heads": ConfigField("num_heads", 32),
        "num_key_value_heads": ConfigField("num_key_value_heads", None),
        "intermediate_size": ConfigField("intermediate_dim", 8192),
        "hidden_act": ConfigField("activation", "gelu_new"),
        "resid_pdrop": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "max_position_embeddings": ConfigField("max_sequence_length", 2048),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "qk_layernorm": ConfigField("query_key_norm", False),
        "tie_word_embeddings": ConfigField("tie_embeddings", False),
    },
    constants={
        "kind": "decoder",
        "position": "rotary",
        "normalize_first": True,
        "parallel_residual": True,
        "share_normalization": True,
        "output_bias": True,
    },
    conversions=(rotary(default_share=0.5, default_head_dim=64),),
    weights=(
        *layers({"token_embedding": "embed_tokens", "decoder/final_norm": "final_layernorm"}),
        *layers(_LAYER, "decoder/layer_{i}/", "layers.{i}."),
        output_matrix("lm_head.weight"),
        WeightLine("output_bias/bias", "lm_head.bias", outside=True),
    ),
    heads=decoder_heads(),
    names=Names(prefixes=("model.",), ignored=("score.bias",)),
    output_bias="lm_head.bias",
)
