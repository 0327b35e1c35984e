"""Megatron-BERT: Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053.

A BERT with its norms before the sub-layers, and none on the embeddings.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.base.shared import ENCODER, encoder_heads
from keras_transformer.checkpoints.families.encoders.bert import BERT, EMBEDDINGS, FIELDS, LAYER
from keras_transformer.checkpoints.weights.tables import layers, output_matrix

_ONCE = {
    **{ours: theirs for ours, theirs in EMBEDDINGS.items() if "norm" not in ours},
    "encoder/final_norm": "encoder.ln",
    "pooler": "pooler.dense",
}
_LAYER = {**LAYER, "self_attention_norm": "attention.ln", "feed_forward_norm": "ln"}

MEGATRON_BERT = dataclasses.replace(
    BERT,
    model_type="megatron-bert",
    architecture="MegatronBertModel",
    fields={
        **FIELDS,
        "vocab_size": ConfigField("vocabulary_size", 29056),
        "hidden_size": ConfigField("hidden_dim", 1024),
        "num_hidden_layers": ConfigField("num_layers", 24),
        "num_attention_heads": ConfigField("num_heads", 16),
        "intermediate_size": ConfigField("intermediate_dim", 4096),
    },
    constants={**ENCODER, "embedding_normalization": False, "normalize_first": True},
    weights=(
        *layers(_ONCE),
        *layers(_LAYER, "encoder/layer_{i}/", "encoder.layer.{i}."),
        output_matrix("cls.predictions.decoder.weight"),
    ),
    heads=encoder_heads(
        BERT.heads["MaskedLM"].weights,
        masked_classes=("MegatronBertForMaskedLM", "MegatronBertForPreTraining"),
    ),
)
