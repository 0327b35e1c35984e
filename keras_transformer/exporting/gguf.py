"""Export to GGUF, the format of llama.cpp: config, tokenizer and tensors in one file."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.checkpoints.families.base.family import differences
from keras_transformer.checkpoints.gguf.architectures import ARCHITECTURES, NAMES, Architecture
from keras_transformer.checkpoints.gguf.config import published_config, write_keys
from keras_transformer.checkpoints.gguf.header import Header, StoredTensor, gguf_package
from keras_transformer.checkpoints.gguf.metadata import Metadata
from keras_transformer.checkpoints.gguf.tensors import GGUFTensor, heads_of
from keras_transformer.checkpoints.gguf.vocabulary import end_keys, vocabulary_keys
from keras_transformer.checkpoints.presets.assignment import backbone_variables
from keras_transformer.checkpoints.weights.safetensors_io import check_finite, to_numpy
from keras_transformer.checkpoints.weights.tables import WeightLine, grouped
from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import variable_shapes
from keras_transformer.support.checking import check_choice

FILE = "model.gguf"
# Types of tensors that the package gguf can pack, with the number that `general.file_type` has.
TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "bf16": 32,
    "tq1_0": 36, "tq2_0": 37, "mxfp4": 38,
}  # fmt: skip
_OF_DTYPE = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# Tensors that llama.cpp computes with in float32, whatever the type of the others.
_PRECISE = (
    "_norm.weight",
    ".bias",
    "ffn_gate_inp.weight",
    "position_embd.weight",
    "conv.weight",
    "ssm_conv1d.weight",
    "ssm_a",
)
_AT_ONCE = 2**18  # numbers packed at once: the library needs several times their memory
# Values that only matter for training, and those that no output depends on.
_UNSAID = (
    "attention_dropout", "dropout", "initializer_range", "load_balancing_factor",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Planned:
    """A tensor to be written: its place and type in the file, and the variables that it is from."""

    info: GGUFTensor
    type: str
    lines: tuple[WeightLine, ...]

    def array(self, name: str, variables: Mapping[str, keras.Variable]) -> np.ndarray:
        """Return the numbers of the tensor, as a GGUF file has them."""
        found = self.lines[0].join([to_numpy(variables[line.ours]) for line in self.lines])
        return self.info.stored(name, np.asarray(found, "float32"))


def write(task: keras.Model, directory: Path, quantization: str | None = None) -> None:
    """Fill a folder with `model.gguf`, which llama.cpp, Transformers and `from_preset` read.

    Vectors are written as float32, and matrices whose rows do not fit the blocks of a type as
    float16. Each tensor is converted and written before the next one.

    Args:
        task: a `CausalLM`, or a decoder.
        directory: the folder.
        quantization: str, the type of the stored matrices, such as `"q8_0"` or `"f16"`, see
            `TYPES`. Defaults to the dtype of the weights.

    Raises:
        ValueError: if no architecture of GGUF computes the same as the model, or no vocabulary of
            GGUF gives the ids of its tokenizer. The message lists the reasons.
    """
    check_choice("quantization", quantization, tuple(TYPES), none=True)
    path = Path(directory) / FILE
    backbone = getattr(task, "backbone", task)
    variables = backbone_variables(backbone)
    usual = keras.backend.standardize_dtype(backbone.weights[0].dtype)
    type = quantization or _OF_DTYPE.get(usual, "f32")
    architecture, keys, rotary = choose(backbone)
    tokenizer, ends = getattr(task, "tokenizer", None), getattr(task, "end_ids", ())
    if tokenizer is None:
        keys |= end_keys(ends)
    else:
        rows = backbone.config.vocabulary_size
        keys |= vocabulary_keys(tokenizer, rows, architecture.name, ends)
    header = _header(keys, {}, architecture)
    heads = heads_of(Metadata(header, architecture.name)) if architecture.turned else {}
    planned = {}
    for name, lines in grouped(architecture.family.lines(backbone.config), variables).items():
        shape = lines[0].shape(tuple(variables[lines[0].ours].shape))
        stored = StoredTensor(shape, "F32", path, 0, 0)
        info = GGUFTensor.of(name, stored, architecture, heads)
        planned[name] = _Planned(info, _type(name, info, type), tuple(lines))
    with _writer(path, architecture, keys, type) as writer:
        for name, array in rotary.items():
            _declare(writer, name, array.shape, "f32")
        for name, each in planned.items():
            shape = each.info.shape
            flat = each.info.flat(name)
            _declare(writer, name, shape[1:] if flat else shape, each.type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for array in rotary.values():
            writer.write_tensor_data(array)
        for name, each in planned.items():
            # One at a time: no name here holds an array.
            writer.write_tensor_data(_packed(name, each.array(name, variables), each.type, path))


def choose(backbone: keras.Model) -> tuple[Architecture, dict[str, Any], Mapping[str, np.ndarray]]:
    """Return the architecture of a backbone, its metadata by key, and the tensors of its positions.

    Raises ValueError if no architecture computes the same; the message lists the reasons.
    """
    own, config = getattr(backbone, "family", None), backbone.config
    if not (config.by_keywords and "num_heads" in config.flat):
        raise ValueError(
            f"A GGUF file can hold a decoder of one of the architectures {', '.join(NAMES)}, and "
            f"this model, a {own or 'model of no published family'}, has other parts."
        )
    of_family = [each for each in ARCHITECTURES if own in (each.model_type, *each.also)]
    refused = []  # (number of reasons, the architecture, the reasons)
    for architecture in of_family or ARCHITECTURES:
        try:
            keys, tensors = write_keys(config, architecture)
            keys = {name: _as_read(value) for name, value in keys.items()}
            found = _differences(config, architecture, keys, tensors)
        except ValueError as error:
            refused.append((math.inf, architecture.name, [str(error)]))
            continue
        if not found:
            return architecture, keys, tensors
        refused.append((len(found), architecture.name, found))
    _, nearest, found = min(refused, key=lambda each: each[0])
    raise ValueError(
        f"GGUF has no architecture for this model, a {own or 'model of no published family'}. "
        f"Files are written of {', '.join(NAMES)}. A {nearest} file cannot express "
        f"{'; '.join(found)}."
    )


def _as_read(value: Any) -> Any:
    """Return a value as a file gives it back: a float of 32 bits, a list of numbers as an array."""
    if isinstance(value, list):
        return np.array(value, "int32")
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _differences(
    config: TransformerConfig,
    architecture: Architecture,
    keys: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
) -> list[str]:
    """Return what a file with this metadata would say otherwise than the config."""
    family = architecture.family
    shapes = {name: array.shape for name, array in tensors.items()}
    shapes |= _shapes(family.lines(config), config)
    header = _header(keys, shapes, architecture)
    back = family.config(published_config(header, lambda name: tensors[name]))
    if back.kind != config.kind or len(back.sides) != len(config.sides):
        return [f"kind={config.kind!r}"]
    return differences(config, back, _UNSAID, _alike)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)  # numbers of 32 bits
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    return one == other


def _shapes(lines: list[WeightLine], config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    shapes = variable_shapes(config)
    of = {line.ours: line for line in lines}
    return {of[path].theirs: of[path].shape(shape) for path, shape in shapes.items() if path in of}


def _header(
    keys: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], architecture: Architecture
) -> Header:
    path = Path("the file")
    tensors = {name: StoredTensor(shape, "F32", path, 0, 0) for name, shape in shapes.items()}
    return Header(path, {"general.architecture": architecture.name, **keys}, tensors)


def _type(name: str, info: GGUFTensor, type: str) -> str:
    """Return the type that a tensor is written in."""
    if len(info.shape) == 1 or info.flat(name) or name.endswith(_PRECISE):
        return "f32"
    gguf = gguf_package()
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type.upper()]][0]
    return "f16" if info.shape[-1] % block else type


@contextlib.contextmanager
def _writer(
    path: Path, architecture: Architecture, keys: Mapping[str, Any], type: str
) -> Iterator[Any]:
    gguf = gguf_package()
    writer = gguf.GGUFWriter(path, architecture.name)
    writer.add_type("model")
    writer.add_file_type(TYPES[type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in keys.items():
        if isinstance(value, (list, np.ndarray)):
            writer.add_array(key, list(value) if isinstance(value, list) else value.tolist())
        else:
            add = {bool: "add_bool", int: "add_uint32", float: "add_float32", str: "add_string"}
            getattr(writer, add[value.__class__])(key, value)
    try:
        yield writer
    finally:
        writer.close()


def _declare(writer: Any, name: str, shape: tuple[int, ...], type: str) -> None:
    gguf = gguf_package()
    kind = gguf.GGMLQuantizationType[type.upper()]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    writer.add_tensor_info(
        name, shape, np.dtype("float32"), math.prod(shape) // block * size, raw_dtype=kind
    )


def _packed(name: str, array: np.ndarray, type: str, path: Path) -> np.ndarray:
    """Return the bytes of a tensor in a type, packed a few rows at a time."""
    check_finite(array, name, path)
    if type == "f32":
        return np.ascontiguousarray(array)
    gguf = gguf_package()
    kind = gguf.GGMLQuantizationType[type.upper()]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows = array.reshape(-1, array.shape[-1])
    packed = np.empty((len(rows), rows.shape[1] // block * size), "uint8")
    step = max(1, _AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), step):
        part = np.ascontiguousarray(rows[start : start + step])
        with np.errstate(over="ignore"):  # reported with the tensor's name
            found = gguf.quantize(part, kind)
        if type == "f16":
            check_finite(found, name, path)
        packed[start : start + step] = found.view("uint8")
    return packed
