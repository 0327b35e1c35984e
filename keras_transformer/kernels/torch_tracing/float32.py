"""Packed float32 matrices on PyTorch and a CPU, and their products by oneDNN or MKL.

Both libraries have a memory order of their own, in which a product of few rows is up to twice as
fast. Which library is faster depends on the processor and on the matrix, so it is measured.
"""

import dataclasses
import functools
from collections.abc import Callable

import torch

from keras_transformer.kernels.torch_choices import LARGE, choose, has_mkl, measured_outputs

# Numbers of rows that are measured: of a step, of a step of a batch, and of a prompt. A matrix is
# packed for one library, since another copy would take as much memory as the weights.
_ROWS = (1, 16, 128)


@dataclasses.dataclass(frozen=True, eq=False)
class _OfOneDNN:
    """Matrix in oneDNN's own memory order. It may also be bfloat16."""

    weight: torch.Tensor

    @classmethod
    def pack(cls, weight: torch.Tensor) -> "_OfOneDNN":
        return cls(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None))

    def multiply(self, call: Callable, rows, count: int, bias, part: Callable):
        product = torch.ops.mkldnn._linear_pointwise.default
        return call(product, (rows, part("weight"), bias, "none", [], ""))


@dataclasses.dataclass(frozen=True, eq=False)
class _OfMKL:
    """Matrix in MKL's own memory order."""

    weight: torch.Tensor
    sizes: torch.Tensor  # without memory of its own, in the shape of the matrix

    @classmethod
    def pack(cls, weight: torch.Tensor) -> "_OfMKL":
        # The order depends little on the number of rows: one matrix serves any number.
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), 512)
        return cls(packed, torch.zeros(1).expand(weight.shape))

    def multiply(self, call: Callable, rows, count: int, bias, part: Callable):
        product = torch.ops.mkl._mkl_linear.default
        return call(product, (rows, part("weight"), part("sizes"), bias, count))


Float32Matrix = _OfOneDNN | _OfMKL


def pack(weight: torch.Tensor) -> Float32Matrix:
    """Pack a float32 or bfloat16 matrix `(out, in)` for the library that is fastest with it."""
    if weight.dtype != torch.float32 or weight.numel() < LARGE or not has_mkl():
        return _OfOneDNN.pack(weight)
    kinds = {"oneDNN": _OfOneDNN, "MKL": _OfMKL}
    what = ("packed float32", *reversed(weight.shape))
    chosen = choose(what, lambda: {name: _way(kind, weight) for name, kind in kinds.items()})
    return kinds[chosen].pack(weight)


def _way(kind: type[Float32Matrix], weight: torch.Tensor) -> Callable:
    def prepared():
        matrix = kind.pack(weight[: measured_outputs(*weight.shape)])
        given = [torch.ones(count, weight.shape[1], device="cpu") for count in _ROWS]
        return [functools.partial(multiply, matrix, rows) for rows in given]

    return prepared


def multiply(matrix: Float32Matrix, rows: torch.Tensor, bias=None) -> torch.Tensor:
    """Return the product of rows `(rows, in)` with a matrix, plus a bias of `(out,)` or None."""
    return matrix.multiply(
        lambda of, given: of(*given), rows, len(rows), bias, lambda name: getattr(matrix, name)
    )
