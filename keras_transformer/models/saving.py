"""Keras's own files, each of which appears whole or not at all."""

import contextlib
import errno
import io
import math
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import keras

from keras_transformer.files import atomic_file, naming, replace_folder
from keras_transformer.scratch import scratch_folder

# What Keras writes by other means than files of this machine, by the beginnings that it knows.
_REMOTE = re.compile(r"(/cns|/cfs|/gcs|/hdfs|/readahead|/placer|/tfhub|.*://)")


class SavesWhole:
    """Mixin of a `keras.Model` whose `save` and `save_weights` write a file whole or not at all.

    Keras opens the file that is to be replaced, so that a full disk leaves part of the new one. Its
    functions `keras.saving.save_model` and `save_weights` still do: they do not ask the model.
    """

    def save(self, filepath, overwrite=True, zipped=None, **kwargs):
        path = _local(filepath)
        is_archive = path is not None and path.suffix == ".keras"
        if path is None or is_archive == (zipped is False):  # else Keras says what is wrong
            super().save(filepath, overwrite, zipped, **kwargs)
        elif overwrite or _may_replace(path):
            # A folder too is written as an archive first: HDF5 itself writes the files of folders.
            with (atomic_file if is_archive else _whole_folder)(path) as scratch:
                super().save(scratch, **kwargs)

    def save_weights(self, filepath, overwrite=True, max_shard_size=None, **kwargs):
        def write(place):
            super(SavesWhole, self).save_weights(place, True, max_shard_size, **kwargs)

        path = _local(filepath)
        if path is None:
            super().save_weights(filepath, overwrite, max_shard_size, **kwargs)
        elif not str(path).endswith((".weights.h5", ".weights.json")):
            write(filepath)  # Keras says what the name must be.
        elif overwrite or _may_replace(path):
            if max_shard_size is not None:
                with _whole_shards(path, self, max_shard_size) as scratch:
                    write(scratch)
                return
            with atomic_file(path) as scratch, open(scratch, "wb+", buffering=0) as file:
                for_hdf5 = _File(file, path)
                write(for_hdf5)
                if for_hdf5.error is not None:
                    raise for_hdf5.error


class _File(io.BytesIO):
    """A file on the disk for HDF5, of which a write that fails is told when all is over.

    The library ends the process when a file that it holds cannot be written.
    """

    def __init__(self, file: io.FileIO, path: Path):
        super().__init__()
        self._file, self._path = file, path
        self.error: OSError | None = None

    def __str__(self) -> str:  # Keras asks how the path ends.
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
    """The path of a file on this machine, through links. None for what else Keras takes."""
    if not isinstance(filepath, str | os.PathLike) or _REMOTE.match(str(filepath)):
        return None
    path, real = Path(filepath), Path(os.path.realpath(filepath))
    return real if real.suffixes == path.suffixes else path


def _may_replace(path: Path) -> bool:
    """Ask the user, as Keras does, if there is something to replace."""
    if not os.path.lexists(path):
        return True
    answer = ""
    while answer not in ("y", "n"):
        answer = input(f"{path} already exists. Overwrite it? [y/n] ").strip().lower()
    return answer == "y"


@contextlib.contextmanager
def _whole_folder(path: Path) -> Iterator[Path]:
    """An archive to write, whose content then takes the place of the folder that was there."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(path.parent, path.name) as scratch:
            yield scratch / "model.keras"
            with zipfile.ZipFile(scratch / "model.keras") as archive:
                archive.extractall(scratch / "whole")
            replace_folder(scratch / "whole", path, scratch / "old")


@contextlib.contextmanager
def _whole_shards(path: Path, model: keras.Model, gigabytes: float) -> Iterator[Path]:
    """A path in a folder to fill with shards, the file that lists them the last to be moved."""
    with naming(path), scratch_folder(path.parent, path.name) as scratch:
        _ask_for_room(scratch, model, int(gigabytes * 2**30))
        yield scratch / path.name
        for each in sorted(scratch.iterdir(), key=lambda each: each.suffix == ".json"):
            os.replace(each, path.parent / each.name)


def _ask_for_room(folder: Path, model: keras.Model, largest: int) -> None:
    """Raise OSError if the weights have no room: HDF5 writes the files of shards by itself."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
    size = 4 * sum(math.prod(variable.shape) for variable in variables)
    if size > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if hasattr(os, "posix_fallocate"):
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, min(size, largest))
