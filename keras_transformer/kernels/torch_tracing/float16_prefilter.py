"""Products in which the largest number of each row is exact, at half the memory traffic.

The most likely token is the argmax of a product with the output matrix, which in a small model is a
third of all that a step reads. Here the matrix is read in float16, and the numbers that may be the
largest, given the rounding error, are recomputed in float32. So the largest number is the same as
without the prefilter.

By the Cauchy-Schwarz inequality, the product of a row x with a rounded vector w' is off by at most
`|x| |w - w'|`, regardless of the numbers.
"""

import dataclasses

import torch

# Limits of use: with more rows the whole product is not slower, and smaller matrices fit in the
# caches.
MOST_ROWS = 8
LEAST_NUMBERS = 2**23
# If more than this share of the numbers may be the largest, all are computed in float32.
_MOST = 1 / 16
_CHUNK = 4096  # rows of a matrix whose rounding errors are computed at a time


@torch.library.custom_op("keras_transformer::best_product", mutates_args=())
def best_product(
    rows: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return `rows @ matrix.T + bias`, of which only the argmax of each row is needed."""
    return torch.nn.functional.linear(rows, matrix, bias)


@best_product.register_fake
def _(rows, matrix, bias):
    return rows.new_empty((rows.shape[0], matrix.shape[0]))


@dataclasses.dataclass(frozen=True, eq=False)
class Float16Prefilter:
    """Matrix `(out, in)` in float32, and in float16 to find the numbers that may be largest."""

    matrix: torch.Tensor
    rounded: torch.ScriptObject  # packed for FBGEMM
    error: torch.Tensor  # float32 (out,), largest error of a product with a row of length 1

    @classmethod
    def from_matrix(cls, matrix: torch.Tensor) -> "Float16Prefilter | None":
        """Round a matrix to float16; return None if it has numbers that exceed float16."""
        matrix = matrix.detach()
        least, most = (x.item() for x in torch.aminmax(matrix))
        known = torch.finfo(torch.float16)
        if not (known.min <= least and most <= known.max):
            return None  # Packing would write the largest float16 number into the matrix itself.
        rounded = torch.ops.quantized.linear_prepack_fp16(matrix.contiguous(), None)
        back, _ = torch.ops.quantized.linear_unpack_fp16(rounded)
        # The error includes the float32 rounding of the sums, here and in the whole product.
        sums = 2 * matrix.shape[1] * torch.finfo(torch.float32).eps
        error = torch.empty(len(matrix))
        for place in range(0, len(matrix), _CHUNK):
            part = matrix[place : place + _CHUNK]
            off = (part - back[place : place + _CHUNK]).norm(dim=1) + sums * part.norm(dim=1)
            error[place : place + _CHUNK] = off
        return cls(matrix, rounded, error)


def multiply(
    rows: torch.Tensor, prefilter: Float16Prefilter, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `rows @ matrix.T + bias`, `(count, out)`, with each row's largest number exact."""
    found = torch.ops.quantized.linear_dynamic_fp16(rows, prefilter.rounded)
    if bias is not None:
        found += bias
    length = rows.norm(dim=1, keepdim=True)
    least = torch.addcmul(found, length, prefilter.error, value=-1).amax(1, keepdim=True)
    may_be = torch.addcmul(found, length, prefilter.error) >= least
    row, column = torch.nonzero(may_be, as_tuple=True)
    if len(row) > _MOST * found.numel():
        return torch.nn.functional.linear(rows, prefilter.matrix, bias)
    exact = torch.linalg.vecdot(rows[row], prefilter.matrix[column])
    found[row, column] = exact if bias is None else exact + bias[column]
    return found


def suits(rows: int, matrix: torch.Tensor) -> bool:
    """Return True if the prefilter is faster for this number of rows, on this machine."""
    return (
        rows <= MOST_ROWS
        and matrix.numel() >= LEAST_NUMBERS
        and matrix.dtype == torch.float32
        and matrix.device.type == "cpu"
        and "fbgemm" in torch.backends.quantized.supported_engines
        and hasattr(torch.ops.quantized, "linear_unpack_fp16")
    )
