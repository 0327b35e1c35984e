"""DistilBERT: Sanh et al. 2019, https://arxiv.org/abs/1910.01108. BERT without segments."""

from keras_transformer.checkpoints.families.base.family import ConfigField, Family
from keras_transformer.checkpoints.families.base.shared import ENCODER, encoder_heads, masked_lm
from keras_transformer.checkpoints.families.encoders.bert import OLDER_NORMS
from keras_transformer.checkpoints.weights.tables import Names, attention, layers, output_matrix

_EMBEDDINGS = {
    "token_embedding": "embeddings.word_embeddings",
    "encoder/position_embedding": "embeddings.position_embeddings",
    "encoder/embedding_norm": "embeddings.LayerNorm",
}
_LAYER = {
    **attention("attention.{}_lin", "q", "k", "v", "out"),
    "self_attention_norm": "sa_layer_norm",
    "feed_forward/intermediate": "ffn.lin1",
    "feed_forward/output": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}

DISTILBERT = Family(
    model_type="distilbert",
    architecture="DistilBertModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 30522),
        "dim": ConfigField("hidden_dim", 768),
        "n_layers": ConfigField("num_layers", 6),
        "n_heads": ConfigField("num_heads", 12),
        "hidden_dim": ConfigField("intermediate_dim", 3072),
        "activation": ConfigField("activation", "gelu"),
        "dropout": ConfigField("dropout", 0.1),
        "attention_dropout": ConfigField("attention_dropout", 0.1),
        "max_position_embeddings": ConfigField("max_sequence_length", 512),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={**ENCODER, "normalization_epsilon": 1e-12},
    weights=(
        *layers(_EMBEDDINGS),
        output_matrix("vocab_projector.weight"),
        *layers(_LAYER, "encoder/layer_{i}/", "transformer.layer.{i}."),
    ),
    heads=encoder_heads(
        masked_lm("vocab_", "transform", "layer_norm", "projector.bias"),
        classifier={"output": "classifier", "hidden": "pre_classifier"},
        hidden_activation="relu",
        dropout="seq_classif_dropout",
    ),
    names=Names(prefixes=("distilbert.",), suffixes=OLDER_NORMS),
)
