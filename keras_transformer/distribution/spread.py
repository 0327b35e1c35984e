"""Register of the models and blocks on PyTorch whose weights are spread over processes."""

import weakref
from typing import Any

# The mesh of processes that `setup` made, or nothing.
MESHES: list[Any] = []

# `FullySharded` or `TensorParallel` of each model, also of the backbone within a task.
MODELS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# The module that has the weights of each block.
PARTS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def shared_by() -> int:
    """Return how many processes on PyTorch compute each layer together, by the mesh of `setup`."""
    return next((mesh.size() for mesh in MESHES if "model" in mesh.mesh_dim_names), 1)
