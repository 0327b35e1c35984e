"""A quantized matrix of a checkpoint: the tensors that it is computed from, checked and read."""

import abc
import dataclasses
import math
from typing import Any

import numpy as np

from keras_transformer.checkpoints.weights.safetensors_io import (
    FLOATS,
    QuantizedTensor,
    TensorInfo,
    Tensors,
    bfloat16_to_float32,
    check_finite,
    read_numbers,
)

_AT_ONCE = 2**18  # numbers unpacked at once, which take several times their memory
_WHOLE = 32  # outputs unpacked together: packed numbers of any width fill whole words
_BYTES = {
    "U8": "u1", "I8": "i1", "I32": "<u4", "I64": "<i8", "F8_E4M3": "u1", "F8_E5M2": "u1",
    "F8_E8M0": "u1",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Stored:
    """One of the tensors of a matrix, with its name in the file."""

    name: str
    info: TensorInfo

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the stored tensor."""
        return self.info.shape

    def read(self) -> np.ndarray:
        """Return the numbers: floats as float32, packed words of 32 bits as uint32."""
        kind = self.info.dtype
        array = read_numbers(self.info, self.name, FLOATS.get(kind) or _BYTES[kind])
        array = array.reshape(self.shape)
        if kind == "BF16":
            return bfloat16_to_float32(array)
        if kind == "F8_E8M0":  # exponents alone, plus 127
            return np.ldexp(np.float32(1), array.astype("int32") - 127)
        return array.astype("float32") if kind in FLOATS else array

    def read_scales(self) -> np.ndarray:
        """Return scales as float32. Raises ValueError if one is negative, infinite or NaN."""
        array = self.read().astype("float32", copy=False)
        check_finite(array, self.name, self.info.path)
        if array.size and array.min() < 0:
            raise ValueError(
                f"The tensor {self.name!r} of {self.info.path} holds the negative scale "
                f"{array.min()}; the scales of a quantized matrix are positive. Download the file "
                "again, or quantize the model again."
            )
        return array

    def refuse(self, fault: str) -> ValueError:
        """Return the error for a tensor that does not fit the others or the config."""
        return ValueError(
            f"The tensor {self.name!r} of {self.info.path} {fault}. Use the config that belongs to "
            "this file, or quantize the model again."
        )

    def check_matrix(self) -> None:
        """Raise ValueError unless the tensor has two axes, neither of them empty."""
        if len(self.shape) != 2 or 0 in self.shape:
            raise self.refuse(f"has the shape {self.shape}, and only matrices are read")

    def check(self, shape: tuple[int, ...], kinds: tuple[str, ...], why: str) -> None:
        """Raise ValueError if the tensor has another shape, or is not of these stored types."""
        if self.info.dtype not in kinds:
            raise self.refuse(f"is stored as {self.info.dtype}, not {' or '.join(kinds)}")
        if self.shape != shape:
            raise self.refuse(f"has the shape {self.shape}; {why} make it {shape}")


class Parts:
    """Tensors of a file, taken out one by one as they are gathered to matrices.

    Args:
        tensors: `TensorInfo` by name.
        scheme: name of the scheme, for messages.
    """

    def __init__(self, tensors: Tensors, scheme: str):
        self.left, self._scheme = dict(tensors), scheme

    def modules(self, end: str) -> list[str]:
        """Return the names, without this ending, of the tensors that have it."""
        return [name.removesuffix(end) for name in self.left if name.endswith(end)]

    def take(self, name: str) -> Stored | None:
        """Remove and return a tensor; None if the name is not there."""
        info = self.left.pop(name, None)
        return None if info is None else Stored(name, info)

    def needed(self, name: str, of: Stored) -> Stored:
        """Remove and return a tensor. Raises ValueError if it is missing."""
        found = self.take(name)
        if found is None:
            raise ValueError(
                f"{of.info.path} has {of.name!r}, but not {name!r}, which {self._scheme} needs "
                "beside it. Download or save it again."
            )
        return found

    def put(self, matrix: "QuantizedMatrix") -> None:
        """Add a gathered matrix. Raises ValueError if the file has it unquantized too."""
        if matrix.name in self.left:
            raise ValueError(
                f"{matrix.path} holds {matrix.name!r} and the same matrix quantized by "
                f"{self._scheme}. Download or save it again."
            )
        self.left[matrix.name] = matrix


@dataclasses.dataclass(frozen=True)
class IntegerMatrix:
    """The integers of a matrix `(numbers - zeros) * scales`, as layers of int4 and int8 hold them.

    Args:
        numbers: int8 `(outputs, inputs)`.
        scales: float32 `(outputs, groups)`.
        zeros: int8 `(outputs, groups)`.
        groups: int `(inputs,)`, the group of each input.
    """

    numbers: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    groups: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizedMatrix(QuantizedTensor, abc.ABC):
    """Matrix `(outputs, inputs)` of `(numbers - zeros) * scales`.

    Each output has a scale, and possibly a zero, for each group of inputs.
    """

    name: str
    numbers: Stored
    scales: Stored
    zeros: Stored | None = None
    groups: Stored | None = None  # the group of each input, if they are not in order

    @classmethod
    def of(cls, name: str, shape: tuple[int, int], numbers: Stored, **parts: Any):
        """Return the matrix of a name and shape whose numbers are in one tensor of a file."""
        where = {"path": numbers.info.path, "offset": numbers.info.offset}
        kind = cls.__name__.removesuffix("Matrix")
        return cls(shape=shape, dtype=kind, name=name, numbers=numbers, **where, **parts)

    @abc.abstractmethod
    def read_scales(self) -> np.ndarray:
        """Return the scales, float32 `(outputs, groups)`."""

    def read_zeros(self) -> np.ndarray | None:
        """Return the zeros, `(outputs, groups)`; None without."""
        return None

    @abc.abstractmethod
    def unpack(self, stored: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return the numbers of outputs `start` to `stop`, `(outputs, inputs)`."""

    def read_groups(self, count: int) -> np.ndarray:
        """Return the group of each input, int `(inputs,)`; there are `count` groups."""
        inputs = self.shape[1]
        if self.groups is None:
            return np.arange(inputs) // -(-inputs // count)
        found = self.groups.read().astype("int64")
        found = np.where(found >= 2**31, found - 2**32, found)  # read without a sign
        wrong = found[(found < 0) | (found >= count)]
        if wrong.size:
            raise self.groups.refuse(f"names the group {wrong[0]}, but there are {count}")
        return found

    @property
    def layer_dtype(self) -> str | None:
        """The dtype of a layer that holds these numbers exactly: `"int4"`, `"int8"` or None."""
        return None

    @property
    def groups_of_inputs(self) -> int:
        """The number of groups that the inputs of an output are in."""
        return math.prod(self.scales.shape) // self.shape[0] or 1

    @property
    def offset_of_numbers(self) -> int:
        """Offset that makes numbers and zeros signed when it is subtracted."""
        return 0

    def read_integers(self) -> IntegerMatrix:
        """Return the numbers as integers, of a matrix with a `layer_dtype`."""
        scales, zeros = self.read_scales(), self.read_zeros()
        less = self.offset_of_numbers
        stored = self.numbers.read()
        numbers = np.empty(self.shape, "int8")
        for start, stop in self.spans():
            numbers[start:stop] = self.unpack(stored, start, stop).astype("int16") - less
        signed = np.zeros(scales.shape, "int8")
        if zeros is not None:
            signed[...] = zeros.astype("int16") - less
        return IntegerMatrix(numbers, scales, signed, self.read_groups(scales.shape[1]))

    def check(self) -> None:
        """Read the scales and groups, and raise ValueError if one is not possible."""
        self.read_groups(self.read_scales().shape[1])

    def read(self) -> np.ndarray:
        """Return the matrix as float32, computed a few outputs at a time."""
        scales, zeros = self.read_scales(), self.read_zeros()
        groups = self.read_groups(scales.shape[1])
        stored = self.numbers.read()
        matrix = np.empty(self.shape, "float32")
        for start, stop in self.spans():
            part = matrix[start:stop]
            part[...] = self.unpack(stored, start, stop)
            if zeros is not None:
                part -= zeros[start:stop].astype("float32")[:, groups]
            part *= scales[start:stop][:, groups]
        check_finite(matrix, self.name, self.path)
        return matrix

    def spans(self) -> list[tuple[int, int]]:
        """Return the first output of each part that is unpacked at once, and of the next part."""
        outputs, inputs = self.shape
        step = max(1, _AT_ONCE // max(1, inputs) // _WHOLE) * _WHOLE
        return [(start, min(start + step, outputs)) for start in range(0, outputs, step)]


def unpack_words(words: np.ndarray, bits: int) -> np.ndarray:
    """Unpack the last axis of words of 32 bits to numbers of `bits` bits, the lowest bits first.

    Numbers of 3, 5, 6 or 7 bits may begin in one word and end in the next.

    Args:
        words: uint32 `(..., words)`.
        bits: int, 1 to 8.

    Returns:
        uint8 `(..., words * 32 // bits)`.
    """
    count = words.shape[-1] * 32 // bits
    starts = np.arange(count) * bits
    place, shift = starts // 32, (starts % 32).astype("uint32")
    numbers = (words[..., place] >> shift).astype("uint8")
    over = np.flatnonzero(shift + bits > 32)
    if over.size:
        rest = words[..., place[over] + 1] << (32 - shift[over])
        numbers[..., over] |= rest.astype("uint8")
    numbers &= 2**bits - 1
    return numbers
