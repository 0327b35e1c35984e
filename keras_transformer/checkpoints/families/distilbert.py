"""DistilBERT: Sanh et al. 2019, https://arxiv.org/abs/1910.01108. BERT without segments."""

from keras_transformer.checkpoints.families.encoders import ENCODER, encoder_heads, masked_lm
from keras_transformer.checkpoints.families.family import Family, Field
from keras_transformer.checkpoints.weights import Names, Weight, dense, layer_norm

_LAYER = "encoder/layer_{i}"
_THEIRS = "transformer.layer.{i}"

DISTILBERT = Family(
    model_type="distilbert",
    architecture="DistilBertModel",
    fields={
        "vocab_size": Field("vocabulary_size", 30522),
        "dim": Field("hidden_dim", 768),
        "n_layers": Field("num_layers", 6),
        "n_heads": Field("num_heads", 12),
        "hidden_dim": Field("intermediate_dim", 3072),
        "activation": Field("activation", "gelu"),
        "dropout": Field("dropout", 0.1),
        "attention_dropout": Field("attention_dropout", 0.1),
        "max_position_embeddings": Field("max_sequence_length", 512),
        "initializer_range": Field("initializer_range", 0.02),
        "tie_word_embeddings": Field("tie_embeddings", True),
    },
    constants={**ENCODER, "normalization_epsilon": 1e-12},
    weights=(
        Weight("token_embedding/embeddings", "embeddings.word_embeddings.weight"),
        Weight(
            "token_embedding/reverse_embeddings",
            "vocab_projector.weight",
            transpose=True,
            outside=True,
        ),
        Weight("encoder/position_embedding/embeddings", "embeddings.position_embeddings.weight"),
        *layer_norm("encoder/embedding_norm", "embeddings.LayerNorm"),
        *dense(f"{_LAYER}/self_attention/query", f"{_THEIRS}.attention.q_lin"),
        *dense(f"{_LAYER}/self_attention/key", f"{_THEIRS}.attention.k_lin"),
        *dense(f"{_LAYER}/self_attention/value", f"{_THEIRS}.attention.v_lin"),
        *dense(f"{_LAYER}/self_attention/output", f"{_THEIRS}.attention.out_lin"),
        *layer_norm(f"{_LAYER}/self_attention_norm", f"{_THEIRS}.sa_layer_norm"),
        *dense(f"{_LAYER}/feed_forward/intermediate", f"{_THEIRS}.ffn.lin1"),
        *dense(f"{_LAYER}/feed_forward/output", f"{_THEIRS}.ffn.lin2"),
        *layer_norm(f"{_LAYER}/feed_forward_norm", f"{_THEIRS}.output_layer_norm"),
    ),
    heads=encoder_heads(
        "DistilBert",
        masked_lm("vocab_transform", "vocab_layer_norm", ("vocab_projector.bias",)),
        hidden="pre_classifier",
        hidden_activation="relu",
        dropout="seq_classif_dropout",
    ),
    names=Names(
        prefixes=("distilbert.",),
        suffixes={".gamma": ".weight", ".beta": ".bias"},
        ignored=("vocab_*", "pre_classifier.*", "classifier.*", "qa_outputs.*"),
    ),
)
