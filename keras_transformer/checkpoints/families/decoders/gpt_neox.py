"""GPT-NeoX: Black et al. 2022, https://arxiv.org/abs/2204.06745; Pythia: Biderman et al. 2023.

Attention and feed-forward in parallel, and rotary positions on a part of each head.
"""

from keras_transformer.checkpoints.families.base.family import ConfigField, Family
from keras_transformer.checkpoints.families.base.shared import decoder_heads, rotary
from keras_transformer.checkpoints.weights.tables import Names, fused, layers, output_matrix

_QKV = [f"decoder/layer_{{i}}/self_attention/{name}" for name in ("query", "key", "value")]
_LAYER = {
    "self_attention/output": "attention.dense",
    "self_attention_norm": "input_layernorm",
    "feed_forward/intermediate": "mlp.dense_h_to_4h",
    "feed_forward/output": "mlp.dense_4h_to_h",
    "feed_forward_norm": "post_attention_layernorm",
}

GPT_NEOX = Family(
    model_type="gpt_neox",
    architecture="GPTNeoXModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 50432),
        "hidden_size": ConfigField("hidden_dim", 6144),
        "num_hidden_layers": ConfigField("num_layers", 44),
        "num_attention_heads": ConfigField("num_heads", 64),
        "intermediate_size": ConfigField("intermediate_dim", 24576),
        "hidden_act": ConfigField("activation", "gelu"),
        "hidden_dropout": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "max_position_embeddings": ConfigField("max_sequence_length", 2048),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "use_parallel_residual": ConfigField("parallel_residual", True),
        "attention_bias": ConfigField("attention_bias", True),
        "tie_word_embeddings": ConfigField("tie_embeddings", False),
    },
    constants={"kind": "decoder", "position": "rotary", "normalize_first": True},
    conversions=(rotary(default_share=0.25, default_head_dim=96),),
    weights=(
        *layers({"token_embedding": "embed_in", "decoder/final_norm": "final_layer_norm"}),
        output_matrix("embed_out.weight", "lm_head.weight"),
        *fused(_QKV, "layers.{i}.attention.query_key_value", per_head=True),
        *layers(_LAYER, "decoder/layer_{i}/", "layers.{i}."),
    ),
    heads=decoder_heads(tokens="classifier"),
    names=Names(prefixes=("gpt_neox.",)),
)
