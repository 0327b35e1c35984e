"""Numbers of one byte with scales: FP8 and int8, by matrix, by output, or by block.

Sources: Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; DeepSeek-AI 2024, "DeepSeek-V3
Technical Report", section 3.3, for blocks of 128 x 128; Dettmers et al. 2022, "LLM.int8()".
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.checkpoints.quantized.matrix import (
    Parts,
    QuantizedMatrix,
    Stored,
)
from keras_transformer.checkpoints.quantized.scheme import FLOAT_SCALES, Scheme
from keras_transformer.checkpoints.weights.safetensors_io import Tensors
from keras_transformer.support.checking import shorten

FLOAT8 = ("F8_E4M3", "F8_E5M2")
_SCALES = (*FLOAT_SCALES, "F8_E8M0")
# Scales of inputs and of the cache, for products in 8 bits: inputs are not quantized here.
_OF_INPUTS = ("input_scale", "activation_scale", "input_zero_point", "k_scale", "v_scale")


@functools.cache
def float8_table(kind: str) -> np.ndarray:
    """Return the value of each byte of an FP8 type, float32."""
    number = np.arange(256)
    if kind == "F8_E5M2":  # the upper byte of a float16
        return (number << 8).astype("uint16").view("float16").astype("float32")
    exponent, fraction = number >> 3 & 15, number & 7
    # Numbers without an exponent have the smallest one, and no leading 1.
    value = np.ldexp(fraction + 8.0 * (exponent > 0), np.maximum(exponent, 1) - 10)
    value[number & 127 == 127] = np.nan
    return np.where(number < 128, value, -value).astype("float32")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaledMatrix(QuantizedMatrix):
    """Numbers of one byte, times a scale for each block of outputs by inputs."""

    block: tuple[int, int]
    factor: float = 1.0  # of the scales

    def read_scales(self) -> np.ndarray:
        return self._by_output(self.scales.read_scales()) * np.float32(self.factor)

    def read_zeros(self) -> np.ndarray | None:
        return None if self.zeros is None else self._by_output(self.zeros.read())

    def read_groups(self, count: int) -> np.ndarray:
        groups = super().read_groups(count)
        return groups if self.groups is not None else np.arange(self.shape[1]) // self.block[1]

    @property
    def layer_dtype(self) -> str | None:
        by_output = self.block[0] in (1, self.shape[0]) and self.block[1] == self.shape[1]
        integers = self.numbers.info.dtype == "I8"
        return "int8" if integers and by_output and self.zeros is None else None

    def unpack(self, stored: np.ndarray, start: int, stop: int) -> np.ndarray:
        part, kind = stored[start:stop], self.numbers.info.dtype
        return float8_table(kind)[part] if kind in FLOAT8 else part

    def _by_output(self, grid: np.ndarray) -> np.ndarray:
        outputs, (height, width) = self.shape[0], self.block
        grid = grid.reshape(-(-outputs // height), -(-self.shape[1] // width))
        return np.repeat(grid, height, axis=0)[:outputs]


def block_of(shape: tuple[int, ...], scales: Stored, block: tuple[int, int] | None):
    """Return the block that each scale of a matrix belongs to.

    Args:
        shape: `(outputs, inputs)`.
        scales: one number, `(outputs, 1)`, or the grid of the blocks.
        block: the height and width of blocks in the config, or None.

    Raises:
        ValueError: if the scales have another shape, or are not stored as floats.
    """
    if scales.info.dtype not in _SCALES:
        raise scales.refuse(f"is stored as {scales.info.dtype}, which scales are not")
    outputs, inputs = shape
    if set(scales.shape) <= {1}:
        return outputs, inputs
    if scales.shape in ((outputs,), (outputs, 1)):
        return 1, inputs
    if block is not None:
        scales.check(
            (-(-outputs // block[0]), -(-inputs // block[1])),
            _SCALES,
            f"{outputs} x {inputs} numbers in blocks of {block[0]} x {block[1]}",
        )
        return min(block[0], outputs), min(block[1], inputs)
    raise scales.refuse(
        f"has the shape {scales.shape}, which is neither one scale nor one for each of {outputs} "
        "outputs"
    )


def block_shape(value: Any, name: str) -> tuple[int, int] | None:
    """Return the height and width of blocks that a config gives, or None."""
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(type(size) is int and size > 0 for size in value)
    ):
        raise ValueError(f"{name!r} must be two positive whole numbers, received {shorten(value)}.")
    return value[0], value[1]


def drop_scales_of_inputs(parts: Parts, module: str) -> None:
    """Take out the scales of a module that are for products in 8 bits."""
    for end in _OF_INPUTS:
        parts.take(f"{module}.{end}")


@dataclasses.dataclass(frozen=True)
class Float8(Scheme):
    """Values of an FP8 config, as DeepSeek, Transformers and FBGEMM write it."""

    block: tuple[int, int] | None  # of each scale; None: of an output, or of the matrix

    @classmethod
    def read(cls, values: Mapping[str, Any], skipped: tuple[str, ...]) -> "Float8":
        block = values.get("weight_block_size")
        return cls(skipped, block_shape(block, "weight_block_size"))

    @property
    def name(self) -> str:
        blocks = "" if self.block is None else ", blocks of {} x {}".format(*self.block)
        return f"FP8{blocks}"

    def gather(self, tensors: Tensors) -> dict[str, Any]:
        parts = Parts(tensors, self.name)
        for name in [name for name, info in tensors.items() if info.dtype in FLOAT8]:
            numbers = parts.take(name)
            numbers.check_matrix()
            scales = parts.take(f"{name}_scale_inv") or parts.needed(f"{name}_scale", numbers)
            block = block_of(numbers.shape, scales, self.block)
            drop_scales_of_inputs(parts, name.removesuffix(".weight"))
            parts.put(ScaledMatrix.of(name, numbers.shape, numbers, scales=scales, block=block))
        return parts.left
