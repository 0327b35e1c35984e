"""MPT: MosaicML 2023, https://www.mosaicml.com/blog/mpt-7b.

Pre-norm without any biases, and ALiBi.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import decoder_heads, number, unread
from keras_transformer.checkpoints.weights.tables import Names, fused, layers, output_matrix
from keras_transformer.config import TransformerConfig

_QKV = [f"decoder/layer_{{i}}/self_attention/{name}" for name in ("query", "key", "value")]
_LAYER = {
    "self_attention/output": "attn.out_proj",
    "self_attention_norm": "norm_1",
    "feed_forward/intermediate": "ffn.up_proj",
    "feed_forward/output": "ffn.down_proj",
    "feed_forward_norm": "norm_2",
}
# The values of `attn_config` that must be exactly these.
_REQUIRED = {
    "attn_type": "multihead_attention",
    "clip_qkv": None,
    "prefix_lm": False,
    "qk_ln": False,
    "alibi": True,
    "alibi_bias_max": 8,
}
_NORMS = ("low_precision_layernorm", "layernorm")


def _read(values: Values) -> dict[str, Any]:
    attention, norm = values.get("attn_config") or {}, values.get("norm_type", _NORMS[0])
    if not isinstance(attention, dict):
        raise ValueError(f"attn_config must be an object, received {attention!r}.")
    for name, supported in _REQUIRED.items():
        if attention.get(name, supported) != supported:
            raise ValueError(
                f"{name}={attention[name]!r} of attn_config is not supported, only {supported!r}."
            )
    if norm not in _NORMS:
        known = ", ".join(map(repr, _NORMS))
        raise ValueError(f"norm_type={norm!r} is not supported, only {known}.")
    return {
        "intermediate_dim": 4 * number(values, "d_model", 2048),
        "score_scale": attention.get("softmax_scale"),
        "attention_dropout": attention.get("attn_pdrop", 0),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    # Transformers takes whole numbers for `attn_pdrop`, so that it can only be 0.
    own = {"attn_pdrop": 0, "softmax_scale": config.score_scale}
    return {"attn_config": {**_REQUIRED, **own}, "emb_pdrop": config.dropout}


MPT = Family(
    model_type="mpt",
    architecture="MptModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 50368),
        "d_model": ConfigField("hidden_dim", 2048),
        "n_layers": ConfigField("num_layers", 24),
        "n_heads": ConfigField("num_heads", 16),
        "resid_pdrop": ConfigField("dropout", 0.0),
        "max_seq_len": ConfigField("max_sequence_length", 2048),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "layer_norm_epsilon": ConfigField("normalization_epsilon", 1e-5),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={
        "kind": "decoder",
        "activation": "gelu",
        "normalization": "layer_norm_no_bias",
        "normalize_first": True,
        "use_bias": False,
        "position": "alibi",
    },
    conversions=(Conversion(_read, _write),),
    required={"expansion_ratio": 4, "no_bias": True, "logit_scale": None},
    weights=(
        *layers({"token_embedding": "wte", "decoder/final_norm": "norm_f"}),
        output_matrix("lm_head.weight"),
        *fused(_QKV, "blocks.{i}.attn.Wqkv"),
        *layers(_LAYER, "decoder/layer_{i}/", "blocks.{i}."),
    ),
    heads=decoder_heads(tokens="classifier"),
    names=Names(prefixes=("transformer.",), ignored=unread("qa_outputs")),
)
