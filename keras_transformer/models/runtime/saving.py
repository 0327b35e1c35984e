"""Keras files that are written completely or not at all."""

import contextlib
import errno
import io
import math
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import keras

from keras_transformer.support.files import atomic_file, naming, replace_folder
from keras_transformer.support.scratch import scratch_folder

# Prefixes of paths that Keras does not write as files on this machine.
_REMOTE = re.compile(r"(/cns|/cfs|/gcs|/hdfs|/readahead|/placer|/tfhub|.*://)")


def save_whole(save: Callable, filepath, overwrite=True, zipped=None, **options) -> None:
    """Save a model with Keras's method `save` so that the file appears whole or not at all.

    Keras writes into the file that it replaces, so a full disk would leave an incomplete file. The
    functions `keras.saving.save_model` and `save_weights` bypass the model and still do so.
    """
    path = _local(filepath)
    is_archive = path is not None and path.suffix == ".keras"
    if path is None or is_archive == (zipped is False):  # else Keras reports the error
        save(filepath, overwrite, zipped, **options)
    elif overwrite or _may_replace(path):
        # A folder is written as an archive first, since HDF5 itself writes files of folders.
        with (atomic_file if is_archive else _whole_folder)(path) as scratch:
            save(scratch, **options)


def save_weights_whole(
    model: keras.Model, save: Callable, filepath, overwrite=True, max_shard_size=None, **options
) -> None:
    """Save a model's weights with Keras's method `save`, whole or not at all."""

    def write(place):
        save(place, True, max_shard_size, **options)

    path = _local(filepath)
    if path is None:
        save(filepath, overwrite, max_shard_size, **options)
    elif not str(path).endswith((".weights.h5", ".weights.json")):
        write(filepath)  # Keras's error states the required name
    elif overwrite or _may_replace(path):
        if max_shard_size is not None:
            with _whole_shards(path, model, max_shard_size) as scratch:
                write(scratch)
            return
        with atomic_file(path) as scratch, open(scratch, "wb+", buffering=0) as file:
            for_hdf5 = _File(file, path)
            write(for_hdf5)
            if for_hdf5.error is not None:
                raise for_hdf5.error


class _File(io.BytesIO):
    """File on disk for HDF5 that keeps a write error until everything has been written.

    HDF5 ends the process if it cannot write to an open file, so errors must not reach it.
    """

    def __init__(self, file: io.FileIO, path: Path):
        super().__init__()
        self._file, self._path = file, path
        self.error: OSError | None = None

    def __str__(self) -> str:  # Keras reads the suffix of the path
        return str(self._path)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer) -> int:
        return self._file.readinto(buffer)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def flush(self) -> None:
        pass

    def truncate(self, size: int | None = None) -> int:
        if self.error is None:
            try:
                self._file.truncate(size)
            except OSError as error:
                self.error = error
        return size

    def write(self, content) -> int:
        left = memoryview(content).cast("B")
        count = len(left)
        while left and self.error is None:
            try:
                left = left[self._file.write(left) :]
            except OSError as error:
                self.error = error
        return count


def _local(filepath) -> Path | None:
    """Return a file's path on this machine, with links resolved; None if it is something else."""
    if not isinstance(filepath, str | os.PathLike) or _REMOTE.match(str(filepath)):
        return None
    path, real = Path(filepath), Path(os.path.realpath(filepath))
    return real if real.suffixes == path.suffixes else path


def _may_replace(path: Path) -> bool:
    """Ask the user, as Keras does, whether to replace an existing file."""
    if not os.path.lexists(path):
        return True
    answer = ""
    while answer not in ("y", "n"):
        answer = input(f"{path} already exists. Overwrite it? [y/n] ").strip().lower()
    return answer == "y"


@contextlib.contextmanager
def _whole_folder(path: Path) -> Iterator[Path]:
    """Yield an archive to write; its content then replaces the folder at the path."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(path.parent, path.name) as scratch:
            yield scratch / "model.keras"
            with zipfile.ZipFile(scratch / "model.keras") as archive:
                archive.extractall(scratch / "whole")
            replace_folder(scratch / "whole", path, scratch / "old")


@contextlib.contextmanager
def _whole_shards(path: Path, model: keras.Model, gigabytes: float) -> Iterator[Path]:
    """Yield a path in a folder for shards; the file that lists them is moved last."""
    with naming(path), scratch_folder(path.parent, path.name) as scratch:
        _ask_for_room(scratch, model, int(gigabytes * 2**30))
        yield scratch / path.name
        for each in sorted(scratch.iterdir(), key=lambda each: each.suffix == ".json"):
            os.replace(each, path.parent / each.name)


def _ask_for_room(folder: Path, model: keras.Model, largest: int) -> None:
    """Raise OSError if the weights do not fit on the disk: HDF5 itself writes files of shards."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
    size = 4 * sum(math.prod(variable.shape) for variable in variables)
    if size > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if hasattr(os, "posix_fallocate"):
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, min(size, largest))
