"""Header of a GGUF file: its metadata and the table of its tensors, read as values only.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): the magic number, a version,
the numbers of tensors and of keys, the keys with typed values, the table of tensors, and the bytes
of the tensors from the next aligned position on. Every number is little-endian.
"""

import dataclasses
import functools
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.support.checking import shorten
from keras_transformer.support.files import check_file

MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # version 1, of a few weeks of 2023, counted in 32 bits
# Maximum bytes of the header. The largest published ones, with 260,000 tokens, have 15 MB.
_LIMIT = 64 * 2**20
# Maximum numbers of keys and tensors, and of texts in all lists. The largest published files have
# half a million tokens and merges.
MOST_ENTRIES, _MOST_TEXTS = 100_000, 2_000_000
_MOST_KEY, _MOST_NAME = 1024, 256  # bytes
_MOST_DIMENSIONS = 4
_MOST_ALIGNMENT = 2**16
_STRING, _LIST = 8, 9
_NUMBERS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_SMALLEST_KEY, _SMALLEST_TENSOR = 13, 24  # bytes of an entry with an empty name


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor's entry in the table: its shape, the name of its type, and its position."""

    shape: tuple[int, ...]
    type: str
    path: Path
    offset: int
    size: int  # in bytes


@dataclasses.dataclass(frozen=True)
class Header:
    """Metadata of a GGUF file by key, and tensors by name, including those in further parts."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    parts: tuple[Path, ...] = ()  # all files of a model, if there are several

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Return the value of a key. Raises ValueError if it is not of this kind."""
        value = self.metadata.get(key)
        if value is None:
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(each.__name__ for each in kinds)
            raise ValueError(f"{self.path}: {key!r} must be a {wanted}, not {shorten(value)}.")
        return value

    def whole(self, key: str, default: int | None = None) -> int | None:
        """Return a whole number, which is not negative."""
        value = self.get(key, int, default)
        if value is not None and value < 0:
            raise ValueError(f"{self.path}: {key!r} must not be negative, received {value}.")
        return value

    def needed(self, key: str) -> int:
        """Return a positive whole number. Raises ValueError if the file lacks it."""
        value = self.whole(key)
        if not value:
            raise ValueError(
                f"{self.path} does not say {key!r}, or says 0. It is not a whole model: convert or "
                "download it again."
            )
        return value

    def texts(self, key: str) -> list[str] | None:
        """Return a list of texts."""
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, list):
            raise ValueError(f"{self.path}: {key!r} must be a list of texts.")
        return value

    def numbers(self, key: str) -> np.ndarray | None:
        """Return a list of numbers."""
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, np.ndarray):
            raise ValueError(f"{self.path}: {key!r} must be a list of numbers.")
        return value


class _Damaged(Exception):
    """Fault of a file, as the end of a sentence."""


class _Bytes:
    """The beginning of a file, read in order and never beyond its end or the limit."""

    def __init__(self, file, size: int):
        self._file, self.position, self._end = file, 0, min(size, _LIMIT)
        self._whole, self._texts = size <= _LIMIT, 0

    @property
    def left(self) -> int:
        return self._end - self.position

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise _Damaged(
                "it ends within its header"
                if self._whole
                else f"its header has more than {_LIMIT:,} bytes"
            )
        data = self._file.read(count)
        if len(data) != count:
            raise _Damaged("it has changed while it was read")
        self.position += count
        return data

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, smallest: int, what: str, most: int | None = None) -> int:
        """Read a count of things that take at least `smallest` bytes each."""
        count = self.number("<Q")
        if count > self.left // smallest:
            raise _Damaged(f"it declares {count:,} {what}, more than it has room for")
        if most is not None and count > most:
            raise _Damaged(f"it declares {count:,} {what}; at most {most:,} are read")
        return count

    def text(self, what: str, most: int | None = None) -> str:
        length = self.number("<Q")
        if length > min(self.left, self.left if most is None else most):
            raise _Damaged(f"it declares {what} of {length:,} bytes")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise _Damaged(f"{what} is not UTF-8 text") from None

    def value(self, key: str) -> Any:
        kind = self.number("<I")
        if kind == _STRING:
            return self.text(f"a value of {key!r}")
        if kind in _NUMBERS:
            return _plain(self.number(_NUMBERS[kind]), kind)
        if kind != _LIST:
            raise _Damaged(f"{key!r} has a value of the unknown type {kind}")
        kind = self.number("<I")
        if kind == _STRING:
            count = self.count(8, f"texts of {key!r}", _MOST_TEXTS - self._texts)
            self._texts += count
            return [self.text(f"a text of {key!r}") for _ in range(count)]
        if kind not in _NUMBERS:
            raise _Damaged(f"{key!r} is a list of values of the unknown type {kind}")
        size = struct.calcsize(_NUMBERS[kind])
        count = self.count(size, f"numbers of {key!r}")
        return np.frombuffer(self.take(count * size), _NUMBERS[kind])


def _plain(value: Any, kind: int) -> Any:
    """Return a number; a float of 32 bits as the shortest decimal that it stands for."""
    return float(str(np.float32(value))) if _NUMBERS[kind] == "<f" else value


def read_header(path: str | os.PathLike) -> Header:
    """Read and check the header of a GGUF file.

    Raises:
        FileNotFoundError: if there is no such file.
        ImportError: if the package `gguf` is not installed.
        ValueError: if the file is not a whole GGUF file; the message says what is wrong with it.
    """
    path = Path(path)
    check_file(path)
    size = path.stat().st_size
    try:
        with open(path, "rb") as file:
            return _read(path, _Bytes(file, size), size)
    except _Damaged as error:
        raise ValueError(
            f"{path} is not a whole GGUF file: {error}. Download or convert it again."
        ) from None


def _read(path: Path, data: _Bytes, size: int) -> Header:
    if data.take(4) != MAGIC:
        raise _Damaged("it does not begin with GGUF")
    version = data.number("<I")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in _VERSIONS:
            raise _Damaged("it is big-endian, and only little-endian files are read")
        raise _Damaged(f"it has version {version}, and this release reads 2 and 3")
    tensors = data.count(_SMALLEST_TENSOR, "tensors", MOST_ENTRIES)
    keys = data.count(_SMALLEST_KEY, "keys", MOST_ENTRIES)
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = data.text("a key", _MOST_KEY)
        if key in metadata:
            raise _Damaged(f"the key {key!r} appears twice")
        metadata[key] = data.value(key)
    table: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(tensors):
        name = data.text("a tensor's name", _MOST_NAME)
        if name in table:
            raise _Damaged(f"two tensors are named {name!r}")
        dimensions = data.number("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise _Damaged(f"the tensor {name!r} has {dimensions:,} dimensions")
        shape = struct.unpack(f"<{dimensions}Q", data.take(8 * dimensions))
        table[name] = shape[::-1], data.number("<I"), data.number("<Q")
    alignment = metadata.get("general.alignment", 32)
    powers = [2**i for i in range(_MOST_ALIGNMENT.bit_length())]
    if type(alignment) is not int or alignment not in powers:
        raise _Damaged(f"'general.alignment' is {shorten(alignment)}, which is not a power of two")
    start = -(-data.position // alignment) * alignment
    return Header(path, metadata, _placed(path, table, start, alignment, size))


def _placed(
    path: Path,
    table: Mapping[str, tuple[tuple[int, ...], int, int]],
    start: int,
    alignment: int,
    size: int,
) -> dict[str, StoredTensor]:
    """Return the tensors with their positions in the file, after checking that they are in it."""
    tensors = {}
    for name, (shape, number, offset) in table.items():
        kind = _type_of(number)
        if kind is None:
            raise ValueError(
                f"The tensor {name!r} of {path} has the type {number}, which the installed package "
                "gguf does not know. Install a newer one, or quantize the model again, for example "
                "as Q8_0."
            )
        block, bytes_per_block = kind.sizes
        if 0 in shape or shape[-1] % block:
            raise _Damaged(f"the tensor {name!r} of type {kind.name} has the shape {shape}")
        length = math.prod(shape) // block * bytes_per_block
        if offset % alignment or offset + length > size - start:
            raise _Damaged(f"the tensor {name!r} is not inside the file")
        tensors[name] = StoredTensor(shape, kind.name, path, start + offset, length)
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
        if tensor.offset < end:
            raise _Damaged(f"the tensor {name!r} overlaps another")
        end = tensor.offset + tensor.size
    return tensors


@dataclasses.dataclass(frozen=True)
class TensorType:
    """A type of stored tensors: its name, and the numbers and bytes of a block."""

    name: str
    sizes: tuple[int, int]


def _type_of(number: int) -> TensorType | None:
    gguf = gguf_package()
    try:
        kind = gguf.GGMLQuantizationType(number)
        return TensorType(kind.name, gguf.GGML_QUANT_SIZES[kind])
    except (KeyError, ValueError):
        return None


@functools.cache
def gguf_package() -> Any:
    """Return the package `gguf`, which is imported when the first file is read."""
    try:
        import gguf
    except ImportError as error:
        raise ImportError(
            f"Reading a GGUF file needs the package gguf ({error}). "
            'Install it with: pip install "keras_transformer[gguf]"'
        ) from error
    return gguf
