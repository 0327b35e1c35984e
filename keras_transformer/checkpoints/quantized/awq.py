"""AWQ: integers of 4 bits, packed along the outputs in the order of a GPU's products.

Source: Lin et al. 2023, "AWQ", https://arxiv.org/abs/2306.00978. The format is AutoAWQ's "gemm":
`qweight` (inputs, packed outputs), `qzeros` (groups, packed outputs), `scales` (groups, outputs).
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
from keras_transformer.support.checking import shorten

_BITS, _IN_WORD = 4, 8
# Where each of eight neighbouring outputs is within a word, from the lowest bits.
_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])


@dataclasses.dataclass(frozen=True, kw_only=True)
class AWQMatrix(QuantizedMatrix):
    """Numbers packed along the outputs."""

    def read_scales(self) -> np.ndarray:
        return self.scales.read_scales().T

    def read_zeros(self) -> np.ndarray:
        return _ordered(self.zeros.read()).T

    @property
    def layer_dtype(self) -> str:
        return "int4"

    @property
    def offset_of_numbers(self) -> int:
        return 2 ** (_BITS - 1)

    def unpack(self, stored: np.ndarray, start: int, stop: int) -> np.ndarray:
        return _ordered(stored[:, start // _IN_WORD : stop // _IN_WORD]).T


def _ordered(words: np.ndarray) -> np.ndarray:
    """Return the numbers `(rows, outputs)` of words `(rows, outputs // 8)`."""
    numbers = unpack_words(words, _BITS).reshape(len(words), -1, _IN_WORD)
    return numbers[..., _PLACES].reshape(len(words), -1)


@dataclasses.dataclass(frozen=True)
class AWQ(Scheme):
    """Values of an AWQ config."""

    group_size: int  # -1: all inputs of an output

    @classmethod
    def read(cls, values: Mapping[str, Any], skipped: tuple[str, ...]) -> "AWQ":
        values = {"bits": values.get("w_bit"), "group_size": values.get("q_group_size")} | {
            name: value for name, value in values.items() if value is not None
        }
        whole(values, "bits", (_BITS,))
        # `format` in newer configs.
        version = str(values.get("version") or values.get("format") or "gemm").lower()
        if version != "gemm":
            raise ValueError(
                f"an AWQ checkpoint of the version {shorten(version)} is not read, only 'gemm', "
                "the one that nearly all have. Take a checkpoint of the model in it, or one that "
                "is not quantized."
            )
        return cls(skipped, whole(values, "group_size", default=128, least=-1))

    @property
    def name(self) -> str:
        return "AWQ, 4 bits"

    def gather(self, tensors: Tensors) -> dict[str, Any]:
        parts = Parts(tensors, self.name)
        for module in parts.modules(".qweight"):
            numbers = parts.take(f"{module}.qweight")
            zeros, scales = (
                parts.needed(f"{module}.{end}", numbers) for end in ("qzeros", "scales")
            )
            numbers.check_matrix()
            numbers.check(numbers.shape, ("I32",), "two axes")
            inputs, words = numbers.shape
            outputs = words * _IN_WORD
            count = group_count(numbers, inputs, self.group_size)
            why = f"{outputs} outputs and groups of {self.group_size}"
            scales.check((count, outputs), FLOAT_SCALES, why)
            zeros.check((count, words), ("I32",), why)
            shape = (outputs, inputs)
            name = f"{module}.weight"
            parts.put(AWQMatrix.of(name, shape, numbers, scales=scales, zeros=zeros))
        return parts.left
