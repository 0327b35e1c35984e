"""BERT: Devlin et al. 2018, https://arxiv.org/abs/1810.04805.

Also what is BERT with other training: MiniLM, sentence-transformers models, BERT in any language.
"""

from keras_transformer.checkpoints.families.family import Family, Field
from keras_transformer.checkpoints.weights import Names, Weight, dense, layer_norm

_LAYER = "encoder/layer_{i}"
_THEIRS = "encoder.layer.{i}"

BERT = Family(
    model_type="bert",
    architecture="BertModel",
    fields={
        "vocab_size": Field("vocabulary_size", 30522),
        "hidden_size": Field("hidden_dim", 768),
        "num_hidden_layers": Field("num_layers", 12),
        "num_attention_heads": Field("num_heads", 12),
        "intermediate_size": Field("intermediate_dim", 3072),
        "hidden_act": Field("activation", "gelu"),
        "hidden_dropout_prob": Field("dropout", 0.1),
        "attention_probs_dropout_prob": Field("attention_dropout", 0.1),
        "max_position_embeddings": Field("max_sequence_length", 512),
        "type_vocab_size": Field("segment_vocabulary_size", 2),
        "initializer_range": Field("initializer_range", 0.02),
        "layer_norm_eps": Field("normalization_epsilon", 1e-12),
    },
    constants={
        "kind": "encoder",
        "position": "learned",
        "normalization": "layer_norm",
        "embedding_normalization": True,
        "normalize_first": False,
        "pooler": True,
    },
    required={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
    },
    weights=(
        Weight("token_embedding/embeddings", "embeddings.word_embeddings.weight"),
        Weight("encoder/segment_embedding/embeddings", "embeddings.token_type_embeddings.weight"),
        Weight("encoder/position_embedding/embeddings", "embeddings.position_embeddings.weight"),
        *layer_norm("encoder/embedding_norm", "embeddings.LayerNorm"),
        *dense(f"{_LAYER}/self_attention/query", f"{_THEIRS}.attention.self.query"),
        *dense(f"{_LAYER}/self_attention/key", f"{_THEIRS}.attention.self.key"),
        *dense(f"{_LAYER}/self_attention/value", f"{_THEIRS}.attention.self.value"),
        *dense(f"{_LAYER}/self_attention/output", f"{_THEIRS}.attention.output.dense"),
        *layer_norm(f"{_LAYER}/self_attention_norm", f"{_THEIRS}.attention.output.LayerNorm"),
        *dense(f"{_LAYER}/feed_forward/intermediate", f"{_THEIRS}.intermediate.dense"),
        *dense(f"{_LAYER}/feed_forward/output", f"{_THEIRS}.output.dense"),
        *layer_norm(f"{_LAYER}/feed_forward_norm", f"{_THEIRS}.output.LayerNorm"),
        *dense("pooler", "pooler.dense"),
    ),
    heads={"TextClassifier": dense("output", "classifier")},
    tasks={"BertForSequenceClassification": "TextClassifier"},
    names=Names(
        prefixes=("bert.",),
        suffixes={".gamma": ".weight", ".beta": ".bias"},
        # A buffer of older releases; and the heads that do not make a backbone.
        ignored=("embeddings.position_ids", "cls.*", "classifier.*", "qa_outputs.*"),
    ),
    pooler="pooler.dense.weight",
)
