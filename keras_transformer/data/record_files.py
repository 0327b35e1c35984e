"""Rows of text, CSV, TSV, JSON lines and Parquet files, one by one, with their line numbers."""

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

from keras_transformer.checking import check_path, describe, load_json, shorten
from keras_transformer.files import write_text

# By suffix, before a further `.gz`.
FORMATS = {
    ".txt": "text", ".text": "text", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl",
    ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet",
}  # fmt: skip
_KINDS = tuple(dict.fromkeys(FORMATS.values()))
_PARQUET_ROWS = 1024  # read at once
# Bytes of a line, which is held in memory whole: a packed file of some kB may have one of GB.
_MAX_LINE = 64 * 2**20


class FileSource:
    """The rows of one file: its path, `format` (of `FORMATS`, or None for its suffix), encoding."""

    def __init__(self, path: str | os.PathLike, format: str | None = None, encoding: str = "utf-8"):
        self.path = Path(path)
        self.encoding = encoding
        self.done = 0  # bytes that were read
        self.stamp = self.current_stamp()
        suffixes = [suffix.lower() for suffix in self.path.suffixes]
        self._zipped = suffixes[-1:] == [".gz"]
        suffix = "".join(suffixes[-2:-1] if self._zipped else suffixes[-1:])
        self.format = FORMATS.get(suffix) if format is None else format
        if self.format is None:
            raise ValueError(
                f"{self.path} is of an unknown kind: give format= one of {str(_KINDS)[1:-1]}."
            )
        if self.format == "parquet" and self._zipped:
            raise ValueError(f"{self.path}: Parquet files are compressed inside. Unpack it.")
        _check_encoding(encoding)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.stamp[0]

    def place(self, number: int) -> str:
        """How errors call a row."""
        return f"{self.path}, {'row' if self.format == 'parquet' else 'line'} {number}"

    def digest(self, notes: Path) -> str:
        """The SHA-256 of the file, remembered in the folder `notes` for as long as its stamp is."""
        self.stamp = self.current_stamp()
        name = hashlib.sha256(str(self.path.absolute()).encode()).hexdigest()[:32]
        with contextlib.suppress(OSError, ValueError, TypeError):  # Not remembered.
            stamp, digest = json.loads((notes / name).read_text(encoding="utf-8"))
            if stamp == self.stamp and isinstance(digest, str):
                return digest
        with self._open() as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._check_unchanged()
        # A file written just now may be written again within the same tick of the clock.
        if _is_old(self.stamp):
            with contextlib.suppress(OSError):  # That the cache cannot be written is said later.
                write_text(notes / name, json.dumps([self.stamp, digest]))
        return digest

    def rows(self, columns: Sequence) -> Iterator[tuple[int, tuple]]:
        """Each row's line (of Parquet its number, from 1), and its values by name or number."""
        reader = getattr(self, f"_{self.format}")
        with self._open() as raw:
            self._check_unchanged()
            file = gzip.GzipFile(fileobj=raw) if self._zipped else raw
            for row in reader(file, tuple(columns)):
                self.done = raw.tell()
                yield row
        self._check_unchanged()
        self.done = self.size

    # The formats.

    def _text(self, file, columns):
        place_columns(self.path, columns, ("text",))
        for number, line in self._lines(file):
            line = line.rstrip("\r\n")
            if line and not line.isspace():  # Empty lines stand between texts.
                yield number, (line,) * len(columns)

    def _csv(self, file, columns):
        # The lines of a quoted cell are one row: a row's line is its first.
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
                f"{self.place(number)}: {error}. Is there a quote that does not end? (A cell "
                f"has {csv.field_size_limit():,} characters at most: csv.field_size_limit.)"
            ) from None

    def _tsv(self, file, columns):
        # By its definition (IANA) TSV has no quotes: a quote is a character of its text.
        lines = ((number, line.rstrip("\r\n")) for number, line in self._lines(file))
        return self._table(((n, line.split("\t") if line else []) for n, line in lines), columns)

    def _table(self, rows, columns):
        numbered = all(isinstance(column, int) for column in columns)
        if not numbered and any(isinstance(column, int) for column in columns):
            raise ValueError(
                f"Columns are all names, or all numbers for a file without a header: got {columns}."
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
                    f"{self.place(number)} has {len(row)} cells, the first line has {width}. Is "
                    "the line cut, or a separator not quoted?"
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
                    message += " There must be one whole object a line (JSON lines)."
                raise ValueError(message) from None
            if not isinstance(row, dict):
                raise ValueError(
                    f"{self.place(number)} must be a JSON object, not a {type(row).__name__}: one "
                    "object a line (JSON lines)."
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
            raise ValueError(f"{self.path} cannot be read behind row {number}: {error}") from error

    # Lines and files.

    def _lines(self, file) -> Iterator[tuple[int, str]]:
        """The number of each line, from 1, and the line with its end."""
        number = 0
        try:
            lines = iter(functools.partial(file.readline, _MAX_LINE + 1), b"")
            for number, line in enumerate(lines, 1):
                if len(line) > _MAX_LINE:
                    raise ValueError(
                        f"{self.place(number)} has more than {_MAX_LINE:,} bytes. Has the file "
                        "no line ends? Split the line."
                    )
                if number == 1 and self.encoding == "utf-8":
                    line = line.removeprefix(b"\xef\xbb\xbf")  # Excel's mark
                yield number, line.decode(self.encoding)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.place(number)} is not {self.encoding}: byte {error.object[error.start]:#x} "
                f"at its place {error.start}. Convert the file, or give the encoding it is in, "
                "such as encoding='latin-1'."
            ) from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{self.place(number + 1)} cannot be unpacked: {error}. Was the file cut?"
            ) from None

    def _open(self) -> io.BufferedReader:
        try:
            return open(self.path, "rb")
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.path} is gone: it was there before.") from None

    def current_stamp(self) -> list[int]:
        """What tells whether the file is still the same: size, time, number, time of any change."""
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            raise FileNotFoundError(f"There is no file {self.path}.") from None
        if not self.path.is_file():  # a folder, or a pipe, which could not be read twice
            raise ValueError(f"{self.path} is not a file. Of a folder, name the files: folder/*.")
        return [stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns]

    def _check_unchanged(self) -> None:
        # Not by the last: a link made to the file, as by a backup, changes that too.
        now = self.current_stamp()
        if now[:3] != self.stamp[:3]:
            raise ValueError(
                f"{self.path} changed while it was read: it had {self.size:,} bytes, now "
                f"{now[0]:,}. Begin again when nothing writes to it."
            )


def _is_old(stamp: list[int]) -> bool:
    """Whether a change from now on must change the stamp: clocks of files are coarse."""
    return time.time_ns() - max(stamp[1], stamp[3]) > 2_000_000_000


def find_files(names: Sequence[str | os.PathLike]) -> list[Path]:
    """The files of paths and of patterns such as `folder/*.csv`, those of a pattern sorted."""
    found = []
    for name in names:
        name = os.path.expanduser(check_path("source", name))
        if not glob.has_magic(name) or os.path.exists(name):
            found.append(Path(name))
            continue
        fitting = sorted(glob.glob(name, recursive=True))
        if not fitting:
            raise FileNotFoundError(f"No file fits {name!r}.")
        found += map(Path, fitting)
    return found


def place_columns(place, columns, there) -> list[int]:
    """Where among those that are there columns are. ValueError for one that is not, or twice."""
    names = list(there)
    for column in columns:
        if column not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise ValueError(f"{place} has no column {shorten(column)}. It has: {known}.")
        if names.count(column) > 1:
            raise ValueError(f"{place} has {names.count(column)} columns {column!r}.")
    return [names.index(column) for column in columns]


def _check_encoding(encoding: str) -> None:
    if not isinstance(encoding, str) or "\0" in encoding or not encoding.isascii():
        raise ValueError(f"`encoding` must be the name of one, received {describe(encoding)}.")
    try:
        fits = "\n".encode(encoding) == b"\n"
    except LookupError as error:
        raise ValueError(f"`encoding` {shorten(encoding)} is not known.") from error
    if not fits:
        raise ValueError(
            f"encoding={encoding!r} does not end lines with one byte. Convert the file to UTF-8."
        )
