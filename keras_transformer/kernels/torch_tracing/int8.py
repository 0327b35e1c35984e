"""Products of rows with int8 matrices on PyTorch and a CPU, by the fastest library.

On processors with instructions for such products (VNNI) it is oneDNN. Elsewhere it is FBGEMM, which
is two to four times as fast there, even for a single row.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator

import torch
from torch.utils.weak import WeakTensorKeyDictionary

_aten = torch.ops.aten
_VNNI = torch.cpu._is_vnni_supported()
# The largest absolute number of a row. Without VNNI a processor adds products of bytes in pairs, in
# 16 bits: two products of 2 x 63 + 1 and 127 fit, but two of 255 and 127 would be saturated.
LEVELS = 127 if _VNNI else 63
# Both libraries take unsigned rows, in which this number stands for zero.
_ZERO = LEVELS + 1

# For each matrix, the versions that were packed and the result of `pack`.
_PACKED = WeakTensorKeyDictionary()


@dataclasses.dataclass(frozen=True, eq=False)
class _OfOneDNN:
    """Matrix in oneDNN's own memory order."""

    weight: torch.Tensor
    factor: torch.Tensor  # float32 (out,)
    zeros: torch.Tensor  # int32 (out,)

    @classmethod
    def pack(cls, weight: torch.Tensor, factor: torch.Tensor) -> "_OfOneDNN":
        packed = torch.ops.onednn.qlinear_prepack(weight.contiguous(), None)
        return cls(packed, factor, torch.zeros(len(factor), dtype=torch.int32))

    @staticmethod
    def multiply(call: Callable, rows, part: Callable):
        rounded = call(_aten.round.default, (rows,))
        rounded = call(_aten.to.dtype, (rounded, torch.int8))
        unsigned = call(_aten.view.dtype, (rounded, torch.uint8))
        unsigned = call(_aten.add.Tensor, (unsigned, _ZERO))  # modulo 256
        inputs, outputs = (unsigned, 1.0, _ZERO), (None, 1.0, 0, torch.float32, "none", [], "")
        given = (*inputs, part("weight"), part("factor"), part("zeros"), *outputs)
        return call(torch.ops.onednn.qlinear_pointwise.default, given)


@dataclasses.dataclass(frozen=True, eq=False)
class _OfFBGEMM:
    """Matrix packed for FBGEMM, with the factors of its products."""

    matrix: torch.ScriptObject

    @classmethod
    def pack(cls, weight: torch.Tensor, factor: torch.Tensor) -> "_OfFBGEMM":
        zeros = torch.zeros(len(factor), dtype=torch.long)
        make = torch._make_per_channel_quantized_tensor
        with _for_fbgemm():
            quantized = make(weight.contiguous(), factor.double(), zeros, 0)
            return cls(torch.ops.quantized.linear_prepack(quantized, None))

    @staticmethod
    def multiply(call: Callable, rows, part: Callable):
        # This product rounds the rows itself, as the one by oneDNN does.
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        return call(product, (rows, 1.0, _ZERO, part("matrix")))


Int8Matrix = _OfOneDNN | _OfFBGEMM


def _has_fbgemm() -> bool:
    product = "linear_with_input_q_dq_qweight_dq_output_fp32"
    return (
        "fbgemm" in torch.backends.quantized.supported_engines
        and hasattr(torch, "_make_per_channel_quantized_tensor")
        and hasattr(torch.ops.quantized, product)
    )


_KIND = _OfFBGEMM if not _VNNI and _has_fbgemm() else _OfOneDNN


def pack(weight: torch.Tensor, scale: torch.Tensor) -> Int8Matrix:
    """Pack a matrix `(out, in)` whose products are divided by `scale`."""
    return _KIND.pack(weight.detach(), 1 / scale.detach().float())


def packed_once(weight: torch.Tensor, scale: torch.Tensor) -> Int8Matrix:
    """Pack a matrix `(in, out)` as `pack` does, but only once as long as it does not change."""
    key = weight if weight._base is None else weight._base
    of = (weight._version, scale._version, weight.shape)
    kept, matrix = _PACKED.get(key, (None, None))
    if kept != of:
        matrix = pack(weight.t(), scale)
        _PACKED[key] = (of, matrix)
    return matrix


def multiply(matrix: Int8Matrix, rows: torch.Tensor) -> torch.Tensor:
    """Return the product of float32 rows with a matrix, in float32.

    The rows are rounded. Their numbers must be between `-LEVELS` and `LEVELS`.
    """
    return matrix.multiply(lambda of, given: of(*given), rows, lambda name: getattr(matrix, name))


@contextlib.contextmanager
def _for_fbgemm() -> Iterator[None]:
    """Pack for FBGEMM within the scope; PyTorch's quantized engine is a setting of the process."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with warnings.catch_warnings():
            # PyTorch warns that it may remove quantized tensors. Without them oneDNN is used.
            warnings.filterwarnings("ignore", message=".*quantized tensor creation functions")
            yield
    finally:
        torch.backends.quantized.engine = before
