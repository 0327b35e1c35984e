"""Products of int8 on PyTorch and a GPU. Imported only on PyTorch; see `products`.

Rows are quantized dynamically and multiplied in int8, so that a matrix is read at one byte per
number. PyTorch's product for a GPU needs more rows than a decoding step has, sizes that are
multiples of eight and, since CUDA 13, inputs contiguous in memory. Its product of float rows with
int8 (`torch._weight_int8pack_mm`) is not used: on CUDA it takes only float32, with one thread for
each number of the result.
"""

import functools
import logging

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import pad
from torch.utils.weak import WeakTensorKeyDictionary

from keras_transformer.kernels.values import not_traced

LEVELS = 127  # the largest absolute number of a quantized row
_LEAST_ROWS = 32
_STEP = 8
# For each matrix, its version and a copy with contiguous inputs.
_TURNED = WeakTensorKeyDictionary()


def takes(rows: torch.Tensor) -> bool:
    """Return True if `multiply` takes rows `(..., in)`: on a GPU where it passes a test."""
    suits = rows.device.type == "cuda" and rows.shape[-1] % _STEP == 0
    return suits and torch.cuda.is_available() and _works(rows.device)


def multiply(rows: torch.Tensor, kernel: torch.Tensor, axis: int = 0) -> torch.Tensor:
    """Return the float32 product `(rows, out)` of rows with an int8 matrix.

    Args:
        rows: float32 `(rows, in)`, numbers between -127 and 127, which are rounded.
        kernel: int8 `(in, out)`, or `(out, in)` with `axis=1`.
        axis: int, the axis of the inputs in the kernel.
    """
    count, outputs = rows.shape[0], kernel.shape[1 - axis]
    missing = max(_LEAST_ROWS - count, 0)
    quantized = pad(rows.round().to(torch.int8), (0, 0, 0, missing)).contiguous()
    sums = torch._int_mm(quantized, _by_outputs(kernel, axis).t())
    return sums[:count, :outputs].float()


def _by_outputs(kernel: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the matrix `(out, in)`, contiguous, with zero outputs up to a multiple of eight."""

    def turned():
        matrix = kernel if axis == 1 else kernel.t()
        return pad(matrix, (0, 0, 0, -matrix.shape[0] % _STEP)).contiguous()

    as_it_is = kernel.is_contiguous() if axis == 1 else kernel.t().is_contiguous()
    if as_it_is and kernel.shape[1 - axis] % _STEP == 0:
        return kernel if axis == 1 else kernel.t()
    if isinstance(kernel, FakeTensor):  # an input of a trace, which may be replaced
        return turned()
    version, made = _TURNED.get(kernel, (None, None))
    if version != kernel._version:
        # Made outside of inference mode, so that calls with gradients can use it too.
        with not_traced(), torch.inference_mode(False), torch.no_grad():
            made = turned()
        _TURNED[kernel] = (kernel._version, made)
    return made


@functools.cache
def _works(device: torch.device) -> bool:
    """Return True if a device has products of int8 that give correct results."""
    with not_traced(), torch.inference_mode(False), torch.no_grad():
        rows = (torch.arange(3 * 64, device=device) % 255 - 127.0).reshape(3, 64)
        kernel = (torch.arange(64 * 24, device=device) % 251 - 125).to(torch.int8).reshape(64, 24)
        try:
            found = multiply(rows, kernel)
        except RuntimeError as error:  # the error of an unsupported library may be of any kind
            logging.getLogger("keras_transformer").info("No products of int8 on a GPU: %s", error)
            return False
        return torch.equal(found.double(), rows.double() @ kernel.double())
