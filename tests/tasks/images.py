"""Small models of images, and images of two classes that tell them apart."""

import numpy as np

import keras_transformer as kt

LABELS = ["dark", "bright"]


def config(stem, **values):
    return kt.TransformerConfig(
        kind="encoder",
        vocabulary_size=0,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=24,
        position="learned",
        normalize_first=True,
        normalization_epsilon=1e-12,
        stem=stem,
        **values,
    )


def patches(**values):
    return config({"kind": "patches", "image_size": (12, 16), "patch_size": 4, **values})


def convolutions(**values):
    return config({"kind": "convolutions", "image_size": (12, 16), "filters": (6,), **values})


def captions(**values):
    """An encoder of images and a decoder of text."""
    stem = {"kind": "patches", "image_size": (12, 16), "patch_size": 4}
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 24}
    sizes |= {"vocabulary_size": 290, "position": "learned", "max_sequence_length": 24}
    encoder = {"vocabulary_size": 0, "stem": stem}
    return kt.TransformerConfig(
        **{"kind": "seq2seq", "normalize_first": True, "encoder": encoder} | sizes | values
    )


def placed(**values):
    """An encoder of images whose states take places among the tokens of a decoder."""
    return captions(
        **{"position": "rotary", "placeholder_id": 7, "projector": "linear"} | values,
        encoder={
            "vocabulary_size": 0,
            "position": "learned",
            "stem": {"kind": "patches", "image_size": (12, 16), "patch_size": 4},
        },
    )


def classifier(backbone_config=None, dtype=None, **options):
    backbone = kt.models.Encoder(backbone_config or patches(), dtype=dtype)
    if "num_classes" not in options:
        options.setdefault("labels", LABELS)
    return kt.ImageClassifier(backbone, kt.ImageProcessor(size=(12, 16)), **options)


def pictures(count=16, seed=0):
    """Images of several sizes, dark and bright by turns, and their labels."""
    random = np.random.default_rng(seed)
    made = [random.integers(0, 60, (10 + i % 5, 14, 3)) + 190 * (i % 2) for i in range(count)]
    return [image.astype("uint8") for image in made], [LABELS[i % 2] for i in range(count)]
