"""Falcon: Almazrouei et al. 2023, https://arxiv.org/abs/2311.16867.

Attention and feed-forward in parallel, with one norm (7B) or a norm each (40B), or in series
(Falcon-RW). Queries, keys and values are one matrix, by groups of heads. Falcon-RW has ALiBi, added
before the scores are scaled, with slopes and positions in bfloat16.
"""

import math
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import decoder_heads, flag, number, rotary
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    fused,
    layers,
    output_matrix,
)
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
    WeightLine(f"{_OURS}{norm}/{mine}", f"h.{{i}}.{its}.{end}", when=when)
    for norm, its, when in (
        ("self_attention_norm", "ln_attn", ("parallel_residual", True)),
        # Later lines take precedence.
        ("self_attention_norm", "input_layernorm", ("share_normalization", True)),
        ("self_attention_norm", "input_layernorm", ("parallel_residual", False)),
        ("feed_forward_norm", "ln_mlp", ("parallel_residual", True)),
        ("feed_forward_norm", "post_attention_layernorm", ("parallel_residual", False)),
    )
    for mine, end in (("gamma", "weight"), ("beta", "bias"))
)


def _read(values: Values) -> dict[str, Any]:
    width, heads = number(values, "hidden_size", 4544), number(values, "num_attention_heads", 71)
    inner, grouped = values.get("ffn_hidden_size"), values.get("num_kv_heads")
    new = flag(values, "new_decoder_architecture")
    parallel = new or flag(values, "parallel_attn", True)
    norms = (values.get("num_ln_in_parallel_attn") or 1 + new) if parallel else None
    if not new:
        grouped = 1 if flag(values, "multi_query", True) else heads
        if norms == 2:
            raise ValueError("num_ln_in_parallel_attn=2 needs new_decoder_architecture=True.")
    ours = {"position": "rotary"}
    if flag(values, "alibi"):
        scale = 1 / math.sqrt(max(width // max(heads, 1), 1))
        ours = {"position": "alibi", "alibi_scale": scale, "alibi_rounded": True}
    return ours | {
        "parallel_residual": parallel,
        "num_key_value_heads": grouped,
        "intermediate_dim": 4 * width if inner is None else inner,
        "share_normalization": norms == 1,
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    grouped, shared = config.num_key_value_heads, config.share_normalization
    parallel = config.parallel_residual
    usual = grouped in (1, config.num_heads) and (shared or not parallel)
    return {
        "alibi": config.position == "alibi",
        "parallel_attn": parallel,
        "num_kv_heads": grouped,
        "ffn_hidden_size": config.intermediate_dim,
        "multi_query": grouped == 1,
        "new_decoder_architecture": not usual,
        "num_ln_in_parallel_attn": 2 if parallel and not shared else 1,
    }


FALCON = Family(
    model_type="falcon",
    architecture="FalconModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 65024),
        "hidden_size": ConfigField("hidden_dim", 4544),
        "num_hidden_layers": ConfigField("num_layers", 32),
        "num_attention_heads": ConfigField("num_heads", 71),
        "activation": ConfigField("activation", "gelu"),
        "bias": ConfigField("use_bias", False),
        "hidden_dropout": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "max_position_embeddings": ConfigField("max_sequence_length", 2048),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "layer_norm_epsilon": ConfigField("normalization_epsilon", 1e-5),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={"kind": "decoder", "normalize_first": True},
    conversions=(rotary(), Conversion(_read, _write)),
    weights=(
        *layers({"token_embedding": "word_embeddings", "decoder/final_norm": "ln_f"}),
        output_matrix("lm_head.weight"),
        *fused(_QKV, "h.{i}.self_attention.query_key_value", per_head=True, sizes=_HEADS),
        *layers(_LAYER, _OURS, "h.{i}."),
        *_NORMS,
    ),
    heads=decoder_heads(),
    names=Names(prefixes=("transformer.",)),
)
