"""What the encoder-only families share: BERT's names for its layers, and the heads of its tasks."""

from collections.abc import Sequence
from typing import Any

from keras_transformer.checkpoints.families.family import Field, Head
from keras_transformer.checkpoints.weights import Weight, dense, layer_norm

# The block of BERT, with learned positions.
ENCODER = {
    "kind": "encoder",
    "position": "learned",
    "normalization": "layer_norm",
    "embedding_normalization": True,
    "normalize_first": False,
}

BERT_FIELDS = {
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
    "tie_word_embeddings": Field("tie_embeddings", True),
}

BERT_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}


def bert_embeddings(output: str) -> tuple[Weight, ...]:
    """The embeddings of BERT.

    Args:
        output: The matrix of a masked language model that does not share its embedding.
    """
    return (
        Weight("token_embedding/embeddings", "embeddings.word_embeddings.weight"),
        Weight("token_embedding/reverse_embeddings", output, transpose=True, outside=True),
        Weight("encoder/segment_embedding/embeddings", "embeddings.token_type_embeddings.weight"),
        Weight("encoder/position_embedding/embeddings", "embeddings.position_embeddings.weight"),
        *layer_norm("encoder/embedding_norm", "embeddings.LayerNorm"),
    )


def bert_layers() -> tuple[Weight, ...]:
    """The blocks of BERT."""
    ours, theirs = "encoder/layer_{i}", "encoder.layer.{i}"
    return (
        *dense(f"{ours}/self_attention/query", f"{theirs}.attention.self.query"),
        *dense(f"{ours}/self_attention/key", f"{theirs}.attention.self.key"),
        *dense(f"{ours}/self_attention/value", f"{theirs}.attention.self.value"),
        *dense(f"{ours}/self_attention/output", f"{theirs}.attention.output.dense"),
        *layer_norm(f"{ours}/self_attention_norm", f"{theirs}.attention.output.LayerNorm"),
        *dense(f"{ours}/feed_forward/intermediate", f"{theirs}.intermediate.dense"),
        *dense(f"{ours}/feed_forward/output", f"{theirs}.output.dense"),
        *layer_norm(f"{ours}/feed_forward_norm", f"{theirs}.output.LayerNorm"),
    )


def masked_lm(transform: str, norm: str, biases: Sequence[str]) -> tuple[Weight, ...]:
    """The head of a masked language model; its matrix is the token embedding."""
    return (
        *dense("transform", transform),
        *layer_norm("transform_norm", norm),
        Weight("output_bias/bias", biases[0], also=tuple(biases[1:])),
    )


def encoder_heads(
    prefix: str,
    masked: tuple[Weight, ...],
    *,
    also_masked: tuple[str, ...] = (),
    masked_activation: str | None = None,
    hidden: str | None = None,
    hidden_activation: str | None = None,
    output: str = "classifier",
    dropout: str = "classifier_dropout",
) -> dict[str, Head]:
    """The four tasks of an encoder.

    Args:
        prefix: What the names of the classes start with, e.g. `"Bert"`.
        masked: The head of the masked language model.
        also_masked: Further classes with that head.
        masked_activation: Its activation, `None` for that of the blocks.
        hidden: The dense layer before a text classifier's output, `None` without one.
        hidden_activation: Its activation.
        output: The output of a text classifier.
        dropout: The config's name for the dropout before the output.
    """
    classifier = dense("output", output)
    values: dict[str, Any] = {}
    if hidden is not None:
        classifier += dense("hidden", hidden)
        values = {"hidden_activation": hidden_activation}
    masked_values = {"hidden_activation": masked_activation} if masked_activation else {}
    return {
        "MaskedLM": Head(
            architectures=(f"{prefix}ForMaskedLM", *also_masked),
            weights=masked,
            values=masked_values,
        ),
        "TextClassifier": Head(
            architectures=(f"{prefix}ForSequenceClassification",),
            weights=classifier,
            values=values,
            dropout=dropout,
        ),
        "TokenClassifier": Head(
            architectures=(f"{prefix}ForTokenClassification",),
            weights=dense("output", "classifier"),
            dropout=dropout,
        ),
        "QuestionAnswerer": Head(
            architectures=(f"{prefix}ForQuestionAnswering",), weights=dense("output", "qa_outputs")
        ),
    }
