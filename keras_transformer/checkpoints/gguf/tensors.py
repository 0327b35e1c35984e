"""Tensors of a GGUF file by their published names, unpacked one at a time."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.checkpoints.gguf.header import Header, StoredTensor, gguf_package
from keras_transformer.checkpoints.weights.safetensors_io import (
    Checkpoint,
    TensorInfo,
    check_finite,
)

_AT_ONCE = 2**18  # numbers unpacked at once: the library needs several times their memory
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OF_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)", re.ASCII)
# Tables of rotary positions, which the config expresses.
ROTARY_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def published_name(name: str, architecture: str) -> str:
    """Return the published name of a tensor, or the name itself if it has no other."""
    path, _, end = name.rpartition(".")
    if path in _OUTER:
        return f"{_OUTER[path]}.{end}"
    found = _OF_LAYER.fullmatch(name)
    if found is None:
        return name
    names = dict(_LAYER)
    if architecture.startswith("gemma"):
        names |= _GEMMA
    elif architecture == "phi3":
        names["ffn_up"] = "mlp.gate_up_proj"  # the two branches as one matrix
    theirs = names.get(found[2])
    return name if theirs is None else f"model.layers.{found[1]}.{theirs}.{found[3]}"


@dataclasses.dataclass(frozen=True)
class GGUFTensor(TensorInfo):
    """A tensor of a GGUF file, with what llama.cpp changed about the published one."""

    heads: int | None = None  # whose rows alternate between the halves of the rotary features
    added: float = 0.0  # to the values


class GGUFCheckpoint(Checkpoint):
    """Weights of a GGUF file: a mapping from published name to `TensorInfo`, data still on disk."""

    def __init__(self, header: Header, config: Mapping[str, Any]):
        self.folder = header.path
        architecture = header.metadata["general.architecture"]
        heads = {
            "attn_q": config["num_attention_heads"],
            "attn_k": config["num_key_value_heads"],
        }
        self._tensors = {}
        for name, stored in header.tensors.items():
            if name in ROTARY_TENSORS:
                continue
            part = name.split(".")[-2] if "." in name else name
            self._tensors[published_name(name, architecture)] = GGUFTensor(
                stored.shape,
                stored.type,
                header.path,
                stored.offset,
                heads=heads.get(part) if architecture == "llama" else None,
                added=float(architecture.startswith("gemma") and part.endswith("norm")),
            )
        _check_types(header)

    def _read(self, name: str, info: GGUFTensor) -> np.ndarray:
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


def read_floats(path: Path, stored: StoredTensor, name: str) -> np.ndarray:
    """Read a small tensor of a header as float32."""
    info = GGUFTensor(stored.shape, stored.type, path, stored.offset)
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
                f"The tensor {name!r} of {header.path} is stored as {stored}, which the "
                "package gguf cannot unpack. Take a file of the model in another type, such as "
                "Q8_0, Q4_K_M or F16."
            ) from None
