"""Rows of text, CSV, TSV, JSON lines and Parquet files, read one by one with line numbers."""

import contextlib
import csv
import functools
import glob
import gzip
import hashlib
import io
import json
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_transformer.support.checking import check_path, describe, load_json, shorten
from keras_transformer.support.files import write_text

# Formats by suffix, ignoring a final `.gz`.
FORMATS = {
    ".txt": "text", ".text": "text", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl",
    ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet",
}  # fmt: skip
_KINDS = tuple(dict.fromkeys(FORMATS.values()))
_PARQUET_ROWS = 1024  # rows read at a time
# The most bytes of a line, which is held in memory: a compressed file of a few kB may hold GBs.
_MAX_LINE = 64 * 2**20


class FileSource:
    """Rows of a file. `format` is a value of `FORMATS`; None derives it from the file's suffix."""

    def __init__(self, path: str | os.PathLike, format: str | None = None, encoding: str = "utf-8"):
        self.path = Path(path)
        self.encoding = encoding
        self.done = 0  # number of bytes read
        self.stamp = self.current_stamp()
        suffixes = [suffix.lower() for suffix in self.path.suffixes]
        self._zipped = suffixes[-1:] == [".gz"]
        suffix = "".join(suffixes[-2:-1] if self._zipped else suffixes[-1:])
        self.format = FORMATS.get(suffix) if format is None else format
        if self.format is None:
            raise ValueError(
                f"{self.path} has an unknown suffix: give `format`, one of {str(_KINDS)[1:-1]}."
            )
        if self.format == "parquet" and self._zipped:
            raise ValueError(
                f"{self.path}: a Parquet file has its own compression, not `.gz`. Unpack it."
            )
        _check_encoding(encoding)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.stamp[0]

    def place(self, number: int) -> str:
        """Return how error messages name a row."""
        return f"{self.path}, {'row' if self.format == 'parquet' else 'line'} {number}"

    def digest(self, notes: Path) -> str:
        """Return the file's SHA-256. It is cached in the folder `notes` until the file changes."""
        self.stamp = self.current_stamp()
        name = hashlib.sha256(str(self.path.absolute()).encode()).hexdigest()[:32]
        with contextlib.suppress(OSError, ValueError, TypeError):  # Not cached.
            stamp, digest = json.loads((notes / name).read_text(encoding="utf-8"))
            if stamp == self.stamp and isinstance(digest, str):
                return digest
        with self._open() as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._check_unchanged()
        # A file that was just written could be written again within the same clock tick.
        if _is_old(self.stamp):
            with contextlib.suppress(OSError):  # An unwritable cache is reported later.
                write_text(notes / name, json.dumps([self.stamp, digest]))
        return digest

    def read_rows(self, columns: Sequence) -> Iterator[tuple[int, tuple]]:
        """Yield the line number (row number for Parquet), from 1, and the values of each row."""
        reader = getattr(self, f"_{self.format}")
        with self._open() as raw:
            self._check_unchanged()
            file = gzip.GzipFile(fileobj=raw) if self._zipped else raw
            for row in reader(file, tuple(columns)):
                self.done = raw.tell()
                yield row
        self._check_unchanged()
        self.done = self.size

    # File formats.

    def _text(self, file, columns):
        place_columns(self.path, columns, ("text",))
        for number, line in self._lines(file):
            line = line.rstrip("\r\n")
            if line and not line.isspace():  # Skip empty lines between texts.
                yield number, (line,) * len(columns)

    def _csv(self, file, columns):
        # A row with quoted cells may span lines: it has the number of its first line.
        reader = csv.reader((line for _, line in self._lines(file)), strict=True)
        number = 1

        def rows():
            nonlocal number
            for row in reader:
                yield number, row
                number = reader.line_num + 1

        try:
            yield from self._table(rows(), columns)
        except csv.Error as error:
            raise ValueError(
                f"{self.place(number)}: {error}. Is a closing quote missing? (A cell may have "
                f"{csv.field_size_limit():,} characters, the value of csv.field_size_limit().)"
            ) from None

    def _tsv(self, file, columns):
        # By its definition (IANA) TSV has no quoting: quotes are ordinary characters.
        lines = ((number, line.rstrip("\r\n")) for number, line in self._lines(file))
        return self._table(((n, line.split("\t") if line else []) for n, line in lines), columns)

    def _table(self, rows, columns):
        numbered = all(isinstance(column, int) for column in columns)
        if not numbered and any(isinstance(column, int) for column in columns):
            raise ValueError(
                f"Give all columns by name, or all by number if there is no header, got {columns}."
            )
        width = places = None
        for number, row in rows:
            if not row:
                continue
            if width is None:
                width = len(row)
                places = place_columns(self.path, columns, range(width) if numbered else row)
                if not numbered:
                    continue
            if len(row) != width:
                raise ValueError(
                    f"{self.place(number)} has {len(row)} cells, but the first line has {width}. "
                    "Is the line cut, or does a cell hold a separator without quotes?"
                )
            yield number, tuple([row[place] for place in places])
        if width is None:
            place_columns(self.path, columns, ())

    def _jsonl(self, file, columns):
        for number, line in self._lines(file):
            if line.isspace():
                continue
            try:
                row = load_json(line)
            except (ValueError, RecursionError) as error:
                message = f"{self.place(number)} is not valid JSON: {error}."
                if not line.endswith("\n"):
                    message += " The file ends in this line: was it cut?"
                elif number == 1 and line.lstrip().startswith(("[", "{")):
                    message += " Each line must be one whole object (JSON lines)."
                raise ValueError(message) from None
            if not isinstance(row, dict):
                raise ValueError(
                    f"{self.place(number)} must be a JSON object, not a {type(row).__name__}: "
                    "write one object on each line (JSON lines)."
                )
            try:
                yield number, tuple([row[column] for column in columns])
            except KeyError:
                place_columns(self.place(number), columns, row)

    def _parquet(self, file, columns):
        import pyarrow.parquet

        number = 0
        try:
            with pyarrow.parquet.ParquetFile(file) as parquet:
                place_columns(self.path, columns, parquet.schema_arrow.names)
                needed = list(dict.fromkeys(columns))
                for batch in parquet.iter_batches(_PARQUET_ROWS, columns=needed):
                    lists = [batch.column(column).to_pylist() for column in columns]
                    for values in zip(*lists, strict=True):
                        number += 1
                        yield number, values
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{self.path} cannot be read after row {number}: {error}") from error

    # Reading lines and files.

    def _lines(self, file) -> Iterator[tuple[int, str]]:
        """Yield each line, including its line end, with its number, from 1."""
        number = 0
        try:
            lines = iter(functools.partial(file.readline, _MAX_LINE + 1), b"")
            for number, line in enumerate(lines, 1):
                if len(line) > _MAX_LINE:
                    raise ValueError(
                        f"{self.place(number)} has more than {_MAX_LINE:,} bytes. Are line ends "
                        "missing? Split the line."
                    )
                if number == 1 and self.encoding == "utf-8":
                    line = line.removeprefix(b"\xef\xbb\xbf")  # byte order mark, as Excel writes
                yield number, line.decode(self.encoding)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.place(number)} is not {self.encoding}: byte {error.object[error.start]:#x} "
                f"at position {error.start}. Convert the file, or give its encoding, such as "
                "encoding='latin-1'."
            ) from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{self.place(number + 1)} cannot be unpacked: {error}. Was the file cut?"
            ) from None

    def _open(self) -> io.BufferedReader:
        try:
            return open(self.path, "rb")
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{self.path} does not exist any more: it was removed after `read`."
            ) from None

    def current_stamp(self) -> list[int]:
        """Return values that identify the file's state: size, mtime, inode, ctime."""
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            raise FileNotFoundError(f"There is no file {self.path}.") from None
        if not self.path.is_file():  # a folder, or a pipe, which could not be read twice
            raise ValueError(
                f"{self.path} is not a file. To read a folder, name its files: folder/*."
            )
        return [stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns]

    def _check_unchanged(self) -> None:
        # Ignore the ctime: hard links to the file, such as for a backup, change it too.
        now = self.current_stamp()
        if now[:3] != self.stamp[:3]:
            raise ValueError(
                f"{self.path} changed while it was read: it had {self.size:,} bytes, now "
                f"{now[0]:,}. Start again when no program writes to it."
            )


def _is_old(stamp: list[int]) -> bool:
    """Return True if the stamp is so old that any later write must change it.

    The clocks of file systems are coarse: two writes within a tick have the same time.
    """
    return time.time_ns() - max(stamp[1], stamp[3]) > 2_000_000_000


def find_files(names: Sequence[str | os.PathLike]) -> list[Path]:
    """Return the files that paths and patterns such as `folder/*.csv` name, sorted by pattern."""
    found = []
    for name in names:
        name = os.path.expanduser(check_path("source", name))
        if not glob.has_magic(name) or os.path.exists(name):
            found.append(Path(name))
            continue
        fitting = sorted(glob.glob(name, recursive=True))
        if not fitting:
            raise FileNotFoundError(f"No file matches the pattern {name!r}.")
        found += map(Path, fitting)
    return found


def place_columns(place, columns, there) -> list[int]:
    """Return the index of each column in `there`. Raises ValueError if missing or repeated."""
    names = list(there)
    for column in columns:
        if column not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise ValueError(f"{place} has no column {shorten(column)}. It has: {known}.")
        if names.count(column) > 1:
            raise ValueError(
                f"{place} has {names.count(column)} columns named {column!r}. Rename all but one."
            )
    return [names.index(column) for column in columns]


def _check_encoding(encoding: str) -> None:
    if not isinstance(encoding, str) or "\0" in encoding or not encoding.isascii():
        raise ValueError(
            f"`encoding` must be a name such as 'utf-8', received {describe(encoding)}."
        )
    try:
        fits = "\n".encode(encoding) == b"\n"
    except LookupError as error:
        raise ValueError(
            f"`encoding` {shorten(encoding)} is not known. Use a name that Python knows: 'latin-1'."
        ) from error
    if not fits:
        raise ValueError(
            f"encoding={encoding!r} does not encode a line end as one byte. Convert the file to "
            "UTF-8."
        )
