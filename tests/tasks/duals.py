"""Small models of images and texts, as CLIP's and as SigLIP's, and pairs that they learn."""

import keras_transformer as kt
from tests.tasks import images

LABELS = images.LABELS
TEXTS = [f"a photo of a {label}." for label in LABELS]


def config(words, **values):
    """As CLIP's: texts are read from left to right, up to their end."""
    stem = {"kind": "patches", "image_size": (12, 16), "patch_size": 4}
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 24}
    sizes |= {"vocabulary_size": words.vocabulary_size, "position": "learned"}
    sides = {
        "encoder": {"vocabulary_size": 0, "stem": stem, "vector_pooling": "first"},
        "decoder": {"vector_pooling": "end", "vector_end_id": words.end_id},
    }
    common = {"max_sequence_length": 16, "normalize_first": True, "vector_dim": 12}
    return kt.TransformerConfig(**{"kind": "dual", **common, **sides, **sizes} | values)


def sigmoid_config(words):
    """As SigLIP's: the last place of 16 is read, whatever stands there."""
    stem = {"kind": "patches", "image_size": (12, 16), "patch_size": 4, "class_token": False}
    return config(
        words,
        similarity_bias=True,
        encoder={"vocabulary_size": 0, "stem": stem, "vector_pooling": "attention"},
        decoder={"vector_pooling": "last", "bidirectional": True},
    )


def tokenizer():
    return kt.Tokenizer.train([*TEXTS, "what is it ?"] * 4, vocabulary_size=290)


def embedder(make=config, dtype=None, **options):
    words = tokenizer()
    backbone = kt.models.DualEncoder(make(words), dtype=dtype)
    return kt.ImageEmbedder(backbone, kt.ImageProcessor(size=(12, 16)), words, **options)


def pairs(count=16, seed=0):
    """Images and what is on them."""
    x, labels = images.pictures(count, seed)
    return x, [f"a photo of a {label}." for label in labels]
