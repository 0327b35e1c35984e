"""Reading and writing of files: bounded reads, also of JSON and paths that strangers wrote.

Writes appear whole or not at all.
"""

import contextlib
import ctypes
import errno
import functools
import json
import math
import os
import re
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_transformer.support.checking import load_json, shorten
from keras_transformer.support.scratch import scratch_folder

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_EXCHANGE = 2  # RENAME_EXCHANGE on Linux, RENAME_SWAP on macOS
_LINUX_HERE = -100  # AT_FDCWD
_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)
STORED = {"float16": "F16", "float32": "F32", "int64": "I64"}  # types of `stream_safetensors`


def has_file(path: str | os.PathLike) -> bool:
    """Return whether there is a file at this path.

    Raises:
        ValueError: if the path is a broken link, a folder, a pipe, a socket or a device.
        PermissionError: if the file may not be read.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):
            raise ValueError(
                f"{path} is a link to {os.readlink(path)}, which does not exist. Put the file "
                "there, or remove the link."
            ) from None
        return False
    except OSError as error:  # a loop of links, or a name that is too long
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    _check_kind(path, mode)
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{path} may not be read by this user. Change its permissions.")
    return True


def check_file(path: str | os.PathLike) -> None:
    """Raise FileNotFoundError if the path does not exist, and the errors of `has_file`."""
    if not has_file(path):
        raise FileNotFoundError(f"There is no file {path}.")


@contextlib.contextmanager
def opened_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Yield a file that is open for reading. Raises the errors of `check_file`."""
    check_file(path)
    # The path may have changed since the check: opened this way, a pipe does not wait for a writer.
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(opened, "rb") as file:
        _check_kind(path, os.fstat(file.fileno()).st_mode)
        yield file


def read_file(path: str | os.PathLike, limit: int) -> bytes:
    """Return the content of a file. Raises ValueError if it has more than `limit` bytes."""
    with opened_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(limit + 1) if size <= limit else b""
    size = max(size, len(content))
    if size > limit:
        raise ValueError(
            f"{path} has {size:,} bytes; a file of this kind may have {limit:,}. Is it the right "
            "file?"
        )
    return content


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a path to write to, which then replaces `path` in one step, complete or not at all."""
    path = Path(path)
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise ValueError(f"{path} cannot be written: it is a folder. Name a file.")
        if path.exists():
            _check_kind(path, path.stat().st_mode)
        with scratch_folder(path.parent, path.name) as folder:
            scratch = folder / path.name
            os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            mode = stat.S_IMODE(scratch.stat().st_mode)
            yield scratch
            # Some libraries create a file of their own that only its owner may read.
            os.chmod(scratch, mode)
            keep_permissions(path, scratch)
            synchronize(scratch)
            os.replace(scratch, path)
            synchronize(path.parent)


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Write a file whole or not at all, see `atomic_file`."""
    with atomic_file(path) as scratch:
        scratch.write_bytes(data)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write a text file in UTF-8 whole or not at all, see `atomic_file`."""
    write_bytes(path, text.encode())


def write_safetensors(
    path: str | os.PathLike,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write arrays to a safetensors file whole or not at all, see `atomic_file`."""
    with atomic_file(path) as scratch:
        save_file(dict(tensors), scratch, metadata and dict(metadata))


def stream_safetensors(
    path: str | os.PathLike,
    headers: Mapping[str, tuple[str, tuple[int, ...]]],
    read: Callable[[str], np.ndarray],
    metadata: Mapping[str, str],
) -> None:
    """Write a safetensors file whole or not at all, one tensor after the other.

    Args:
        path: the file.
        headers: the dtype, a key of `STORED`, and the shape of each tensor by name.
        read: function from a name to the array, of which one is held at a time.
        metadata: texts by name.
    """
    # The order of the library: wide numbers first, so that each is aligned.
    names = sorted(headers, key=lambda name: (-np.dtype(headers[name][0]).itemsize, name))
    entries, end = {}, 0
    for name in names:
        dtype, shape = headers[name]
        start, end = end, end + math.prod(shape) * np.dtype(dtype).itemsize
        entries[name] = {
            "dtype": STORED[dtype],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    header = json.dumps(
        {"__metadata__": dict(metadata), **entries}, ensure_ascii=False, separators=(",", ":")
    ).encode()
    header += b" " * (-len(header) % 8)
    with atomic_file(path) as scratch, open(scratch, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for name in names:
            array = np.asarray(read(name), order="C")  # `ascontiguousarray` makes scalars rows
            if (array.dtype.name, array.shape) != (headers[name][0], tuple(headers[name][1])):
                raise ValueError(f"The tensor {name!r} has changed while it was written.")
            file.write(array.reshape(-1).view("u1").data)
            del array


class SafetensorsFile(Mapping):
    """A safetensors file as a mapping from name to array, each read on access."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        check_file(path)
        with self._refusing():
            self._file = safe_open(self.path, framework="numpy")
            self._names = list(self._file.keys())
            self.metadata = self._file.metadata() or {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        with self._refusing():
            return self._file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{self.path} is not a usable safetensors file: {error}. Save or fetch it again."
            ) from error


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Rewrite an error of a write to name the path that the user gave.

    The exception keeps its error number, and therefore its class, such as `PermissionError`.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _number(error)
        reason = os.strerror(number) if number else str(error)
        advice = "The previous content is unchanged."
        if number in _NO_ROOM:
            advice += " Free some space, or choose another place."
        elif number in _NO_RIGHT:
            advice += " Choose a place that you may write to."
        message = f"{path} could not be written: {reason}. {advice}"
        raise (OSError(number, message) if number else OSError(message)) from error


def check_writable(folder: str | os.PathLike) -> None:
    """Raise PermissionError, or OSError on a read-only file system, if `folder` is not writable."""
    if not os.access(folder, os.W_OK | os.X_OK):
        read_only = hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY
        number = errno.EROFS if read_only else errno.EACCES
        raise OSError(number, os.strerror(number))


def replace_folder(new: Path, place: Path, old: Path) -> None:
    """Move a folder to its place and the previous one to `old`, in one step where possible."""
    if not os.path.lexists(place):
        os.rename(new, place)
        return
    exchange = exchanging()
    if exchange is not None and exchange(os.fsencode(new), os.fsencode(place)) == 0:
        os.rename(new, old)
        return
    os.rename(place, old)
    try:
        os.rename(new, place)
    except OSError:
        os.rename(old, place)
        raise


@functools.cache
def exchanging() -> Callable[[bytes, bytes], int] | None:
    """Return the system's function that exchanges two paths in one step, or None."""
    if sys.platform not in ("linux", "darwin"):
        return None
    library = ctypes.CDLL(None)
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        return lambda one, other: library.renameat2(
            _LINUX_HERE, one, _LINUX_HERE, other, ctypes.c_uint(_EXCHANGE)
        )
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        return lambda one, other: library.renamex_np(one, other, ctypes.c_uint(_EXCHANGE))
    return None


def keep_permissions(old: Path, new: Path) -> None:
    """Give a replacement file or folder the mode and, where allowed, the owner of the old one."""
    try:
        before = os.stat(old)
    except FileNotFoundError:
        return
    now = os.stat(new)
    if hasattr(os, "chown") and (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        with contextlib.suppress(PermissionError):
            os.chown(new, before.st_uid, before.st_gid)
    os.chmod(new, stat.S_IMODE(before.st_mode))


def synchronize(path: Path) -> None:
    """Flush a file or a folder to disk, if the system supports it."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders
        return
    opened = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(opened)


def _check_kind(path: str | os.PathLike, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    kind = kinds.get(stat.S_IFMT(mode), "of another kind")
    raise ValueError(f"{path} is {kind}, not a file. Put a file there, or remove it.")


def _number(error: BaseException) -> int | None:
    """Return the system's error number. Libraries written in Rust have it only in the message."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else None


JSON_LIMIT = 4 * 2**20
# Maximum number of lists and objects in one file: in memory, "[[],[],[]]" takes 30 times its size.
_PARTS_LIMIT = 100_000
_JSON_TYPES = {
    dict: "a JSON object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
}


def read_json(path: str | os.PathLike, limit: int = JSON_LIMIT, kind: type = dict) -> Any:
    """Read a JSON object, or a list with `kind=list`, from an untrusted file."""
    path = Path(path)
    content = read_file(path, limit)
    if content.count(b"[") + content.count(b"{") > _PARTS_LIMIT:
        raise ValueError(f"{path} has more than {_PARTS_LIMIT:,} lists and objects.")
    try:
        value = parse_json(content)
    except RecursionError:
        raise ValueError(f"{path} is not usable: its JSON nests too deeply.") from None
    except ValueError as error:  # syntax, encoding, and errors of the two hooks
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, kind):
        wanted = _JSON_TYPES[kind]
        given = _JSON_TYPES.get(type(value), "a number")
        raise ValueError(f"{path} must hold {wanted}, not {given}.")
    return value


def parse_json(content: bytes, parse_float: Callable[[str], float] | None = None) -> Any:
    """Parse JSON in UTF-8, without duplicate keys in an object and without NaN.

    Raises ValueError if it is not valid, also for an integer of more than 4,300 digits, and
    RecursionError if it nests too deeply.
    """
    return load_json(
        content.decode("utf-8"),
        object_pairs_hook=_unique_keys,
        parse_constant=_no_constant,
        parse_float=parse_float,
    )


def write_json(path: str | os.PathLike, values: dict) -> None:
    """Write a dict as indented JSON with a final newline, whole or not at all."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def path_inside(folder: str | os.PathLike, name: str, is_folder: bool = False) -> Path:
    """Return the path of a preset's file, which must stay inside the preset's folder."""
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    if (
        not parts
        or ".." in parts
        or any(bad in name for bad in (":", "\\", "\0"))
        or name[0] == "/"
    ):
        raise ValueError(
            f"The preset {folder} names the file {name!r}. A preset's files must be inside its "
            "folder: the name must be relative, without '..'."
        )
    path = Path(folder, *parts)
    try:
        root, target = Path(folder).resolve(), path.resolve()
        path.is_file()  # unlike `resolve`, fails on a name that no file can have
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, invalid text
        raise ValueError(f"The preset {folder} names the file {name!r}: {error}.") from None
    allowed = [root]
    if root.parent.name == "snapshots" and root.parent.parent.name.startswith("models--"):
        # Not resolved again: if `blobs` itself were a link, its target would not be inside.
        allowed.append(root.parent.parent / "blobs")
    if not any(target.is_relative_to(each) for each in allowed):
        raise ValueError(
            f"{path} is a link to {target}, outside the preset's folder. Copy the file itself into "
            "the folder."
        )
    if not is_folder:
        has_file(path)
    elif os.path.lexists(path) and not path.is_dir():
        raise ValueError(f"{path} must be a folder.")
    return path


def _unique_keys(pairs: list[tuple[str, object]]) -> dict:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {shorten(repeated)} appears twice in one object")
    return values


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")
