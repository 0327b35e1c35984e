"""Register of the models and blocks on PyTorch whose weights are spread over processes."""

import weakref
from typing import Any

# The mesh of processes that `setup` made, or nothing.
MESHES: list[Any] = []
# The mesh of processes that share the tokens of each row, or nothing.
SEQUENCES: list[Any] = []

# `FullySharded` or `TensorParallel` of each model, also of the backbone within a task.
MODELS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# The module that has the weights of each block.
PARTS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def rows_group() -> Any:
    """Return the group of processes whose gradients are averaged; None stands for all."""
    of_rows = (mesh for mesh in MESHES if "model" in mesh.mesh_dim_names)
    return next((mesh.get_group("data") for mesh in of_rows), None)


def shared_by() -> int:
    """Return how many processes on PyTorch compute each layer together, by the mesh of `setup`."""
    names = ((mesh, mesh.mesh_dim_names) for mesh in MESHES)
    return next((mesh.size(axes.index("model")) for mesh, axes in names if "model" in axes), 1)


def with_same_rows() -> int:
    """Return how many processes on PyTorch read the same rows, and share the work on them."""
    return shared_by() * next((mesh.size() for mesh in SEQUENCES), 1)
