"""Phi: Gunasekar et al. 2023, https://arxiv.org/abs/2306.11644; Phi-1.5 and Phi-2 are alike.

Attention and feed-forward side by side, behind one norm; rotary positions on a part of each head.
"""

from keras_transformer.checkpoints.families.family import Family, Field
from keras_transformer.checkpoints.families.shared import decoder_heads, rotary
from keras_transformer.checkpoints.weights import Names, Weight, attention, layers, output_matrix

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
        "vocab_size": Field("vocabulary_size", 51200),
        "hidden_size": Field("hidden_dim", 2048),
        "num_hidden_layers": Field("num_layers", 24),
        "num_attention_heads": Field("num_heads", 32),
        "num_key_value_heads": Field("num_key_value_heads", None),
        "intermediate_size": Field("intermediate_dim", 8192),
        "hidden_act": Field("activation", "gelu_new"),
        "resid_pdrop": Field("dropout", 0.0),
        "attention_dropout": Field("attention_dropout", 0.0),
        "max_position_embeddings": Field("max_sequence_length", 2048),
        "initializer_range": Field("initializer_range", 0.02),
        "layer_norm_eps": Field("normalization_epsilon", 1e-5),
        "qk_layernorm": Field("query_key_norm", False),
        "tie_word_embeddings": Field("tie_embeddings", False),
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
        Weight("output_bias/bias", "lm_head.bias", outside=True),
    ),
    heads=decoder_heads(),
    names=Names(prefixes=("model.",), ignored=("score.bias",)),
    output_bias="lm_head.bias",
)
