"""What the tests of exports share: what PyTorch makes anew for each graph is made once."""

import functools

import keras
import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_registry():
    """The table of the operators of ONNX, a fifth of the time of a small export."""
    if keras.backend.backend() == "torch":
        from torch.onnx._internal.exporter import _registration

        registry = _registration.ONNXRegistry
        registry.from_torchlib = staticmethod(functools.cache(registry.from_torchlib))
