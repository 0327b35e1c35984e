"""BERT: Devlin et al. 2018, https://arxiv.org/abs/1810.04805.

Also models of the same architecture with other training: MiniLM, sentence-transformers, BERT in any
language.
"""

from keras_transformer.checkpoints.families.base.family import ConfigField, Family
from keras_transformer.checkpoints.families.base.shared import (
    ENCODER,
    NEXT_SENTENCE,
    encoder_heads,
    masked_lm,
)
from keras_transformer.checkpoints.weights.tables import Names, attention, layers, output_matrix

FIELDS = {
    "vocab_size": ConfigField("vocabulary_size", 30522),
    "hidden_size": ConfigField("hidden_dim", 768),
    "num_hidden_layers": ConfigField("num_layers", 12),
    "num_attention_heads": ConfigField("num_heads", 12),
    "intermediate_size": ConfigField("intermediate_dim", 3072),
    "hidden_act": ConfigField("activation", "gelu"),
    "hidden_dropout_prob": ConfigField("dropout", 0.1),
    "attention_probs_dropout_prob": ConfigField("attention_dropout", 0.1),
    "max_position_embeddings": ConfigField("max_sequence_length", 512),
    "type_vocab_size": ConfigField("segment_vocabulary_size", 2),
    "initializer_range": ConfigField("initializer_range", 0.02),
    "layer_norm_eps": ConfigField("normalization_epsilon", 1e-12),
    "tie_word_embeddings": ConfigField("tie_embeddings", True),
}
REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
EMBEDDINGS = {
    "token_embedding": "embeddings.word_embeddings",
    "encoder/segment_embedding": "embeddings.token_type_embeddings",
    "encoder/position_embedding": "embeddings.position_embeddings",
    "encoder/embedding_norm": "embeddings.LayerNorm",
}
LAYER = {
    **attention("attention.{}", "self.query", "self.key", "self.value", "output.dense"),
    "self_attention_norm": "attention.output.LayerNorm",
    "feed_forward/intermediate": "intermediate.dense",
    "feed_forward/output": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
# Embeddings and blocks, also used by RoBERTa and ELECTRA.
STACK = (*layers(EMBEDDINGS), *layers(LAYER, "encoder/layer_{i}/", "encoder.layer.{i}."))
OLDER_NORMS = {".gamma": ".weight", ".beta": ".bias"}

BERT = Family(
    model_type="bert",
    architecture="BertModel",
    fields=FIELDS,
    constants=ENCODER,
    required=REQUIRED,
    weights=(
        *STACK,
        output_matrix("cls.predictions.decoder.weight"),
        *layers({"pooler": "pooler.dense"}),
    ),
    heads=encoder_heads(
        masked_lm(
            "cls.predictions.", "transform.dense", "transform.LayerNorm", "decoder.bias", "bias"
        ),
        masked_classes=("BertForMaskedLM", "BertForPreTraining"),
    ),
    names=Names(prefixes=("bert.",), suffixes=OLDER_NORMS, ignored=NEXT_SENTENCE),
    pooler="pooler.dense.weight",
)
