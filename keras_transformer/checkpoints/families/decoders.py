"""What the decoder-only families share: their heads, and the matrix of the output."""

from keras_transformer.checkpoints.families.family import Head
from keras_transformer.checkpoints.weights import Weight


def output_matrix(theirs: str, *also: str) -> Weight:
    """The line of the matrix of the output, for models that do not share their embedding."""
    ours = "token_embedding/reverse_embeddings"
    return Weight(ours, theirs, transpose=True, outside=True, also=also)


def decoder_heads(prefix: str, also_lm: tuple[str, ...] = ()) -> dict[str, Head]:
    """The two tasks of a decoder. A language model's head belongs to the backbone.

    Args:
        prefix: What the names of the classes start with, e.g. `"Llama"`.
        also_lm: The language model's class, where it is not `{prefix}ForCausalLM`.
    """
    return {
        "CausalLM": Head(architectures=also_lm or (f"{prefix}ForCausalLM",)),
        "TextClassifier": Head(
            architectures=(f"{prefix}ForSequenceClassification",),
            weights=(Weight("output/kernel", "score.weight", transpose=True),),
        ),
    }
