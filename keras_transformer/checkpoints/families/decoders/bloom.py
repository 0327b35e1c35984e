"""BLOOM: Le Scao et al. 2022, https://arxiv.org/abs/2211.05100.

A GPT with ALiBi, and a normalization of the embeddings.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import decoder_heads, number
from keras_transformer.checkpoints.weights.tables import Names, fused, layers, output_matrix
from keras_transformer.config import TransformerConfig

_ONCE = {
    "token_embedding": "word_embeddings",
    "decoder/embedding_norm": "word_embeddings_layernorm",
    "decoder/final_norm": "ln_f",
}
_QKV = [f"decoder/layer_{{i}}/self_attention/{name}" for name in ("query", "key", "value")]
_LAYER = {
    "self_attention/output": "self_attention.dense",
    "self_attention_norm": "input_layernorm",
    "feed_forward/intermediate": "mlp.dense_h_to_4h",
    "feed_forward/output": "mlp.dense_4h_to_h",
    "feed_forward_norm": "post_attention_layernorm",
}
# Each size, with the name that most published configs use for it.
_SIZES = {
    "hidden_size": ("hidden_dim", "n_embed", 64),
    "n_layer": ("num_layers", "num_hidden_layers", 2),
    "n_head": ("num_heads", "num_attention_heads", 8),
}


def _read_sizes(values: Values) -> dict[str, Any]:
    ours = {
        ours: number(values, other if other in values else name, default)
        for name, (ours, other, default) in _SIZES.items()
    }
    return ours | {"intermediate_dim": 4 * ours["hidden_dim"]}


def _write_sizes(config: TransformerConfig) -> dict[str, Any]:
    return {name: getattr(config, ours) for name, (ours, *_) in _SIZES.items()}


BLOOM = Family(
    model_type="bloom",
    architecture="BloomModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 250880),
        "seq_length": ConfigField("max_sequence_length", 2048),
        "layer_norm_epsilon": ConfigField("normalization_epsilon", 1e-5),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "hidden_dropout": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={
        "kind": "decoder",
        "activation": "gelu_tanh",
        "normalize_first": True,
        "embedding_normalization": True,
        "position": "alibi",
    },
    conversions=(Conversion(_read_sizes, _write_sizes),),
    required={"apply_residual_connection_post_layernorm": False},
    weights=(
        *layers(_ONCE),
        output_matrix("lm_head.weight"),
        *fused(_QKV, "h.{i}.self_attention.query_key_value", per_head=True),
        *layers(_LAYER, "decoder/layer_{i}/", "h.{i}."),
    ),
    heads=decoder_heads(),
    names=Names(prefixes=("transformer.",)),
)
