"""Weight norm: kernels that are stored as directions and lengths.

Source: Salimans and Kingma 2016, "Weight Normalization", section 2.
"""

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

import numpy as np

Info = TypeVar("Info")

DTYPE = "WEIGHT_NORM"  # dtype of the entry that combines both tensors
# Name endings of (lengths, directions): with PyTorch's parametrizations, and in older releases.
_ENDS = (
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    (".weight_g", ".weight_v"),
)
DIRECTIONS = tuple(directions for _, directions in _ENDS)


def folded(tensors: Mapping[str, Info]) -> dict[str, Info]:
    """Combine each pair of lengths and directions to one entry `*.weight` with two `parts`."""
    found = dict(tensors)
    for lengths, directions in _ENDS:
        for name in [name for name in tensors if name.endswith(directions)]:
            base = name.removesuffix(directions)
            both = tensors.get(base + lengths), tensors[name]
            if both[0] is None or f"{base}.weight" in found or not _belong(*both):
                continue
            del found[base + lengths], found[name]
            one = {"dtype": DTYPE, "parts": both}
            found[f"{base}.weight"] = dataclasses.replace(both[1], **one)
    return found


def _belong(lengths, directions) -> bool:
    sizes = zip(lengths.shape, directions.shape, strict=False)
    return len(lengths.shape) == len(directions.shape) and all(n in (1, m) for n, m in sizes)


def kernel_of(lengths: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return the kernel: each part of `directions` scaled to the length in `lengths`."""
    axes = tuple(i for i, size in enumerate(lengths.shape) if size == 1)
    norms = np.sqrt(np.square(directions, dtype="float64").sum(axis=axes, keepdims=True))
    scale = lengths / np.maximum(norms, np.finfo("float32").tiny)
    return (directions * scale).astype("float32")


def parts_of(name: str, kernel: np.ndarray, axes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return the lengths, computed over `axes`, and directions of the kernel `*.weight`."""
    norms = np.sqrt(np.square(kernel, dtype="float64").sum(axis=axes, keepdims=True))
    base = name.removesuffix(".weight")
    both = norms.astype(kernel.dtype), kernel
    return {base + end: array for end, array in zip(_ENDS[0], both, strict=True)}
