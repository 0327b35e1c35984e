"""Products of rows with int8 matrices on PyTorch and a CPU, by the fastest library.

FBGEMM is two to four times as fast as oneDNN for a single row. For many rows oneDNN is up to twice
as fast on processors with instructions for such products (VNNI). So large matrices are measured,
for each number of rows, and a matrix is packed for each library that is used with it. Both sum
integers, so results differ only where a number of a row lies halfway between two integers.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from keras_transformer.kernels.torch_choices import (
    LARGE,
    MANY,
    choose,
    measured_outputs,
    up_to_power_of_two,
)

_aten = torch.ops.aten
_VNNI = torch.cpu._is_vnni_supported()
# The largest absolute number of a row. Without VNNI a processor adds products of bytes in pairs, in
# 16 bits: two products of 2 x 63 + 1 and 127 fit, but two of 255 and 127 would be saturated.
LEVELS = 127 if _VNNI else 63
# Both libraries take unsigned rows, in which this number stands for zero.
_ZERO = LEVELS + 1

# For each matrix, the versions that were packed, and the results of `pack` by class.
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
        # This product rounds the rows itself, and halves in another direction than oneDNN's.
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


# The kind of matrices that are not measured.
_KIND = _OfFBGEMM if not _VNNI and _has_fbgemm() else _OfOneDNN


def fastest_kind(rows: int, outputs: int, inputs: int) -> type[Int8Matrix]:
    """Return the class of packed matrices `(outputs, inputs)` that multiplies rows fastest."""
    if outputs * inputs < LARGE or not _has_fbgemm():
        return _KIND
    known = min(up_to_power_of_two(rows), MANY)
    chosen = choose(("int8", known, "rows", inputs, outputs), lambda: _ways(known, outputs, inputs))
    return next(kind for kind in (_OfOneDNN, _OfFBGEMM) if kind.__name__ == chosen)


def _ways(rows: int, outputs: int, inputs: int) -> dict[str, Callable]:
    outputs = measured_outputs(outputs, inputs)

    def of(kind: type[Int8Matrix]) -> Callable:
        def prepared():
            weight = torch.ones(outputs, inputs, dtype=torch.int8, device="cpu")
            factor = torch.ones(outputs, device="cpu")
            matrix, given = kind.pack(weight, factor), torch.ones(rows, inputs, device="cpu")
            return [lambda: multiply(matrix, given)]

        return prepared

    kinds = sorted((_OfOneDNN, _OfFBGEMM), key=lambda kind: kind is not _KIND)
    return {kind.__name__: of(kind) for kind in kinds}


def pack(kind: type[Int8Matrix], weight: torch.Tensor, scale: torch.Tensor) -> Int8Matrix:
    """Pack a matrix `(out, in)` whose products are divided by `scale`."""
    return kind.pack(weight.detach(), 1 / scale.detach().float())


def packed_once(rows: int, weight: torch.Tensor, scale: torch.Tensor) -> Int8Matrix:
    """Pack a matrix `(in, out)` for a number of rows, once as long as it does not change."""
    key = weight if weight._base is None else weight._base
    of = (weight._version, scale._version, weight.shape)
    kept, matrices = _PACKED.get(key, (None, {}))
    if kept != of:
        matrices = {}
        _PACKED[key] = (of, matrices)
    kind = fastest_kind(rows, *reversed(weight.shape))
    if kind not in matrices:
        matrices[kind] = pack(kind, weight.t(), scale)
    return matrices[kind]


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
