"""Convolutions of queries, keys and values whose rows a checkpoint divides in another way.

Transformers holds the three of OLMo Hybrid as one tensor, which `save_pretrained` cuts into equal
parts. The published files have the rows of each.
"""

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from keras_transformer.checkpoints.weights.expert_tensors import BYTES

Info = TypeVar("Info")

DTYPE = "ROWS"  # dtype of an entry that consists of rows of others
CONVOLUTIONS = tuple(f".linear_attn.{name}_conv1d.weight" for name in "qkv")
_PROJECTIONS = tuple(f".linear_attn.{name}_proj.weight" for name in "qkv")


def divided(tensors: Mapping[str, Info]) -> dict[str, Info]:
    """Give each convolution as many rows as the projection before it has, from all three together.

    Args:
        tensors: `TensorInfo` by name.

    Returns:
        `TensorInfo` by name. A convolution whose rows are in other tensors lists them in `parts`.
    """
    found = dict(tensors)
    first, _, _ = CONVOLUTIONS
    for base in [name.removesuffix(first) for name in tensors if name.endswith(first)]:
        convolutions = [tensors.get(base + end) for end in CONVOLUTIONS]
        projections = [tensors.get(base + end) for end in _PROJECTIONS]
        if not all([*convolutions, *projections]):
            continue
        counts = [projection.shape[0] for projection in projections]
        if _are_cut(convolutions, counts):
            pieces = _cut(convolutions, counts)
            found |= {base + end: own for end, own in zip(CONVOLUTIONS, pieces, strict=True)}
    return found


def _are_cut(convolutions: list, counts: list[int]) -> bool:
    """Return whether tensors have these rows together, but not each of them."""
    rows = [info.shape[0] for info in convolutions if len(info.shape) == 3]
    alike = len({(info.shape[1:], info.dtype) for info in convolutions}) == 1
    readable = len(rows) == 3 and alike and convolutions[0].dtype in BYTES
    return readable and rows != counts and sum(rows) == sum(counts)


def _cut(convolutions: list, counts: list[int]) -> list:
    """Return an entry for each number of rows, with its pieces of the tensors as `parts`."""
    pieces, start = [], 0
    _, inner, size = convolutions[0].shape
    each = inner * size * BYTES[convolutions[0].dtype]
    for count in counts:
        parts, before = [], 0
        for info in convolutions:
            low = max(start - before, 0)
            own = min(start + count - before, info.shape[0]) - low
            if own > 0:
                place = info.offset + low * each
                parts.append(dataclasses.replace(info, shape=(own, inner, size), offset=place))
            before += info.shape[0]
        whole = {"shape": (count, inner, size), "dtype": DTYPE, "parts": tuple(parts)}
        pieces.append(dataclasses.replace(convolutions[0], **whole))
        start += count
    return pieces
