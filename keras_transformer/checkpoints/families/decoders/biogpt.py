"""BioGPT: Luo et al. 2022, https://arxiv.org/abs/2210.10341."""

from keras_transformer.checkpoints.families.base.family import ConfigField, Family
from keras_transformer.checkpoints.families.base.shared import decoder_heads, unread
from keras_transformer.checkpoints.weights.tables import Names, attention, layers, output_matrix

_ONCE = {
    "token_embedding": "embed_tokens",
    "decoder/position_embedding": "embed_positions",
    "decoder/final_norm": "layer_norm",
}
_LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "out"),
    "self_attention_norm": "self_attn_layer_norm",
    "feed_forward/intermediate": "fc1",
    "feed_forward/output": "fc2",
    "feed_forward_norm": "final_layer_norm",
}

BIOGPT = Family(
    model_type="biogpt",
    architecture="BioGptModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 42384),
        "hidden_size": ConfigField("hidden_dim", 1024),
        "num_hidden_layers": ConfigField("num_layers", 24),
        "num_attention_heads": ConfigField("num_heads", 16),
        "intermediate_size": ConfigField("intermediate_dim", 4096),
        "hidden_act": ConfigField("activation", "gelu"),
        "hidden_dropout_prob": ConfigField("dropout", 0.1),
        "attention_probs_dropout_prob": ConfigField("attention_dropout", 0.1),
        "max_position_embeddings": ConfigField("max_sequence_length", 1024),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "scale_embedding": ConfigField("scale_embedding", True),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={
        "kind": "decoder",
        "position": "learned",
        "position_offset": 2,
        "normalize_first": True,
        "normalization_epsilon": 1e-5,
    },
    weights=(
        *layers(_ONCE),
        *layers(_LAYER, "decoder/layer_{i}/", "layers.{i}."),
        output_matrix("output_projection.weight"),
    ),
    heads=decoder_heads(),
    names=Names(prefixes=("biogpt.",), ignored=unread("classifier")),
)
