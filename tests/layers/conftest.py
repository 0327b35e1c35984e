"""Shared fixtures of the tests of layers."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.device import Device


@pytest.fixture
def torch():
    """PyTorch, as the reference implementation whatever the backend."""
    return pytest.importorskip("torch", reason="needs PyTorch as the reference")


def random(*shape, seed=0):
    """Normally distributed float32."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def numpy(tensor):
    """A NumPy array of a tensor of any dtype of numbers, in float32 if it is a float."""
    if "float" in keras.backend.standardize_dtype(tensor.dtype):
        tensor = ops.cast(tensor, "float32")
    return ops.convert_to_numpy(tensor)


def assert_close(actual, desired, atol=1e-5, rtol=1e-5):
    actual, desired = (x if isinstance(x, np.ndarray) else numpy(x) for x in (actual, desired))
    assert actual.shape == desired.shape
    np.testing.assert_allclose(actual, desired, atol=atol, rtol=rtol)


def differs(actual, desired, by=1e-3):
    return np.abs(numpy(actual) - numpy(desired)).max() > by


def randomize(layer, seed=0):
    """Random values in all weights, biases and norms included, so that a mix-up shows."""
    generator = np.random.default_rng(seed)
    for variable in layer.trainable_variables:
        noise = generator.normal(size=variable.shape, scale=0.3)
        norm = variable.name in ("gamma", "scale", "strength")
        variable.assign(1 + noise if norm else noise)
    for variable in layer.non_trainable_variables:
        if variable.name.startswith("moving_"):
            variable.assign(generator.uniform(0.5, 1.5, size=variable.shape))
    return layer


def copy_weights(source, target):
    for mine, theirs in zip(target.weights, source.weights, strict=True):
        mine.assign(ops.convert_to_numpy(theirs))  # a copy: JAX gives arrays away in training


def from_config(layer):
    """The layer that a layer's config describes, through JSON."""
    config = keras.saving.serialize_keras_object(layer)
    return keras.saving.deserialize_keras_object(config)


@pytest.fixture
def small_groups(monkeypatch):
    """Rows go through attention two at a time or so, where they go in groups."""
    monkeypatch.setattr(Device, "scores_bytes", 2**17)
