"""Register of the models and blocks on PyTorch whose weights are spread over processes."""

import contextlib
import weakref
from typing import Any

import keras

# The mesh of processes that `setup` made, or nothing.
MESHES: list[Any] = []

# `FullySharded` of each model, also of the backbone within a task.
MODELS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# The module that has the weights of each block.
PARTS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def weights_for_reading(model: keras.Model) -> contextlib.AbstractContextManager:
    """Return a context in which a forward pass of a model finds its weights."""
    spread = MODELS.get(model)
    return contextlib.nullcontext() if spread is None else spread.rest_is_whole()
