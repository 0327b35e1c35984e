"""Base class of the image and audio processors: the inputs they accept, and their config file."""

import abc
import base64
import binascii
import contextlib
import io
import json
import os
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

import numpy as np

from keras_transformer.processors.processor import Processor
from keras_transformer.support.checking import check_path, check_seed, describe, load_json, shorten
from keras_transformer.support.columns import TableColumn, is_column, is_frame, is_table
from keras_transformer.support.files import has_file, opened_file, read_file, write_text

FILE = "preprocessor_config.json"
# File of Transformers 5 for models with a tokenizer, with the values of each part by name.
OF_ALL_PARTS = "processor_config.json"
_LIMIT = 2**24  # old Whisper files contain the filters


class MediaProcessor(Processor):
    """Base class of processors that read files, bytes or arrays of images or recordings.

    They are described by a `preprocessor_config.json`, as in Transformers.
    """

    files = (FILE, OF_ALL_PARTS)
    unit: ClassVar[str]  # name of one input in errors
    part: ClassVar[str]  # name of the processor in a `processor_config.json`
    # Keys of a dict that is one input. A dict without them holds the arrays of a backbone.
    keys: ClassVar[frozenset[str]] = frozenset({"bytes", "path"})
    feature: ClassVar[str]  # type of the inputs' column in `datasets`
    column_names: ClassVar[tuple[str, ...]]  # of the inputs in other tables, most usual first

    @staticmethod
    @abc.abstractmethod
    def is_one(x: Any) -> bool:
        """Return whether `x` is a single input."""

    @abc.abstractmethod
    def values(self) -> dict[str, Any]:
        """Return the content of `preprocessor_config.json`."""

    @classmethod
    @abc.abstractmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Return the processor described by a `preprocessor_config.json`."""

    @classmethod
    def takes(cls, x: Any) -> bool:
        """Return whether `x` is a list, an array or a column of inputs, or one, even if invalid."""
        if isinstance(x, (np.ndarray, list)) or is_column(x) or is_tensor(x):
            return True
        of_arrays = isinstance(x, Mapping) and not cls.keys & x.keys()
        return cls.is_one(x) and not of_arrays

    def rows(self, x: Any) -> Sequence:
        """Return the inputs as a sequence. Raises ValueError if `x` is a single input or empty."""
        if self.is_one(x):
            raise ValueError(
                f"Give a list of {self.unit}s: [{self.unit}], not one {self.unit} alone."
            )
        if not isinstance(x, Iterable) or isinstance(x, io.IOBase):
            raise ValueError(f"Give a list of {self.unit}s, received {describe(x)}.{advice(x)}")
        if hasattr(x, "column_name") and is_table(getattr(x, "source", None)):  # of `datasets`
            x = TableColumn(x.source, x.column_name)
        x = array_of(x) if is_tensor(x) else x
        rows = x if isinstance(x, (np.ndarray, Sequence)) else list(x)
        if len(rows) == 0:
            raise ValueError(f"`x` has no {self.unit}s.")
        return rows

    @classmethod
    def like(cls, batch: Any, first: Any) -> Any:
        """Convert a batch of a data set for the processor; `first` is the data's first batch."""
        return batch

    @classmethod
    def stream(cls, task, data, batch_size=None, steps=None, **options):
        return task.held(data, batch_size, steps, **options)

    @classmethod
    def load_dataset(cls, task, data, options):
        return task.held_inputs(data, options)

    def token_values(self) -> dict[str, str]:
        """Return the tokens whose ids a published `config.json` holds, by the name of the id."""
        return {}

    def save(self, directory: str) -> None:
        write_text(Path(directory, self.files[0]), json.dumps(self.values(), indent=2) + "\n")

    @classmethod
    def with_outer(cls, values: Mapping[str, Any], of_all: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of a part, with those that a `processor_config.json` holds beside it.

        Args:
            values: the values of this part.
            of_all: the content of the `processor_config.json`, empty without one.
        """
        return values

    @classmethod
    def is_in(cls, directory: str) -> bool:
        """Return whether a folder has a file for the processor."""
        path = Path(directory, OF_ALL_PARTS)
        if any(has_file(Path(directory, name)) for name in cls.files if name != OF_ALL_PARTS):
            return True
        try:
            return has_file(path) and cls.part in _read_object(path)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_files(cls, directory: str) -> Self:
        path = Path(directory, OF_ALL_PARTS)
        try:
            of_all = _read_object(path) if has_file(path) else {}
            values = of_all.get(cls.part)
            if values is None:
                own = (Path(directory, name) for name in cls.files if name != OF_ALL_PARTS)
                path = next(filter(has_file, own), Path(directory, cls.files[0]))
                values = _read_object(path)
            elif not isinstance(values, dict):
                raise ValueError(f"{cls.part!r} must be an object, but is {describe(values)}.")
            return cls.from_values(cls.with_outer(values, of_all))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None


def _read_object(path: Path) -> dict[str, Any]:
    values = load_json(read_file(path, _LIMIT))
    if not isinstance(values, dict):
        raise ValueError(f"it must hold an object, but holds {describe(values)}.")
    return values


def is_tensor(x: Any) -> bool:
    """Return whether `x` is a tensor of another library than NumPy, with at least one axis.

    Columns and data frames are not tensors.
    """
    known = isinstance(x, np.ndarray) or is_column(x) or is_frame(x)
    parts = ("__array__", "shape", "dtype", "ndim")
    return not known and all(hasattr(x, name) for name in parts) and x.ndim > 0


def advice(given: Any) -> str:
    """Return a sentence with what to give instead of an open file, or an empty string."""
    if isinstance(given, io.IOBase):
        return " Give the path of the file, or its bytes: `file.read()`."
    return ""


def array_of(x: Any) -> np.ndarray:
    """Return an array or a tensor as a NumPy array."""
    for method in ("detach", "cpu"):  # PyTorch's methods
        x = getattr(x, method)() if hasattr(x, method) else x
    return np.asarray(x)


@contextlib.contextmanager
def opened_path(
    given: str | os.PathLike, place: str, most_bytes: int
) -> Iterator[tuple[BinaryIO, str]]:
    """Open a file, or a data URL, and yield it with its name for error messages.

    Nothing is opened but a file of this machine. A data URL may have `most_bytes`; a file may be of
    any size.
    """
    if _is_data_url(given):
        yield io.BytesIO(_of_data_url(given, place, most_bytes)), place
        return
    path = _local_path(given, place)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(opened_file(path))
        except FileNotFoundError:
            raise _missing_file(path, place) from None
        yield file, f"{place}`, the file `{path}"


def read_path(given: str | os.PathLike, place: str, most_bytes: int) -> tuple[bytes, str]:
    """Read a file or a data URL, and return its bytes and its name for error messages."""
    if _is_data_url(given):
        return _of_data_url(given, place, most_bytes), place
    path = _local_path(given, place)
    try:
        content = read_file(path, most_bytes)
    except FileNotFoundError:
        raise _missing_file(path, place) from None
    return content, f"{place}`, the file `{path}"


def _is_data_url(given: Any) -> bool:
    return isinstance(given, str) and given[:5].lower() == "data:"


def _local_path(given: str | os.PathLike, place: str) -> Path:
    if isinstance(given, str) and given[:8].lower().startswith(("http://", "https://")):
        raise ValueError(
            f"`{place}` is a URL, {shorten(given)}, but nothing is fetched from the network. Give "
            "a path, the bytes of the file, or a data URL."
        )
    path = Path(check_path(place, given)).expanduser()
    if path.is_dir():
        raise ValueError(
            f"`{place}` is a folder, {shorten(str(path))}: give the paths of files in it, as "
            "`image_folder`, `audio_folder` and `video_folder` of `kt.processors` list them."
        )
    return path


def _missing_file(path: Path, place: str) -> FileNotFoundError:
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    return FileNotFoundError(f"`{place}`: there is no file {path}{where}.")


def _of_data_url(url: str, place: str, most_bytes: int) -> bytes:
    """Decode a data URL. Source: RFC 2397."""
    head, comma, data = url.partition(",")
    try:
        if not comma or len(data) > 3 * most_bytes:
            raise ValueError("it is too long" if comma else "it has no comma")
        content = urllib.parse.unquote_to_bytes(data)
        if head.lower().endswith(";base64"):
            content = base64.b64decode(b"".join(content.split()), validate=True)
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"`{place}` is not a data URL: {error}, in {shorten(url)}.") from None
    return content


def told(error: Exception) -> str:
    """Return the message of a decoder, without the address of the buffer that it read."""
    return re.sub(r" <_io\.\w+ object at \w+>", "", str(error))


def files_by_class(
    folder: str | os.PathLike, seed: int | None, suffixes: tuple[str, ...], unit: str, usual: str
) -> tuple[list[str], list[str]]:
    """List the files of a folder with one subfolder per class, and the names of the subfolders.

    Args:
        folder: path of the folder.
        seed: int or None, the seed of a random order; without one, paths are sorted.
        suffixes: tuple of file name suffixes, in lower case.
        unit: str, name of one input for error messages.
        usual: str, the usual suffix for error messages, without its dot.

    Returns:
        A list of paths and a list of subfolder names.

    Raises:
        FileNotFoundError: if the folder does not exist.
        ValueError: if the seed is invalid, or no subfolder has files with one of the suffixes.
    """
    check_seed("seed", seed, none=True)
    place = Path(check_path("folder", folder)).expanduser()
    if not place.is_dir():
        raise FileNotFoundError(f"There is no folder {place}.")
    # Programs leave hidden files and folders, such as `.ipynb_checkpoints`, which are not data.
    shown = (p for p in place.glob("*/*") if not (p.name[0] == "." or p.parent.name[0] == "."))
    found = sorted(p for p in shown if p.suffix.lower() in suffixes and p.is_file())
    if not found:
        raise ValueError(
            f"{place} has no {unit}s: it must have a subfolder for each class, such as "
            f"{place}/cat/1.{usual}, with files that end with {', '.join(suffixes)}."
        )
    if seed is not None:
        np.random.default_rng(seed).shuffle(found)
    return [str(path) for path in found], [path.parent.name for path in found]
