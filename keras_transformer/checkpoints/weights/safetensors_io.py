"""Weights on disk: safetensors files, single or sharded, read one tensor at a time.

The format (https://huggingface.co/docs/safetensors): 8 bytes with the length of a JSON header, the
header with name, type, shape and position of every tensor, then the bytes of the tensors.
"""

import abc
import dataclasses
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import keras
import numpy as np
import safetensors

from keras_transformer.checkpoints.other_formats import shards_of_training, what_it_is
from keras_transformer.checkpoints.weights.divided_rows import CONVOLUTIONS, divided
from keras_transformer.checkpoints.weights.divided_rows import DTYPE as ROWS
from keras_transformer.checkpoints.weights.expert_tensors import COMBINED, TRANSPOSED, unpacked
from keras_transformer.checkpoints.weights.expert_tensors import gathered as gathered_experts
from keras_transformer.checkpoints.weights.weight_norm import DIRECTIONS, folded, kernel_of
from keras_transformer.checkpoints.weights.weight_norm import DTYPE as WEIGHT_NORM
from keras_transformer.config.weight import BOUNDS
from keras_transformer.distribution.layout import gathered
from keras_transformer.support.checking import check_choice, load_json
from keras_transformer.support.files import path_inside, read_json, stream_safetensors

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# Linear layers of sentence-transformers: their tensors are named by folder and name.
DENSE_WEIGHTS = f"[1-9]_Dense/{WEIGHTS_FILE}"
_HEADER_LIMIT = _INDEX_LIMIT = 16 * 2**20  # bytes, some hundred thousand tensors
_WRAPPERS = ("module.", "_orig_mod.", "base_model.model.")
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".pkl")
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_WHOLE_NUMBERS = {"BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
_WHOLE_NUMBERS |= {"int32": "<i4", "int64": "<i8"}  # as HDF5 calls them


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """A tensor's header entry: shape, stored type, and position in the file.

    A tensor stored in pieces, such as the stacked matrices of experts, lists them in `parts`.
    """

    shape: tuple[int, ...]
    dtype: str
    path: Path
    offset: int
    parts: "tuple[TensorInfo, ...]" = ()


@dataclasses.dataclass(frozen=True)
class QuantizedTensor(TensorInfo, abc.ABC):
    """A tensor that is computed from several stored ones, see `checkpoints.quantized`."""

    @abc.abstractmethod
    def check(self) -> None:
        """Read the small ones among the stored tensors. Raises ValueError if one is wrong."""

    @abc.abstractmethod
    def read(self) -> np.ndarray:
        """Return the tensor as float32."""


Tensors = Mapping[str, TensorInfo]


class Checkpoint(Mapping):
    """Weights of a folder: a mapping from tensor name to `TensorInfo`, with data still on disk."""

    # Opening reads the headers and checks that every file is complete. Tensors are read by offset,
    # not through a memory map, whose pages would count as memory of the process until it is closed.

    # `gather` combines the tensors of each quantized matrix to a `QuantizedTensor`.

    def __init__(
        self, folder: str | os.PathLike, gather: Callable[[Tensors], Tensors] | None = None
    ):
        self.folder = Path(folder)
        single = path_inside(folder, WEIGHTS_FILE)
        index = path_inside(folder, INDEX_FILE)
        if single.is_file():
            tensors = read_header(single)
        elif index.is_file():
            tensors = read_sharded(self.folder, index)
        else:
            raise no_weights(self.folder, [path.name for path in sorted(self.folder.iterdir())])
        tensors = without_wrappers(tensors)
        for place in sorted(self.folder.glob(DENSE_WEIGHTS)):
            name = place.parent.name
            header = read_header(path_inside(folder, f"{name}/{WEIGHTS_FILE}"))
            tensors |= {f"{name}/{tensor}": info for tensor, info in header.items()}
        tensors = tensors if gather is None else gather(tensors)
        if any(name.endswith(DIRECTIONS) for name in tensors):
            tensors = folded(tensors)
        if any(name.endswith(CONVOLUTIONS) for name in tensors):
            tensors = divided(tensors)
        combined = any(map(COMBINED.fullmatch, tensors))
        self._tensors = gathered_experts(tensors) if combined else tensors

    def __getitem__(self, name: str) -> TensorInfo:
        return self._tensors[name]

    def __iter__(self):
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def quantized(self) -> list[QuantizedTensor]:
        """The quantized matrices, those of each expert apart."""
        each = (part for info in self._tensors.values() for part in info.parts or (info,))
        return [info for info in each if isinstance(info, QuantizedTensor)]

    def read(self, name: str) -> np.ndarray:
        """Read one tensor of floating point numbers."""
        return self._read(name, self[name])

    def read_any(self, name: str) -> np.ndarray:
        """Read one tensor of numbers of any type, such as a mask or positions, as float64."""
        info = self[name]
        if info.dtype not in _WHOLE_NUMBERS:
            return self.read(name).astype("float64")
        array = read_numbers(info, name, _WHOLE_NUMBERS[info.dtype])
        return array.reshape(info.shape).astype("float64")

    def _read(self, name: str, info: TensorInfo) -> np.ndarray:
        if info.dtype == "MXFP4":
            blocks, scales = (
                read_numbers(part, name, "u1").reshape(part.shape) for part in info.parts
            )
            array = unpacked(blocks, scales)
            check_finite(array, name, info.path)
            return array
        if info.dtype == WEIGHT_NORM:
            array = kernel_of(*(self._read(name, part) for part in info.parts))
            check_finite(array, name, info.path)
            return array
        if info.dtype == TRANSPOSED:
            return np.swapaxes(self._read(name, *info.parts), -1, -2)
        if info.dtype == ROWS:
            return np.concatenate([self._read(name, part) for part in info.parts])
        if info.parts:
            array = np.empty(info.shape, "<f4")
            for i, part in enumerate(info.parts):
                array[i] = self._read(name.replace("*", str(i)), part)
            return array
        if isinstance(info, QuantizedTensor):
            return info.read()
        if info.dtype not in FLOATS:
            raise ValueError(
                f"The tensor {name!r} in {info.path} is stored as {info.dtype}; weights are read "
                f"from {', '.join(FLOATS)}."
            )
        array = read_numbers(info, name, FLOATS[info.dtype])
        if info.dtype == "BF16":
            array = bfloat16_to_float32(array)
        check_finite(array, name, info.path)
        if info.dtype == "F16":
            array = array.astype("<f4")
        return array.reshape(info.shape)

    def same(self, first: str, second: str) -> bool:
        """Return whether two tensors hold the same bytes, comparing their headers first."""
        one, other = self[first], self[second]
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
        return np.array_equal(self.read(first), self.read(second))


def read_numbers(info: TensorInfo, name: str, dtype: str) -> np.ndarray:
    """Return the numbers of a tensor as they are stored, as a flat array of a NumPy type."""
    count = math.prod(info.shape)
    array = np.fromfile(info.path, dtype, count, offset=info.offset)
    if array.size != count:
        raise ValueError(f"{info.path} ends within the tensor {name!r}: the file has changed.")
    return array


def bfloat16_to_float32(array: np.ndarray) -> np.ndarray:
    """Return bfloat16 numbers, given as uint16, as float32: they are its upper half."""
    array = array.astype("<u4")
    array <<= 16  # in place: no second copy
    return array.view("<f4")


def read_header(path: str | os.PathLike) -> dict[str, TensorInfo]:
    """Read the header of a safetensors file, and check that the file is complete."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _HEADER_LIMIT:
                raise ValueError(
                    f"its header has {length:,} bytes; at most {_HEADER_LIMIT:,} are read"
                )
            # The library checks that the header is consistent and fits the size of the file.
            with safetensors.safe_open(path, framework="np"):
                pass
            header = load_json(file.read(length))
    except (safetensors.SafetensorError, ValueError, RecursionError, struct.error) as error:
        blob = path.resolve()
        cached = (
            "" if blob.name == path.name else f" Delete {blob}, which is its cached copy, first."
        )
        raise ValueError(
            f"{path} is not a complete safetensors file ({error}). Download or save it "
            f"again.{cached}"
        ) from error
    header.pop("__metadata__", None)
    return {
        name: TensorInfo(
            tuple(entry["shape"]), entry["dtype"], path, 8 + length + entry["data_offsets"][0]
        )
        for name, entry in header.items()
    }


def save_tensors(
    path: str | os.PathLike, tensors: Mapping[str, object], dtype: str | None = None
) -> None:
    """Write named tensors or Keras variables to one safetensors file.

    They are read one at a time: what spread or half precision weights need beside themselves is
    room for one whole tensor.
    """
    check_choice("dtype", dtype, ("float32", "float16"), none=True)
    path = Path(path)

    def stored(tensor) -> str:
        own = keras.backend.standardize_dtype(tensor.dtype)
        if own == "int64":  # a counter, not a weight
            return own
        return dtype or ("float16" if own == "float16" else "float32")

    headers = {name: (stored(each), tuple(each.shape)) for name, each in tensors.items()}

    def read(name: str) -> np.ndarray:
        array = to_numpy(tensors[name])
        with np.errstate(over="ignore"):  # an overflow is reported with the tensor's name below
            array = np.asarray(array, headers[name][0])
        if array.dtype.kind == "f":
            check_finite(array, name, path)
        return array

    stream_safetensors(path, headers, read, {"format": "np"})


def to_numpy(tensor: object) -> np.ndarray:
    """Convert an array, a backend tensor or a Keras variable to a NumPy array."""
    # NumPy 2 warns if it is given a Keras variable itself.
    value = tensor.value if isinstance(tensor, keras.Variable) else tensor
    return keras.ops.convert_to_numpy(gathered(value))


def read_sharded(folder: Path, index: Path, read=None) -> dict[str, TensorInfo]:
    """Read the headers of the shards that an index names, and check them against the index."""
    # With `read`, which reads a header, the index is KerasHub's: it names layers, not tensors.
    places = read_json(index, _INDEX_LIMIT).get("weight_map")
    places = places if isinstance(places, dict) else {}
    # KerasHub names both shards of a layer that is split.
    several = [each if read and isinstance(each, list) else [each] for each in places.values()]
    listed = [name for each in several for name in each]
    if not listed or not all(isinstance(name, str) for name in listed):
        raise ValueError(f"{index} has no 'weight_map' from names to file names.")
    tensors: dict[str, TensorInfo] = {}
    for shard in sorted(set(listed)):
        path = path_inside(folder, shard)
        if not path.is_file():
            raise FileNotFoundError(f"{index} names the file {shard!r}, which is missing.")
        header = (read or read_header)(path)
        expected = {name for name, place in places.items() if place == shard}
        if read is None and expected != set(header):
            odd = sorted(expected ^ set(header))[:5]
            raise ValueError(f"{index} and {path} disagree on the tensors in it: {odd}.")
        twice = sorted(set(header) & set(tensors))
        if twice:
            raise ValueError(f"{path} and another shard both hold {twice[0]!r}.")
        tensors |= header
    return tensors


def without_wrappers(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Remove the prefixes of wrapped models, where every name has them.

    They are those of data parallel training and `torch.compile` in PyTorch, and of PEFT. Raises
    ValueError if the file holds adapters beside the weights.
    """
    found = dict(tensors)
    while prefix := next(
        (p for p in _WRAPPERS if found and all(n.startswith(p) for n in found)), 0
    ):
        found = {name.removeprefix(prefix): info for name, info in found.items()}
    apart = next((name for name in found if ".base_layer." in name or ".lora_A." in name), None)
    if apart is not None:
        raise ValueError(
            f"{found[apart].path} holds adapters of PEFT beside the weights of a model: {apart!r}. "
            "Call `merge_and_unload` of the PEFT model before `save_pretrained`."
        )
    return found


def check_finite(array: np.ndarray, name: str, path: Path) -> None:
    """Raise ValueError if an array holds NaN or infinity, but for a range that is open."""
    if array.size and not _all_finite(array):
        if name.endswith(BOUNDS) and not np.isnan(array).any():
            return
        raise ValueError(
            f"The tensor {name!r} of {path} holds NaN or infinity, as {array.dtype}. Weights must "
            "be finite: the file is damaged, or training diverged."
        )


def _all_finite(array: np.ndarray) -> bool:
    if array.dtype != np.float16:
        # Minimum and maximum propagate NaN and infinity and, unlike np.isfinite, need no memory.
        largest = np.finfo(np.float32).max
        return bool(array.min() >= -largest and array.max() <= largest)
    # NumPy takes 30 times as long for half floats, which CPUs cannot compare. Read as integers
    # without the sign, infinity and NaN are the largest. Done in parts to save memory.
    flat = array.reshape(-1).view(np.uint16)
    parts = (flat[start : start + 2**20] for start in range(0, flat.size, 2**20))
    return all((part & 0x7FFF).max() < 0x7C00 for part in parts)


def no_weights(place: object, names: Iterable[str]) -> Exception:
    """Return the error for a folder without safetensors, which says what is there instead."""
    names = list(names)
    shards = shards_of_training(names)
    if shards:
        return ValueError(f"{place} has no weights of a whole model.{shards}")
    other = [n for n in names if n.endswith(_OTHER_WEIGHTS) and n != "training_args.bin"]
    if other:
        other = next((name for name in other if name.startswith("pytorch_model")), other[0])
        return ValueError(
            f"{place} has its weights in {other}. Only safetensors are read, because such "
            "files can run code when loaded. Convert them once where you trust the source: "
            "`transformers.AutoModel.from_pretrained(folder).save_pretrained(new_folder)` writes "
            f"{WEIGHTS_FILE}."
        )
    return FileNotFoundError(
        f"{place} has no weights: neither {WEIGHTS_FILE} nor {INDEX_FILE}.{what_it_is(names)}"
    )
