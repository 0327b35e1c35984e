"""Products of a few rows with int4 matrices on PyTorch and CUDA. See `products`.

PyTorch has such a product for bfloat16, which reads half a byte per number of the matrix, with a
scale and a zero for each group of inputs. Products of many rows, and of matrices with other groups,
are left to Keras, which first converts the matrix to floats.
"""

import functools
import logging

import torch
from torch.nn.functional import pad

from keras_transformer.kernels.torch_int4 import Int4
from keras_transformer.kernels.values import not_traced

# For more rows the product with a matrix of floats is faster.
_MOST_ROWS = 32
# Sizes that the operation supports: inputs of a group, tiles in multiples of 16 inputs, and the
# number of outputs, a multiple of the last.
_GROUPS = (256, 128, 64, 32)
_TILES = (8, 4, 2)
_STEP = 8


def takes(rows: torch.Tensor, matrix: Int4) -> bool:
    """Return True if `product` takes rows `(..., in)`: a few, on a GPU where it passes a test."""
    few = rows.device.type == "cuda" and rows.numel() <= _MOST_ROWS * matrix.inputs
    return (
        few and torch.cuda.is_available() and _works(rows.device) and group_of(matrix) is not None
    )


def product(rows: torch.Tensor, matrix: Int4, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return the product `(..., out)` of rows and a matrix, with a bias `(out,)`.

    It is computed in bfloat16, which rounds less than int4 does, and returned in the dtype of the
    rows.
    """
    group = group_of(matrix)

    def made():
        numbers, scale, zero = matrix.read()
        if zero is None:
            scale, zero = (1 / scale)[None], torch.zeros_like(scale)[None]
        count = matrix.inputs // group
        return _pack(numbers, *(x.float().expand(count, -1) for x in (scale, zero)))

    flat = rows.reshape(-1, matrix.inputs).to(torch.bfloat16).contiguous()
    outputs = _multiply(flat, *matrix.kept("packed", made), group)
    outputs = outputs[:, : matrix.outputs].to(rows.dtype)
    outputs = outputs if bias is None else outputs + bias
    return outputs.reshape(*rows.shape[:-1], matrix.outputs)


def group_of(matrix: Int4) -> int | None:
    """Return the number of inputs per scale; None if the operation does not support the matrix."""
    return matrix.kept("group", lambda: _group_of(matrix))


def _group_of(matrix: Int4) -> int | None:
    if matrix.inputs % (_TILES[-1] * 16):
        return None
    groups = matrix.groups()
    if groups is None:
        return next((size for size in _GROUPS if matrix.inputs % size == 0), None)
    places = torch.arange(matrix.inputs, device=groups.device)
    for size in _GROUPS:
        if matrix.inputs % size == 0 and torch.equal(groups.long(), places // size):
            return size
    return None


def _pack(numbers, scale, zero) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the matrix packed for the operation, and scales and zeros, `(groups, out, 2)`.

    Args:
        numbers: int8 `(in, out)`, from -8 to 7.
        scale: float32 `(groups, out)`.
        zero: float32 `(groups, out)`; the matrix is `(numbers - zero) * scale`.
    """
    missing = -numbers.shape[1] % _STEP
    numbers = pad(numbers.t().int() + 8, (0, 0, 0, missing)).contiguous()  # from 0 to 15
    # The operation subtracts 8 from a number before it multiplies.
    scales = pad(torch.stack([scale, -zero.float() * scale], dim=-1), (0, 0, 0, missing))
    tiles = next(each for each in _TILES if numbers.shape[1] % (each * 16) == 0)
    if numbers.device.type == "cpu":  # the operation of the CPU takes the same scales
        packed = torch._convert_weight_to_int4pack_for_cpu(numbers, tiles)
    else:
        pairs = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8)
        packed = torch._convert_weight_to_int4pack(pairs, tiles)
    return packed, scales.to(torch.bfloat16).contiguous()


def _multiply(rows, packed, scales, group: int) -> torch.Tensor:
    on_host = rows.device.type == "cpu"
    multiply = torch._weight_int4pack_mm_for_cpu if on_host else torch._weight_int4pack_mm
    return multiply(rows, packed, group, scales)


@functools.cache
def _works(device: torch.device) -> bool:
    """Return True if a device has products of int4 that give correct results."""
    with not_traced(), torch.inference_mode(False), torch.no_grad():
        numbers = (torch.arange(256 * 16, device=device) * 7 % 16 - 8).reshape(256, 16)
        scale = torch.linspace(0.5, 2.0, 2 * 16, device=device).reshape(2, 16)
        zero = torch.linspace(-3.0, 4.0, 2 * 16, device=device).reshape(2, 16).round()
        rows = torch.linspace(-1.0, 1.0, 3 * 256, device=device).reshape(3, 256)
        try:
            found = _multiply(rows.to(torch.bfloat16), *_pack(numbers, scale, zero), 128)
        except RuntimeError as error:  # the error of an unsupported GPU may be of any kind
            logging.getLogger("keras_transformer").info("No products of int4 on a GPU: %s", error)
            return False
        scale, zero = (x.repeat_interleave(128, dim=0) for x in (scale, zero))
        expected = rows.double() @ ((numbers - zero) * scale).double()
        return bool((found - expected).abs().max() < 0.01 * expected.abs().max())
