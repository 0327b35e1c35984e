"""Expert weights on disk, one tensor per expert or 4-bit numbers, combined into single arrays."""

import dataclasses
import re
from collections.abc import Mapping
from typing import TypeVar

import numpy as np

Info = TypeVar("Info")

# StableLM also has a norm for each head, BEiT and UMT5 a bias for each layer, and Gemma 3n a matrix
# for each copy of the states.
_OF_AN_EXPERT = re.compile(
    r"(.*(?:\.experts\.(?:expert_)?|_layernorm\.norms\.|altup_(?:unembed_)?projections\."
    r"|layer\.(?=[0-9]+\.attention\.attention\.relative_position)"
    r"|block\.(?=[0-9]+\.layer\.0\.SelfAttention\.relative_attention_bias\.)))"
    r"([0-9]+)\.(.+)",
    re.DOTALL,
)
# Names of tensors that `gathered` combines, among others.
COMBINED = re.compile(
    rf"{_OF_AN_EXPERT.pattern}|.*_blocks|.*\.mlp\.experts\.gate_up_proj", re.DOTALL
)
# The bias of T5 alone, which all layers share, is in the first layer.
_SHARED_BIAS = "block.*.layer.0.SelfAttention.relative_attention_bias."
# The gates and the linear branches of all experts in one tensor.
_FUSED = ".mlp.experts.gate_up_proj"
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# Values of 4-bit numbers: one bit for the sign, two for the exponent, one for the mantissa.
# dtype of an entry whose last two axes are swapped in the file.
TRANSPOSED = "TRANSPOSED"
_HALF = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], "float32")
_AT_ONCE = 2**17  # bytes unpacked at once, which take 16 times their memory
_NUMBERS = np.concatenate([_HALF, -_HALF])


def gathered(tensors: Mapping[str, Info]) -> dict[str, Info]:
    """Combine expert tensors under one name, with `*` for the number, and 4-bit blocks with scales.

    Args:
        tensors: `TensorInfo` by name.

    Returns:
        `TensorInfo` by name, with the combined tensors as `parts`. Blocks include their scales.

    Raises:
        ValueError: if an expert is missing, or differs from the others.
    """
    found: dict[str, Info] = {}
    experts: dict[str, dict[int, str]] = {}
    tensors = _apart(tensors)
    for name, info in tensors.items():
        match = _OF_AN_EXPERT.fullmatch(name)
        scales = tensors.get(name.removesuffix("_blocks") + "_scales")
        if match:
            experts.setdefault(f"{match[1]}*.{match[3]}", {})[int(match[2])] = name
        elif name.endswith("_blocks") and _are_packed(info, scales):
            *shape, groups, size = info.shape
            shape = (*shape[:-1], groups * size * 2, shape[-1])
            packed = {"shape": shape, "dtype": "MXFP4", "parts": (info, scales)}
            found[name.removesuffix("_blocks")] = dataclasses.replace(info, **packed)
        else:
            found[name] = info
    for name in [name for name, info in found.items() if info.dtype == "MXFP4"]:
        del found[f"{name}_scales"]
    for name, numbers in experts.items():
        if list(numbers) == [0] and _SHARED_BIAS in name:
            found[numbers[0]] = tensors[numbers[0]]
            continue
        found[name] = _together(name, [tensors[numbers[i]] for i in sorted(numbers)], numbers)
    return found


def _apart(tensors: Mapping[str, Info]) -> dict[str, Info]:
    """Return tensors with those of all experts, as Qwen3.5 has them, as one of each expert.

    Such a tensor, `(experts, out, in)`, has the gates' rows before those of the linear branches.
    """
    found = dict(tensors)
    for name, info in tensors.items():
        if not name.endswith(_FUSED):
            continue
        stem = name.removesuffix("gate_up_proj")
        output = tensors.get(f"{stem}down_proj")
        if info.dtype not in BYTES or not _are_fused(info.shape, output):
            continue
        number, width, inner = info.shape[0], info.shape[2], output.shape[2]
        rows = {"gate_proj": (0, inner), "up_proj": (inner, inner), "down_proj": (0, width)}
        for part, (first, count) in rows.items():
            whole = output if part == "down_proj" else info
            each, itemsize = whole.shape[1] * whole.shape[2], BYTES[whole.dtype]
            for i in range(number):
                start = i * each + first * whole.shape[2]
                found[f"{stem}{i}.{part}.weight"] = dataclasses.replace(
                    whole, shape=(count, whole.shape[2]), offset=whole.offset + start * itemsize
                )
        del found[name], found[f"{stem}down_proj"]
    return found


def _are_fused(shape: tuple, output) -> bool:
    """Return whether a tensor has gates and linear branches, transposed as in a `Linear`."""
    kind = getattr(output, "dtype", None)
    if kind not in BYTES or len(shape) != 3 or len(output.shape) != 3:
        return False
    number, both, width = shape
    return output.shape == (number, width, both // 2) and both % 2 == 0


def inputs_first(tensors: Mapping[str, Info]) -> dict[str, Info]:
    """Return tensors with the matrices of all experts as `(experts, in, out)`.

    The published files of Qwen3-VL have them so, and those of `save_pretrained` transposed.
    """
    found = dict(tensors)
    for name, info in tensors.items():
        if not name.endswith(_FUSED):
            continue
        other = f"{name.removesuffix('gate_up_proj')}down_proj"
        output = tensors.get(other)
        if info.dtype in BYTES and _are_fused(info.shape, output):
            for each, whole in ((name, info), (other, output)):
                shape = (whole.shape[0], whole.shape[2], whole.shape[1])
                swapped = {"shape": shape, "dtype": TRANSPOSED, "parts": (whole,)}
                found[each] = dataclasses.replace(whole, **swapped)
    return found


def _are_packed(blocks, scales) -> bool:
    kinds = {getattr(info, "dtype", None) for info in (blocks, scales)}
    return kinds == {"U8"} and len(blocks.shape) > 2 and blocks.shape[:-1] == scales.shape


def _together(name: str, parts: list, numbers: Mapping[int, str]):
    missing = next((i for i in range(len(parts)) if i not in numbers), None)
    if missing is not None:
        raise ValueError(
            f"{parts[0].path} lacks {name.replace('*', str(missing))!r}, of {len(parts)} or more "
            "experts. Download or save it again."
        )
    differs = next((p for p in parts if (p.shape, p.dtype) != (parts[0].shape, parts[0].dtype)), 0)
    if differs:
        raise ValueError(
            f"The experts of {name!r} in {differs.path} differ: one is {differs.shape} of "
            f"{differs.dtype}, the first {parts[0].shape} of {parts[0].dtype}."
        )
    shape = (len(parts), *parts[0].shape)
    return dataclasses.replace(parts[0], shape=shape, parts=tuple(parts))


def unpacked(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Decode MXFP4 numbers to float32 of shape `(..., in, out)`.

    Args:
        blocks: uint8 `(..., out, groups, size)`, two numbers each, the first in the lower bits.
        scales: uint8 `(..., out, groups)`, exponents of the groups, plus 127.

    Source: Rouhani et al. 2023, "Microscaling Data Formats for Deep Learning", table 1.
    """
    *outer, groups, size = blocks.shape
    rows = blocks.reshape(-1, groups, size)
    exponents = scales.reshape(-1, groups, 1, 1).astype("int32") - 127
    numbers = np.empty((*rows.shape, 2), "float32")
    step = max(1, _AT_ONCE // max(1, groups * size))
    for start in range(0, len(rows), step):
        part, own = numbers[start : start + step], rows[start : start + step]
        part[..., 0], part[..., 1] = _NUMBERS[own & 15], _NUMBERS[own >> 4]
        np.ldexp(part, exponents[start : start + step], out=part)
    return np.swapaxes(numbers.reshape(*outer, -1), -1, -2)
