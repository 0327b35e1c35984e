"""Jina-Embeddings-V3: Sturua et al. 2024, https://arxiv.org/abs/2409.10173.

An XLM-RoBERTa with rotary positions in place of learned ones, in Transformers' format, whose
weights hold no adapters.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.base.shared import ENCODER, rotary
from keras_transformer.checkpoints.families.encoders.bert import EMBEDDINGS, FIELDS
from keras_transformer.checkpoints.families.encoders.roberta import XLM_ROBERTA
from keras_transformer.checkpoints.weights.tables import fused, layers, output_matrix

_ONCE = {
    **{ours: theirs for ours, theirs in EMBEDDINGS.items() if "position" not in ours},
    "encoder/embedding_norm": "emb_ln",
    "pooler": "pooler.dense",
}
_OURS, _THEIRS = "encoder/layer_{i}/", "encoder.layers.{i}."
_QKV = [f"{_OURS}self_attention/{name}" for name in ("query", "key", "value")]
_LAYER = {
    "self_attention/output": "mixer.out_proj",
    "self_attention_norm": "norm1",
    "feed_forward/intermediate": "mlp.fc1",
    "feed_forward/output": "mlp.fc2",
    "feed_forward_norm": "norm2",
}

JINA_EMBEDDINGS_V3 = dataclasses.replace(
    XLM_ROBERTA,
    model_type="jina_embeddings_v3",
    architecture="JinaEmbeddingsV3Model",
    fields={
        **FIELDS,
        "vocab_size": ConfigField("vocabulary_size", 250002),
        "hidden_size": ConfigField("hidden_dim", 1024),
        "num_hidden_layers": ConfigField("num_layers", 24),
        "num_attention_heads": ConfigField("num_heads", 16),
        "intermediate_size": ConfigField("intermediate_dim", 4096),
        "max_position_embeddings": ConfigField("max_sequence_length", 8194),
        "type_vocab_size": ConfigField("segment_vocabulary_size", 1),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-5),
    },
    constants={**ENCODER, "position": "rotary"},
    conversions=(rotary(default_base=20000.0),),
    required={},
    weights=(
        *layers(_ONCE),
        *fused(_QKV, f"{_THEIRS}mixer.Wqkv"),
        *layers(_LAYER, _OURS, _THEIRS),
        output_matrix("lm_head.decoder.weight"),
    ),
)
