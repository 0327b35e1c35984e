"""compressed-tensors: FP8, int8 and packed integers with the config of each group of layers.

The format of LLM Compressor and vLLM, https://github.com/vllm-project/compressed-tensors:
`weight` or `weight_packed`, with `weight_scale`, `weight_zero_point`, `weight_g_idx`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.checkpoints.quantized.matrix import (
    Parts,
    QuantizedMatrix,
    Stored,
    unpack_words,
)
from keras_transformer.checkpoints.quantized.scaled import (
    FLOAT8,
    ScaledMatrix,
    block_of,
    block_shape,
    drop_scales_of_inputs,
)
from keras_transformer.checkpoints.quantized.scheme import (
    FLOAT_SCALES,
    Scheme,
    group_count,
    whole,
)
from keras_transformer.checkpoints.weights.safetensors_io import Tensors
from keras_transformer.support.checking import check_flag, shorten

_FORMATS = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized")
_STRATEGIES = ("tensor", "channel", "group", "block")
_PACKED = ".weight_packed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedMatrix(QuantizedMatrix):
    """Numbers packed along the inputs, in rows of outputs, plus half of their range."""

    bits: int

    def read_scales(self) -> np.ndarray:
        return self.scales.read_scales().reshape(self.shape[0], -1)

    def read_zeros(self) -> np.ndarray | None:
        if self.zeros is None:
            return None
        columns = np.ascontiguousarray(self.zeros.read().T)
        return self._signed(unpack_words(columns, self.bits)[:, : self.shape[0]].T)

    @property
    def layer_dtype(self) -> str | None:
        if self.bits <= 4:
            return "int4"
        # Zeros, if different, and groups have no place in a layer of int8.
        one = len(self.scales.shape) < 2 or self.scales.shape[1] == 1
        return "int8" if one and self.zeros is None else None

    def unpack(self, stored: np.ndarray, start: int, stop: int) -> np.ndarray:
        return self._signed(unpack_words(stored[start:stop], self.bits)[:, : self.shape[1]])

    def _signed(self, numbers: np.ndarray) -> np.ndarray:
        return numbers.astype("int16") - 2 ** (self.bits - 1)


@dataclasses.dataclass(frozen=True)
class CompressedTensors(Scheme):
    """Values of a compressed-tensors config. All groups of layers have the same weights' values."""

    kind: str  # "int" or "float"
    bits: int
    strategy: str
    group_size: int
    block: tuple[int, int] | None
    symmetric: bool

    @classmethod
    def read(cls, values: Mapping[str, Any], skipped: tuple[str, ...]) -> "CompressedTensors":
        groups = values.get("config_groups")
        groups = list(groups.values()) if isinstance(groups, dict) else []
        weights = [each.get("weights") if isinstance(each, dict) else None for each in groups]
        if not weights or not all(isinstance(each, dict) for each in weights):
            raise ValueError(
                "'config_groups' must say how the weights of each group of layers are quantized, "
                f"received {shorten(values.get('config_groups'))}."
            )
        formats = [values.get("format"), *(each.get("format") for each in groups)]
        unread = [each for each in formats if each is not None and each not in _FORMATS]
        sparsity = values.get("sparsity_config")
        sparse = sparsity.get("format", "dense") if isinstance(sparsity, dict) else "dense"
        unread += [] if sparse == "dense" else [sparse]
        if unread:
            raise ValueError(
                f"compressed-tensors of the format {shorten(unread[0])} are not read, only "
                f"{', '.join(map(repr, _FORMATS))}. Take another checkpoint of the model."
            )
        read = [cls._weights(each, skipped) for each in weights]
        if any(each != read[0] for each in read):
            raise ValueError(
                "'config_groups' quantize their weights differently, which is not read. Take a "
                "checkpoint with one kind of weights."
            )
        return read[0]

    @classmethod
    def _weights(cls, values: Mapping[str, Any], skipped: tuple[str, ...]) -> "CompressedTensors":
        kind, strategy = values.get("type", "int"), values.get("strategy", "tensor")
        if kind not in ("int", "float") or strategy not in _STRATEGIES:
            raise ValueError(
                f"weights of type {shorten(kind)} by {shorten(strategy)} are not read, only 'int' "
                f"and 'float' by {', '.join(map(repr, _STRATEGIES))}."
            )
        bits = whole(values, "num_bits", (8,) if kind == "float" else tuple(range(2, 9)), 8)
        size = whole(values, "group_size", default=-1, least=-1) if strategy == "group" else -1
        block = block_shape(values.get("block_structure"), "block_structure")
        if (strategy == "block") != (block is not None):
            raise ValueError(
                "'block_structure' must be given with the strategy 'block', and only then."
            )
        symmetric = check_flag("symmetric", values.get("symmetric", True))
        return cls(skipped, kind, bits, strategy, size, block, symmetric)

    @property
    def name(self) -> str:
        what = "FP8" if self.kind == "float" else f"{self.bits} bits"
        return f"compressed-tensors, {what} by {self.strategy}"

    def gather(self, tensors: Tensors) -> dict[str, Any]:
        parts = Parts(tensors, self.name)
        for module in parts.modules(_PACKED):
            parts.put(self._packed(parts, module))
        kinds = FLOAT8 if self.kind == "float" else ("I8",)
        for name in [name for name, info in parts.left.items() if info.dtype in kinds]:
            if name.endswith(".weight"):
                parts.put(self._scaled(parts, name))
        return parts.left

    def _packed(self, parts: Parts, module: str) -> QuantizedMatrix:
        numbers = parts.take(module + _PACKED)
        if self.kind == "float":
            raise numbers.refuse("is packed, and the config says that the weights are FP8")
        scales, shape = (
            parts.needed(f"{module}.{end}", numbers) for end in ("weight_scale", "weight_shape")
        )
        shape.check((2,), ("I64", "I32"), "two axes")
        outputs, inputs = (int(size) for size in shape.read())
        if outputs < 1 or inputs < 1:
            raise shape.refuse(f"states the shape {(outputs, inputs)}, which no matrix has")
        numbers.check((outputs, -(-inputs * self.bits // 32)), ("I32",), f"{self.bits} bits")
        count = group_count(numbers, inputs, self.group_size)
        by = (1,) if self.strategy == "tensor" else (outputs, count)
        why = f"{outputs} outputs in groups of {self.group_size}"
        scales.check(by, FLOAT_SCALES, why)
        if self.strategy == "block":
            raise numbers.refuse("is packed, and packed numbers in blocks are not read")
        zeros = self._zeros(parts, module, numbers)
        if zeros is not None:
            zeros.check((-(-outputs * self.bits // 32), count), ("I32",), why)
        groups = _groups(parts, module, inputs)
        drop_scales_of_inputs(parts, module)
        return PackedMatrix.of(
            f"{module}.weight",
            (outputs, inputs),
            numbers,
            scales=scales,
            zeros=zeros,
            groups=groups,
            bits=self.bits,
        )

    def _scaled(self, parts: Parts, name: str) -> QuantizedMatrix:
        module = name.removesuffix(".weight")
        numbers = parts.take(name)
        numbers.check_matrix()
        scales = parts.needed(f"{module}.weight_scale", numbers)
        outputs, inputs = numbers.shape
        if self.strategy == "group":
            count = group_count(numbers, inputs, self.group_size)
            scales.check((outputs, count), FLOAT_SCALES, f"groups of {self.group_size}")
            block = (1, self.group_size if self.group_size > 0 else inputs)
        else:
            block = block_of(numbers.shape, scales, self.block)
        zeros = self._zeros(parts, module, numbers)
        if zeros is not None:
            zeros.check(scales.shape, ("I8",), "the scales")
        groups = _groups(parts, module, inputs)
        drop_scales_of_inputs(parts, module)
        more = {"scales": scales, "zeros": zeros, "groups": groups}
        return ScaledMatrix.of(name, numbers.shape, numbers, block=block, **more)

    def _zeros(self, parts: Parts, module: str, numbers: Stored) -> Stored | None:
        name = f"{module}.weight_zero_point"
        zeros = parts.take(name) if self.symmetric else parts.needed(name, numbers)
        return None if self.symmetric else zeros  # a symmetric matrix has zeros of 0


def _groups(parts: Parts, module: str, inputs: int) -> Stored | None:
    groups = parts.take(f"{module}.weight_g_idx")
    if groups is not None:
        groups.check((inputs,), ("I32",), f"{inputs} inputs")
    return groups
