"""Tensors of a GGUF file, unpacked one at a time."""

import dataclasses
import re
from collections.abc import Iterator, Mapping

import numpy as np

from keras_transformer.checkpoints.gguf.architectures import Architecture
from keras_transformer.checkpoints.gguf.header import Header, StoredTensor, gguf_package
from keras_transformer.checkpoints.gguf.metadata import Metadata
from keras_transformer.checkpoints.gguf.rotary import ROTARY_TENSORS
from keras_transformer.checkpoints.weights.expert_tensors import gathered
from keras_transformer.checkpoints.weights.safetensors_io import (
    Checkpoint,
    TensorInfo,
    check_finite,
)

Heads = Mapping[str, int]
_AT_ONCE = 2**18  # numbers unpacked at once: the library needs several times their memory
_OF_AN_EXPERT = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d+)\.weight", re.ASCII)
_PLAIN_NORM = "ssm_norm"  # as published, even where the others have 1 added
# A vector, which the published models store as a matrix with one row.
_ONE_ROW = "ffn_gate_inp_shexp.weight"


@dataclasses.dataclass(frozen=True)
class GGUFTensor(TensorInfo):
    """A tensor of a GGUF file, with what llama.cpp changed about the published one."""

    heads: int | None = None  # whose rows alternate between the halves of the rotary features
    added: float = 0.0  # to the values

    @classmethod
    def of(cls, name: str, stored: StoredTensor, architecture: Architecture, heads: Heads):
        """Return the tensor that a file stores under a name."""
        part = name.split(".")[-2] if "." in name else name
        shape = stored.shape
        return cls(
            (1, *shape) if name.endswith(_ONE_ROW) and len(shape) == 1 else shape,
            stored.type,
            stored.path,
            stored.offset,
            heads=heads.get(part),
            added=float(
                architecture.plus_one
                and part.endswith("norm")
                and part != _PLAIN_NORM
                and name.endswith("weight")
            ),
        )

    def stored(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return the array of a published tensor as a GGUF file has it."""
        if self.heads is not None:
            array = array[_places(name, self)]
        array = array + np.float32(self.added) if self.added else array
        return array.reshape(-1) if self.flat(name) else array

    def flat(self, name: str) -> bool:
        """Return whether a file has the tensor as a vector, and the published model as a matrix."""
        return name.endswith(_ONE_ROW)


class GGUFCheckpoint(Checkpoint):
    """Weights of a GGUF file: a mapping from name to `TensorInfo`, data still on disk."""

    def __init__(self, header: Header, architecture: Architecture):
        self.folder = header.path
        metadata = Metadata(header, architecture.name)
        heads = heads_of(metadata) if architecture.turned else {}
        self._tensors, experts = {}, {}
        for name, stored in header.tensors.items():
            found = GGUFTensor.of(name, stored, architecture, heads)
            expert = _OF_AN_EXPERT.fullmatch(name)
            if expert:
                experts[f"{expert[1]}.experts.{expert[2]}.weight"] = found
            elif name not in ROTARY_TENSORS:
                self._tensors[name] = found
        self._tensors |= gathered(experts)
        _check_types(header)

    def _read(self, name: str, info: GGUFTensor) -> np.ndarray:
        if info.parts:  # experts, of which each has a tensor
            array = np.empty(info.shape, "<f4")
            for i, part in enumerate(info.parts):
                array[i] = self._read(name.replace("*", str(i)), part)
            return array
        array = np.empty(info.shape, "<f4")
        rows = array.reshape(-1, info.shape[-1]) if len(info.shape) > 1 else array[None]
        places = None if info.heads is None else _places(name, info)
        if places is not None and len(info.shape) == 1:  # a bias: each of its numbers is a row
            rows = array[:, None]
        for start, part in _unpacked(name, info, rows.shape):
            stop = start + len(part)
            rows[slice(start, stop) if places is None else places[start:stop]] = part
        if info.added:
            array -= np.float32(info.added)
        check_finite(array, name, info.path)
        return array


def heads_of(metadata: Metadata) -> Heads:
    """Return the number of heads in a tensor of queries or keys, by its name."""
    keys = metadata.whole("attention.head_count_kv") or metadata.heads
    return {"attn_q": metadata.heads, "attn_k": keys}


def _places(name: str, info: GGUFTensor) -> np.ndarray:
    """Return the published row of each stored row of queries or keys.

    llama.cpp turns neighbouring features, the published models a feature of the first half of a
    head with one of the second.
    """
    count, rest = divmod(info.shape[0], 2 * info.heads)
    if rest:
        raise ValueError(
            f"The tensor {name!r} of {info.path} has {info.shape[0]} rows, which are not "
            f"{info.heads} heads of an even size."
        )
    return np.arange(info.shape[0]).reshape(info.heads, 2, count).swapaxes(1, 2).reshape(-1)


def read_floats(stored: StoredTensor, name: str) -> np.ndarray:
    """Read a small tensor of a header as float32."""
    info = GGUFTensor(stored.shape, stored.type, stored.path, stored.offset)
    parts = [part for _, part in _unpacked(name, info, (1, stored.shape[-1]))]
    return np.concatenate(parts).reshape(-1)


def _unpacked(
    name: str, info: GGUFTensor, shape: tuple[int, int]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the rows of a tensor as float32, a few at a time, with the number of the first."""
    gguf = gguf_package()
    kind = gguf.GGMLQuantizationType[info.dtype]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows, width = shape
    per_row = width // block * size
    step = max(1, _AT_ONCE // width)
    with open(info.path, "rb") as file:
        file.seek(info.offset)
        for start in range(0, rows, step):
            count = min(step, rows - start)
            data = np.fromfile(file, "u1", count * per_row)
            if data.size != count * per_row:
                raise ValueError(
                    f"{info.path} ends within the tensor {name!r}: the file has changed."
                )
            with np.errstate(all="ignore"):  # what is not finite is reported with its name
                yield start, gguf.dequantize(data.reshape(count, per_row), kind)


def _check_types(header: Header) -> None:
    """Raise ValueError if the library cannot unpack a type that the file has."""
    gguf = gguf_package()
    first_of_type = {tensor.type: name for name, tensor in reversed(header.tensors.items())}
    for stored, name in first_of_type.items():
        kind = gguf.GGMLQuantizationType[stored]
        try:
            gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), "u1"), kind)
        except NotImplementedError:
            raise ValueError(
                f"The tensor {name!r} of {header.tensors[name].path} is stored as {stored}, which "
                "the package gguf cannot unpack. Take a file of the model in another type, such as "
                "Q8_0, Q4_K_M or F16."
            ) from None
