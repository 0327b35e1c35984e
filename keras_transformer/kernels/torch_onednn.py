"""Products by oneDNN on PyTorch and a CPU, and when they are fastest. Imported only on PyTorch."""

from collections.abc import Callable

import torch

from keras_transformer.kernels.torch_choices import (
    LARGE,
    MANY,
    choose,
    measured_outputs,
    up_to_power_of_two,
)

# Up to this many rows oneDNN is no slower than `torch.matmul` on any processor.
_FEW_ROWS = 32


def linear(x, weight, bias=None):
    """Return `x @ weight.T + bias` by oneDNN, in any memory order. Has no gradients."""
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")


def by_onednn(left, right, bias=None):
    """Return `left @ right + bias` by oneDNN, with a matrix on the right. Has no gradients."""
    if bias is None and left.ndim == 2 and left.stride(0) == 1 and left.numel() > right.numel():
        # oneDNN's operation transposes its left input in memory, which should be the smaller one.
        return linear(right.t(), left).t()
    return linear(left, right.t(), bias)


def is_fastest(rows: int, matrix: torch.Tensor) -> bool:
    """Return True if oneDNN multiplies rows by a float32 matrix `(in, out)` faster than `torch.mm`.

    This is measured for large matrices. The calls of small products cost more than the products:
    there `suits_rows` decides.
    """
    if matrix.numel() < LARGE:
        return suits_rows(rows)
    by_rows = matrix.stride(-1) == 1
    known = min(up_to_power_of_two(rows), MANY)
    sizes = map(up_to_power_of_two, matrix.shape)
    what = ("float32", known, "rows", *sizes, "by rows" if by_rows else "by columns")
    return choose(what, lambda: _ways(known, matrix.detach())) == "oneDNN"


def _ways(rows: int, matrix: torch.Tensor) -> dict[str, Callable]:
    right = matrix[:, : measured_outputs(*reversed(matrix.shape))]

    def of(multiply: Callable) -> Callable:
        def prepared():
            left = torch.ones(rows, len(right))
            return [lambda: multiply(left, right)]

        return prepared

    ways = {"oneDNN": of(by_onednn), "matmul": of(torch.mm)}
    return ways if suits_rows(rows) else dict(reversed(ways.items()))


def suits_rows(rows: int) -> bool:
    """Return True if oneDNN takes products of this many rows where nothing is measured.

    The library behind `torch.matmul` uses AVX-512 only on Intel's processors. Without AVX-512 it is
    no slower than oneDNN once there are many rows.
    """
    return rows <= _FEW_ROWS or torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def takes_bfloat16() -> bool:
    """Return True if oneDNN has bfloat16 products for this processor."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()
