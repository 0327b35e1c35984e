"""Falcon: Almazrouei et al. 2023, https://arxiv.org/abs/2311.16867.

Attention and feed-forward side by side, with one norm (7B) or a norm each (40B). Queries, keys and
values are one matrix, by groups of heads.
"""

from typing import Any

from keras_transformer.checkpoints.families.family import Conversion, Family, Field, Values
from keras_transformer.checkpoints.families.shared import decoder_heads, number, rotary
from keras_transformer.checkpoints.weights import Names, Weight, fused, layers, output_matrix
from keras_transformer.config import TransformerConfig

_OURS = "decoder/layer_{i}/"
_QKV = [f"{_OURS}self_attention/{name}" for name in ("query", "key", "value")]
_HEADS = ("num_heads", "num_key_value_heads", "num_key_value_heads")
_LAYER = {
    "self_attention/output": "self_attention.dense",
    "feed_forward/intermediate": "mlp.dense_h_to_4h",
    "feed_forward/output": "mlp.dense_4h_to_h",
}
_NORMS = tuple(
    Weight(f"{_OURS}{norm}/{mine}", f"h.{{i}}.{its}.{end}", when=("share_normalization", shared))
    for norm, its, shared in (
        ("self_attention_norm", "input_layernorm", True),
        ("self_attention_norm", "ln_attn", False),
        ("feed_forward_norm", "ln_mlp", False),
    )
    for mine, end in (("gamma", "weight"), ("beta", "bias"))
)


def _read(values: Values) -> dict[str, Any]:
    width, heads = number(values, "hidden_size", 4544), number(values, "num_attention_heads", 71)
    inner, grouped = values.get("ffn_hidden_size"), values.get("num_kv_heads")
    new = bool(values.get("new_decoder_architecture"))
    norms = values.get("num_ln_in_parallel_attn") or 1 + new
    if not new:
        grouped = 1 if values.get("multi_query", True) else heads
        if norms != 1:
            raise ValueError("num_ln_in_parallel_attn=2 needs new_decoder_architecture=True.")
    return {
        "num_key_value_heads": grouped,
        "intermediate_dim": 4 * width if inner is None else inner,
        "share_normalization": norms == 1,
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    grouped, shared = config.num_key_value_heads, config.share_normalization
    return {
        "num_kv_heads": grouped,
        "ffn_hidden_size": config.intermediate_dim,
        "multi_query": grouped == 1,
        "new_decoder_architecture": not (shared and grouped in (1, config.num_heads)),
        "num_ln_in_parallel_attn": 1 if shared else 2,
    }


FALCON = Family(
    model_type="falcon",
    architecture="FalconModel",
    fields={
        "vocab_size": Field("vocabulary_size", 65024),
        "hidden_size": Field("hidden_dim", 4544),
        "num_hidden_layers": Field("num_layers", 32),
        "num_attention_heads": Field("num_heads", 71),
        "activation": Field("activation", "gelu"),
        "bias": Field("use_bias", False),
        "hidden_dropout": Field("dropout", 0.0),
        "attention_dropout": Field("attention_dropout", 0.0),
        "max_position_embeddings": Field("max_sequence_length", 2048),
        "initializer_range": Field("initializer_range", 0.02),
        "layer_norm_epsilon": Field("normalization_epsilon", 1e-5),
        "tie_word_embeddings": Field("tie_embeddings", True),
    },
    constants={
        "kind": "decoder",
        "position": "rotary",
        "normalize_first": True,
        "parallel_residual": True,
    },
    conversions=(rotary(), Conversion(_read, _write)),
    # Their ALiBi is rounded to bfloat16; it and layers in series are of Falcon-RW alone.
    required={"alibi": False, "parallel_attn": True},
    weights=(
        *layers({"token_embedding": "word_embeddings", "decoder/final_norm": "ln_f"}),
        output_matrix("lm_head.weight"),
        *fused(_QKV, "h.{i}.self_attention.query_key_value", per_head=True, sizes=_HEADS),
        *layers(_LAYER, _OURS, "h.{i}."),
        *_NORMS,
    ),
    heads=decoder_heads(),
    names=Names(
        prefixes=("transformer.",),
        ignored=("h.*.self_attention.rotary_emb.inv_freq", "score.*"),
    ),
)
