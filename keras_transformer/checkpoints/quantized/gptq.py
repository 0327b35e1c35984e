"""GPTQ: integers of 2, 3, 4 or 8 bits, packed along the inputs of each output.

Source: Frantar et al. 2022, "GPTQ", https://arxiv.org/abs/2210.17323. AutoGPTQ and GPTQModel
write `qweight` (packed inputs, outputs), `qzeros` (groups, packed outputs), `scales` (groups,
outputs) and `g_idx`, the group of each input. Version 1 stores zeros less one.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.checkpoints.quantized.matrix import (
    Parts,
    QuantizedMatrix,
    unpack_words,
)
from keras_transformer.checkpoints.quantized.scheme import (
    FLOAT_SCALES,
    Scheme,
    group_count,
    whole,
)
from keras_transformer.checkpoints.weights.safetensors_io import Tensors
from keras_transformer.support.checking import check_flag, shorten

_BITS = (2, 3, 4, 8)
_FORMATS = {"gptq": 1, "gptq_v2": 0}  # what is added to the stored zeros


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPTQMatrix(QuantizedMatrix):
    """Numbers packed along the inputs."""

    bits: int
    added: int  # to the zeros
    symmetric: bool

    def read_scales(self) -> np.ndarray:
        return self.scales.read_scales().T

    def read_zeros(self) -> np.ndarray:
        found = unpack_words(self.zeros.read(), self.bits)[:, : self.shape[0]].T
        if not self.symmetric:
            return found.astype("int16") + self.added
        # Some writers of version 2 call it version 1. All zeros are half of the range in both.
        half = 2 ** (self.bits - 1)
        if np.unique(found).tolist() not in ([half - 1], [half]):
            raise self.zeros.refuse("has different zeros, and the config says 'sym'")
        return np.full(found.shape, half, "int16")

    def check(self) -> None:
        super().check()
        self.read_zeros()

    @property
    def layer_dtype(self) -> str | None:
        if self.bits <= 4:
            return "int4"
        # Zeros, if different, and groups have no place in a layer of int8.
        return "int8" if self.symmetric and self.scales.shape[0] == 1 else None

    @property
    def offset_of_numbers(self) -> int:
        return 2 ** (self.bits - 1)

    def unpack(self, stored: np.ndarray, start: int, stop: int) -> np.ndarray:
        columns = np.ascontiguousarray(stored[:, start:stop].T)
        return unpack_words(columns, self.bits)[:, : self.shape[1]]


@dataclasses.dataclass(frozen=True)
class GPTQ(Scheme):
    """Values of a GPTQ config."""

    bits: int
    group_size: int  # -1: all inputs of an output
    added: int
    symmetric: bool

    @classmethod
    def read(cls, values: Mapping[str, Any], skipped: tuple[str, ...]) -> "GPTQ":
        bits = whole(values, "bits", _BITS)
        stored_as = values.get("checkpoint_format") or "gptq"
        if values.get("is_marlin_format"):
            stored_as = "marlin"
        if not isinstance(stored_as, str) or stored_as not in _FORMATS:
            raise ValueError(
                f"a GPTQ checkpoint of the format {shorten(stored_as)} is not read, only "
                f"{' and '.join(map(repr, _FORMATS))}. Take a checkpoint of the model in one of "
                "these, or one that is not quantized."
            )
        dynamic = values.get("dynamic") or {}
        if not isinstance(dynamic, Mapping):
            raise ValueError(f"'dynamic' must be an object, received {shorten(dynamic)}.")
        if any(not key.startswith("-:") for key in dynamic):
            raise ValueError(
                "'dynamic' gives layers other bits or groups than the rest, which is not read. "
                "Take a checkpoint with one number of bits, or one that is not quantized."
            )
        size = whole(values, "group_size", default=-1, least=-1)
        return cls(
            skipped, bits, size, _FORMATS[stored_as], check_flag("sym", values.get("sym", False))
        )

    @property
    def name(self) -> str:
        return f"GPTQ, {self.bits} bits"

    def gather(self, tensors: Tensors) -> dict[str, Any]:
        parts = Parts(tensors, self.name)
        for module in parts.modules(".qweight"):
            numbers = parts.take(f"{module}.qweight")
            zeros, scales = (
                parts.needed(f"{module}.{end}", numbers) for end in ("qzeros", "scales")
            )
            groups = parts.take(f"{module}.g_idx")
            numbers.check_matrix()
            rows, outputs = numbers.shape
            inputs = groups.shape[0] if groups is not None and groups.shape else 0
            inputs = inputs or rows * 32 // self.bits
            numbers.check(
                (-(-inputs * self.bits // 32), outputs),
                ("I32",),
                f"{self.bits} bits and {inputs} inputs",
            )
            count = group_count(numbers, inputs, self.group_size)
            why = f"{outputs} outputs and groups of {self.group_size}"
            scales.check((count, outputs), FLOAT_SCALES, why)
            zeros.check((count, -(-outputs * self.bits // 32)), ("I32",), why)
            if groups is not None:
                groups.check((inputs,), ("I32",), f"{inputs} inputs")
            parts.put(
                GPTQMatrix.of(
                    f"{module}.weight",
                    (outputs, inputs),
                    numbers,
                    scales=scales,
                    zeros=zeros,
                    groups=groups,
                    bits=self.bits,
                    added=self.added,
                    symmetric=self.symmetric,
                )
            )
        return parts.left
