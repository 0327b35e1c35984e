"""Tables that several families share: heads of tasks, constants of blocks."""

from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.families.family import Head
from keras_transformer.checkpoints.weights import Weight, layers

# The block of BERT, with learned positions.
ENCODER = {
    "kind": "encoder",
    "position": "learned",
    "normalization": "layer_norm",
    "embedding_normalization": True,
    "normalize_first": False,
}


# Of a BERT: a buffer of older releases; and the heads that do not make a backbone.
IGNORED = ("embeddings.position_ids", "classifier.*", "qa_outputs.*")


def masked_lm(prefix: str, transform: str, norm: str, *biases: str) -> tuple[Weight, ...]:
    """The head of a masked language model; its matrix is the token embedding."""
    bias, *also = (prefix + name for name in biases)
    return (
        *layers({"transform": transform, "transform_norm": norm}, theirs=prefix),
        Weight("output_bias/bias", bias, also=tuple(also)),
    )


def encoder_heads(
    masked: tuple[Weight, ...],
    *,
    masked_classes: tuple[str, ...] = (),
    masked_activation: str | None = None,
    classifier: Mapping[str, str] = {"output": "classifier"},
    hidden_activation: str | None = None,
    dropout: str = "classifier_dropout",
) -> dict[str, Head]:
    """The four tasks of an encoder."""
    hidden: dict[str, Any] = {"hidden_activation": hidden_activation}
    return {
        "MaskedLM": Head(
            architectures=masked_classes,
            weights=masked,
            values={"hidden_activation": masked_activation} if masked_activation else {},
        ),
        "TextClassifier": Head(
            weights=layers(classifier),
            values=hidden if hidden_activation else {},
            dropout=dropout,
        ),
        "TokenClassifier": Head(weights=layers({"output": "classifier"}), dropout=dropout),
        "QuestionAnswerer": Head(weights=layers({"output": "qa_outputs"})),
    }


def decoder_heads(*lm_classes: str) -> dict[str, Head]:
    """The two tasks of a decoder; a language model's head belongs to the backbone."""
    score = Weight("output/kernel", "score.weight", transpose=True)
    return {"CausalLM": Head(architectures=lm_classes), "TextClassifier": Head(weights=(score,))}
