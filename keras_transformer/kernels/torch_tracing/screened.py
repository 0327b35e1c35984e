"""Products of which the largest number of each row is exact, for half of the bytes of the matrix.

The likeliest token is the largest of a product with the output matrix, of a small model a third of
all that a step reads. Here the matrix is read in float16, and what may be the largest, as far as
that rounds, is multiplied again in float32. So the largest is what it is without this.

By the inequality of Cauchy and Schwarz the product of a row x with a rounded vector w' is off by at
most |x| |w - w'|, whatever the numbers are.
"""

import dataclasses

import torch

# Of more rows the whole product is no slower, and smaller matrices lie in the caches.
MOST_ROWS = 8
LEAST_NUMBERS = 2**23
# If more of the numbers than this share may be the largest, all are multiplied.
_MOST = 1 / 16
_CHUNK = 4096  # rows of a matrix that are compared with float16 at a time


@torch.library.custom_op("keras_transformer::best_product", mutates_args=())
def best_product(
    rows: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`rows @ matrix.T + bias`, of which the largest number of each row is asked for alone."""
    return torch.nn.functional.linear(rows, matrix, bias)


@best_product.register_fake
def _(rows, matrix, bias):
    return rows.new_empty((rows.shape[0], matrix.shape[0]))


@dataclasses.dataclass(frozen=True, eq=False)
class Screen:
    """A matrix `(out, in)` in float32, and as float16."""

    matrix: torch.Tensor
    rounded: torch.ScriptObject  # as FBGEMM has it
    error: torch.Tensor  # float32 (out,), how far a product with a row of length 1 is off at most

    @classmethod
    def of(cls, matrix: torch.Tensor) -> "Screen | None":
        """None for a matrix with numbers that are none, or beyond those of float16."""
        matrix = matrix.detach()
        least, most = (x.item() for x in torch.aminmax(matrix))
        known = torch.finfo(torch.float16)
        if not (known.min <= least and most <= known.max):
            return None  # Packing would write the largest of float16 into the matrix itself.
        rounded = torch.ops.quantized.linear_prepack_fp16(matrix.contiguous(), None)
        back, _ = torch.ops.quantized.linear_unpack_fp16(rounded)
        # And what sums of so many products in float32 are off, here and where all is multiplied.
        sums = 2 * matrix.shape[1] * torch.finfo(torch.float32).eps
        error = torch.empty(len(matrix))
        for place in range(0, len(matrix), _CHUNK):
            part = matrix[place : place + _CHUNK]
            off = (part - back[place : place + _CHUNK]).norm(dim=1) + sums * part.norm(dim=1)
            error[place : place + _CHUNK] = off
        return cls(matrix, rounded, error)


def multiply(rows: torch.Tensor, screen: Screen, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`rows @ matrix.T + bias`, `(count, out)`: the largest number of each row is exact."""
    found = torch.ops.quantized.linear_dynamic_fp16(rows, screen.rounded)
    if bias is not None:
        found += bias
    length = rows.norm(dim=1, keepdim=True)
    least = torch.addcmul(found, length, screen.error, value=-1).amax(1, keepdim=True)
    may_be = torch.addcmul(found, length, screen.error) >= least
    row, column = torch.nonzero(may_be, as_tuple=True)
    if len(row) > _MOST * found.numel():
        return torch.nn.functional.linear(rows, screen.matrix, bias)
    exact = torch.linalg.vecdot(rows[row], screen.matrix[column])
    found[row, column] = exact if bias is None else exact + bias[column]
    return found


def suits(rows: int, matrix: torch.Tensor) -> bool:
    """Whether it is quicker for so many rows, on this machine."""
    return (
        rows <= MOST_ROWS
        and matrix.numel() >= LEAST_NUMBERS
        and matrix.dtype == torch.float32
        and matrix.device.type == "cpu"
        and "fbgemm" in torch.backends.quantized.supported_engines
        and hasattr(torch.ops.quantized, "linear_unpack_fp16")
    )
