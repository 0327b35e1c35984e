"""bitsandbytes: NF4 and FP4 numbers of 4 bits in blocks, and int8 with a scale for each output.

Sources: Dettmers et al. 2023, "QLoRA", https://arxiv.org/abs/2305.14314, for NF4 and the scales
that are quantized themselves; Dettmers et al. 2022, "LLM.int8()", https://arxiv.org/abs/2208.07339.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.checkpoints.quantized.matrix import Parts, Stored
from keras_transformer.checkpoints.quantized.scaled import ScaledMatrix
from keras_transformer.checkpoints.quantized.scheme import Scheme
from keras_transformer.checkpoints.weights.safetensors_io import (
    QuantizedTensor,
    Tensors,
    check_finite,
)
from keras_transformer.support.checking import shorten
from keras_transformer.support.files import parse_json

_STATE = ".weight.quant_state.bitsandbytes__"
_KINDS = ("nf4", "fp4")
_MOST_STATE = 4096  # bytes of a matrix's JSON; published ones have 150
_AT_ONCE = 2**17  # bytes unpacked at once
_FLOAT = ("F32",)
_LARGEST = float(np.finfo("float32").max)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockMatrix(QuantizedTensor):
    """Numbers of 4 bits, each an entry of a table times the largest of its block.

    Blocks follow each other in the order of the numbers, across outputs.
    """

    name: str
    numbers: Stored
    table: Stored
    scales: Stored
    block: int
    nested: "Nested | None" = None

    def read_scales(self) -> np.ndarray:
        """Return the scale of each block, float32."""
        return self.scales.read_scales() if self.nested is None else self.nested.of(self.scales)

    def check(self) -> None:
        """Read the table and the scales, and raise ValueError if one is not possible."""
        self._table()
        self.read_scales()

    def _table(self) -> np.ndarray:
        table = self.table.read()
        check_finite(table, self.table.name, self.path)
        return table

    def read(self) -> np.ndarray:
        """Return the matrix as float32, computed a few numbers at a time."""
        table, scales = self._table(), self.read_scales()
        stored = self.numbers.read().reshape(-1)
        matrix = np.empty(self.shape, "float32")
        flat = matrix.reshape(-1)
        step = max(1, _AT_ONCE // self.block) * self.block  # bytes: whole blocks
        for start in range(0, stored.size, step):
            part = stored[start : start + step]
            first, stop = 2 * start, 2 * (start + part.size)
            flat[first:stop:2], flat[first + 1 : stop : 2] = table[part >> 4], table[part & 15]
            blocks = scales[first // self.block : -(-stop // self.block)]
            flat[first:stop] *= np.repeat(blocks, self.block)[: stop - first]
        check_finite(matrix, self.name, self.path)
        return matrix


@dataclasses.dataclass(frozen=True)
class Nested:
    """Quantized scales: entries of a table, times a scale for each block, plus a mean."""

    table: Stored
    scales: Stored
    block: int
    mean: float

    def of(self, scales: Stored) -> np.ndarray:
        """Return the scales as float32."""
        table = self.table.read()
        check_finite(table, self.table.name, self.table.info.path)
        largest = np.repeat(self.scales.read_scales(), self.block)[: math.prod(scales.shape)]
        return table[scales.read()] * largest + np.float32(self.mean)


@dataclasses.dataclass(frozen=True)
class BitsAndBytes(Scheme):
    """Values of a bitsandbytes config: 4 or 8 bits. Each matrix states the rest."""

    bits: int

    @classmethod
    def read(cls, values: Mapping[str, Any], skipped: tuple[str, ...]) -> "BitsAndBytes":
        four, eight = (
            bool(values.get(f"load_in_{bits}bit") or values.get(f"_load_in_{bits}bit"))
            for bits in (4, 8)
        )
        if four == eight:
            raise ValueError("one of 'load_in_4bit' and 'load_in_8bit' must be true, not both.")
        return cls(skipped, 4 if four else 8)

    @property
    def name(self) -> str:
        return "bitsandbytes, 4 bits" if self.bits == 4 else "bitsandbytes, int8"

    def gather(self, tensors: Tensors) -> dict[str, Any]:
        parts = Parts(tensors, self.name)
        if self.bits == 8:
            for module in parts.modules(".SCB"):
                parts.put(_int8(parts, module))
            return parts.left
        for kind in _KINDS:
            for module in parts.modules(_STATE + kind):
                parts.put(_four_bits(parts, module, kind))
        return parts.left


def _int8(parts: Parts, module: str) -> ScaledMatrix:
    scales = parts.take(f"{module}.SCB")
    numbers = parts.needed(f"{module}.weight", scales)
    numbers.check_matrix()
    numbers.check(numbers.shape, ("I8",), "two axes")
    outputs, inputs = numbers.shape
    scales.check((outputs,), _FLOAT, f"{outputs} outputs")
    order = parts.take(f"{module}.weight_format")
    if order is not None:
        order.check((), ("U8",), "one number")
        if order.read().item() != 0:
            raise order.refuse(
                "names an order of the numbers other than by rows, which is not read"
            )
    more = {"scales": scales, "block": (1, inputs), "factor": 1 / 127}
    return ScaledMatrix.of(f"{module}.weight", numbers.shape, numbers, **more)


def _four_bits(parts: Parts, module: str, kind: str) -> BlockMatrix:
    name = f"{module}.weight"
    state = parts.take(f"{module}{_STATE}{kind}")
    numbers, table, scales = (
        parts.needed(each, state) for each in (name, f"{name}.quant_map", f"{name}.absmax")
    )
    values = _read_state(state)
    shape = values.get("shape")
    right = isinstance(shape, list) and len(shape) == 2
    if not right or not all(type(size) is int and size > 0 for size in shape):
        raise state.refuse("does not state the 'shape' of a matrix")
    block = _block(state, values, "blocksize")
    count = math.prod(shape)
    numbers.check((-(-count // 2), 1), ("U8",), f"{shape[0]} x {shape[1]} numbers of 4 bits")
    if count % 2:
        raise state.refuse(f"states the shape {shape}, of an odd number of numbers")
    table.check((16,), _FLOAT, "4 bits")
    blocks = -(-count // block)
    nested = None
    if values.get("nested_blocksize") is not None or scales.info.dtype == "U8":
        nested = _nested(parts, name, state, values, blocks)
    why = f"blocks of {block}"
    scales.check((blocks,), _FLOAT if nested is None else ("U8",), why)
    return BlockMatrix(
        shape=tuple(shape),
        dtype=kind.upper(),
        path=numbers.info.path,
        offset=numbers.info.offset,
        name=name,
        numbers=numbers,
        table=table,
        scales=scales,
        block=block,
        nested=nested,
    )


def _nested(parts: Parts, name: str, state: Stored, values: Mapping[str, Any], count: int):
    table, scales = (
        parts.needed(f"{name}.{each}", state) for each in ("nested_quant_map", "nested_absmax")
    )
    block = _block(state, values, "nested_blocksize")
    table.check((256,), _FLOAT, "8 bits")
    scales.check((-(-count // block),), _FLOAT, f"blocks of {block}")
    mean = values.get("nested_offset")
    if type(mean) not in (int, float) or not abs(mean) < _LARGEST:
        raise state.refuse("does not state the 'nested_offset'")
    return Nested(table, scales, block, float(mean))


def _read_state(state: Stored) -> dict[str, Any]:
    shape = state.shape
    if state.info.dtype != "U8" or len(shape) != 1 or shape[0] > _MOST_STATE:
        raise state.refuse(f"must be up to {_MOST_STATE} bytes of JSON")
    try:
        values = parse_json(state.read().tobytes())
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise state.refuse("is not a JSON object")
    return values


def _block(state: Stored, values: Mapping[str, Any], name: str) -> int:
    block = values.get(name)
    if type(block) is not int or not 2 <= block <= 2**16 or block % 2:
        raise state.refuse(f"states the {name!r} {shorten(block)}, not an even number up to 65536")
    return block
