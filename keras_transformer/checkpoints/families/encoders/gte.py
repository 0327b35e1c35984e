"""GTE: Zhang et al. 2024, https://arxiv.org/abs/2407.19669.

A BERT with rotary positions and gated feed-forward layers, whose only bias is on their output.
"""

from keras_transformer.checkpoints.families.base.family import ConfigField, Family
from keras_transformer.checkpoints.families.base.shared import (
    ENCODER,
    encoder_heads,
    masked_lm,
    rotary,
)
from keras_transformer.checkpoints.families.encoders.bert import EMBEDDINGS, FIELDS
from keras_transformer.checkpoints.weights.tables import Names, fused, layers, output_matrix

_ONCE = {
    **{ours: theirs for ours, theirs in EMBEDDINGS.items() if "position" not in ours},
    "pooler": "pooler.dense",
}
_OURS, _THEIRS = "encoder/layer_{i}/", "encoder.layer.{i}."
_QKV = [f"{_OURS}self_attention/{name}" for name in ("query", "key", "value")]
_BRANCHES = [f"{_OURS}feed_forward/{name}" for name in ("intermediate", "gate")]
_LAYER = {
    "self_attention/output": "attention.o_proj",
    "self_attention_norm": "attn_ln",
    "feed_forward/output": "mlp.down_proj",
    "feed_forward_norm": "mlp_ln",
}

# Transformers has no class for question answering with this architecture.
_HEADS = encoder_heads(
    masked_lm("lm_head.", "dense", "norm", "decoder.bias"), masked_activation="gelu"
)

GTE = Family(
    model_type="gte",
    architecture="GteModel",
    fields={
        **FIELDS,
        "vocab_size": ConfigField("vocabulary_size", 250048),
        "attention_probs_dropout_prob": ConfigField("attention_dropout", 0.0),
        "max_position_embeddings": ConfigField("max_sequence_length", 8192),
        "type_vocab_size": ConfigField("segment_vocabulary_size", 1),
    },
    constants={
        **ENCODER,
        "position": "rotary",
        "gated": True,
        "use_bias": False,
        "attention_bias": True,
        "feed_forward_output_bias": True,
    },
    conversions=(rotary(default_base=160000.0),),
    weights=(
        *layers(_ONCE),
        *fused(_QKV, f"{_THEIRS}attention.qkv_proj"),
        *fused(_BRANCHES, f"{_THEIRS}mlp.up_gate_proj"),
        *layers(_LAYER, _OURS, _THEIRS),
        output_matrix("lm_head.decoder.weight"),
    ),
    heads={task: head for task, head in _HEADS.items() if task != "QuestionAnswerer"},
    names=Names(prefixes=("gte.", "new.")),
    pooler="pooler.dense.weight",
)
