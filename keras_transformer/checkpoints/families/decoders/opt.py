"""OPT: Zhang et al. 2022, https://arxiv.org/abs/2205.01068.

Only OPT-350m has post-norm, and token embeddings narrower than its states.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import decoder_heads, flag, unread
from keras_transformer.checkpoints.weights.tables import Names, layers, output_matrix
from keras_transformer.config import TransformerConfig

_ONCE = {
    "token_embedding": "embed_tokens",
    "decoder/position_embedding": "embed_positions",
    "decoder/final_norm": "final_layer_norm",
    "decoder/token_projection": "project_in",
    "state_projection": "project_out",
}
_LAYER = {
    "self_attention/query": "self_attn.q_proj",
    "self_attention/key": "self_attn.k_proj",
    "self_attention/value": "self_attn.v_proj",
    "self_attention/output": "self_attn.out_proj",
    "self_attention_norm": "self_attn_layer_norm",
    "feed_forward/intermediate": "fc1",
    "feed_forward/output": "fc2",
    "feed_forward_norm": "final_layer_norm",
}


# A config value of checkpoints fine-tuned with Transformers before release 4.20.1.
_REMOVED = "_remove_final_layer_norm"


def _read_width(values: Values) -> dict[str, Any]:
    width, embedded = values.get("hidden_size", 768), values.get("word_embed_proj_dim")
    first = values.get("do_layer_norm_before") is not False
    ours = {"final_normalization": first and not flag(values, _REMOVED)}
    if embedded in (None, width):
        return ours
    return ours | {"embedding_dim": embedded, "token_projection": True}


def _write_width(config: TransformerConfig) -> dict[str, Any]:
    removed = config.normalize_first and not config.final_normalization
    return {"word_embed_proj_dim": config.embedding_dim, _REMOVED: removed}


OPT = Family(
    model_type="opt",
    architecture="OPTModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 50272),
        "hidden_size": ConfigField("hidden_dim", 768),
        "num_hidden_layers": ConfigField("num_layers", 12),
        "num_attention_heads": ConfigField("num_heads", 12),
        "ffn_dim": ConfigField("intermediate_dim", 3072),
        "activation_function": ConfigField("activation", "relu"),
        "do_layer_norm_before": ConfigField("normalize_first", True),
        "enable_bias": ConfigField("use_bias", True),
        "dropout": ConfigField("dropout", 0.1),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "max_position_embeddings": ConfigField("max_sequence_length", 2048),
        "init_std": ConfigField("initializer_range", 0.02),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={
        "kind": "decoder",
        "position": "learned",
        "position_offset": 2,
        "normalization_epsilon": 1e-5,
    },
    conversions=(Conversion(_read_width, _write_width),),
    required={"layer_norm_elementwise_affine": True},
    weights=(
        *layers(_ONCE, theirs="decoder."),
        *layers(_LAYER, "decoder/layer_{i}/", "decoder.layers.{i}."),
        output_matrix("lm_head.weight"),
    ),
    heads=decoder_heads(),
    names=Names(prefixes=("model.",), ignored=unread("qa_outputs")),
)
