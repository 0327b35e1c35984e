"""Shared fixtures of the tests of backbones."""

import numpy as np

from keras_transformer import TransformerConfig
from keras_transformer.models import build_backbone

IDS = np.array([[5, 3, 9, 2, 7], [4, 6, 8, 0, 0]], "int32")
PADDING = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
SOURCE = np.array([[2, 4, 6, 8, 1, 3, 5], [9, 7, 5, 3, 0, 0, 0]], "int32")
SOURCE_PADDING = SOURCE != 0


def small_config(kind, **values):
    base = {"vocabulary_size": 11, "hidden_dim": 8, "num_layers": 2, "num_heads": 2}
    limits = {"intermediate_dim": 12, "max_sequence_length": 9}
    return TransformerConfig(kind=kind, **{**base, **limits, **values})


def small_backbone(kind, dtype=None, **values):
    """A backbone with random values in all weights, biases and norms included."""
    backbone = build_backbone(small_config(kind, **values), dtype=dtype)
    generator = np.random.default_rng(0)
    for variable in backbone.trainable_weights:
        noise = generator.normal(size=variable.shape, scale=0.3)
        variable.assign(1 + noise if variable.name in ("gamma", "scale", "strength") else noise)
    return backbone


def small_inputs(kind):
    if kind == "seq2seq":
        return {
            "encoder_token_ids": SOURCE,
            "encoder_padding_mask": SOURCE_PADDING,
            "decoder_token_ids": IDS,
            "decoder_padding_mask": PADDING,
        }
    return {"token_ids": IDS, "padding_mask": PADDING}
