"""ALBERT: Lan et al. 2019, https://arxiv.org/abs/1909.11942.

Narrow embeddings, sections 3.1, and layers that share their weights.
"""

from keras_transformer.checkpoints.families.encoders import (
    BERT_FIELDS,
    ENCODER,
    bert_embeddings,
    encoder_heads,
    masked_lm,
)
from keras_transformer.checkpoints.families.family import Family, Field
from keras_transformer.checkpoints.weights import Names, dense, layer_norm

_LAYER = "encoder/layer_{i}"
_THEIRS = "encoder.albert_layer_groups.{i}.albert_layers.0"

ALBERT = Family(
    model_type="albert",
    architecture="AlbertModel",
    fields={
        **BERT_FIELDS,
        "vocab_size": Field("vocabulary_size", 30000),
        "embedding_size": Field("embedding_dim", 128),
        "hidden_size": Field("hidden_dim", 4096),
        "num_hidden_groups": Field("num_layer_groups", 1),
        "num_attention_heads": Field("num_heads", 64),
        "intermediate_size": Field("intermediate_dim", 16384),
        "hidden_act": Field("activation", "gelu_new"),
        "hidden_dropout_prob": Field("dropout", 0.0),
        "attention_probs_dropout_prob": Field("attention_dropout", 0.0),
    },
    constants={**ENCODER, "embedding_projection": True},
    required={"position_embedding_type": "absolute", "inner_group_num": 1},
    weights=(
        *bert_embeddings("predictions.decoder.weight"),
        *dense("encoder/embedding_projection", "encoder.embedding_hidden_mapping_in"),
        *dense(f"{_LAYER}/self_attention/query", f"{_THEIRS}.attention.query"),
        *dense(f"{_LAYER}/self_attention/key", f"{_THEIRS}.attention.key"),
        *dense(f"{_LAYER}/self_attention/value", f"{_THEIRS}.attention.value"),
        *dense(f"{_LAYER}/self_attention/output", f"{_THEIRS}.attention.dense"),
        *layer_norm(f"{_LAYER}/self_attention_norm", f"{_THEIRS}.attention.LayerNorm"),
        *dense(f"{_LAYER}/feed_forward/intermediate", f"{_THEIRS}.ffn"),
        *dense(f"{_LAYER}/feed_forward/output", f"{_THEIRS}.ffn_output"),
        *layer_norm(f"{_LAYER}/feed_forward_norm", f"{_THEIRS}.full_layer_layer_norm"),
        *dense("pooler", "pooler"),
    ),
    heads=encoder_heads(
        "Albert",
        masked_lm(
            "predictions.dense",
            "predictions.LayerNorm",
            ("predictions.bias", "predictions.decoder.bias"),
        ),
        also_masked=("AlbertForPreTraining",),
        dropout="classifier_dropout_prob",
    ),
    names=Names(
        prefixes=("albert.",),
        ignored=(
            "embeddings.position_ids",
            "predictions.*",
            "sop_classifier.*",
            "classifier.*",
            "qa_outputs.*",
        ),
    ),
    pooler="pooler.weight",
)
