"""Rows of text, CSV, TSV, JSON lines and Parquet files, one by one, with their line numbers.

Parquet is read by pyarrow. Its readers of CSV and JSON go through blocks in parallel, and their
errors name a row of a block or none at all; Python's own say the line, and are several times
faster than any tokenizer.
"""

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
from typing import NamedTuple

from keras_transformer.checking import check_path, describe, shorten

# By suffix, before a further `.gz`.
FORMATS = {
    ".txt": "text",
    ".text": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
_PARQUET_ROWS = 1024  # read at once
# Bytes of a line, which is held in memory whole: a packed file of some kB may have one of GB.
_MAX_LINE = 64 * 2**20


class Stamp(NamedTuple):
    """What tells whether a file is still the same, without reading it."""

    size: int
    modified: int  # nanoseconds
    changed: int  # nanoseconds; no program can set this one
    number: int

    def is_old(self) -> bool:
        """Whether a change from now on must change the stamp: clocks of files are coarse."""
        return time.time_ns() - max(self.modified, self.changed) > 2_000_000_000


class FileSource:
    """The rows of one file.

    Args:
        path: the file.
        format: `"text"`, `"csv"`, `"tsv"`, `"jsonl"` or `"parquet"`. Defaults to what the suffix
            says.
        encoding: of all but Parquet.

    Raises:
        FileNotFoundError: for a file that is not there.
        ValueError: for a format or an encoding that is not known.

    Example:

    ```python
    from keras_transformer.data.record_files import FileSource

    with open("films.csv", "w") as file:
        print("text,label", "dull,bad", sep=chr(10), file=file)
    assert list(FileSource("films.csv").rows(["label", "text"])) == [(2, ("bad", "dull"))]
    ```
    """

    def __init__(self, path: str | os.PathLike, format: str | None = None, encoding: str = "utf-8"):
        self.path = Path(path)
        self.encoding = encoding
        self.done = 0  # bytes that were read
        self.stamp = self.current_stamp()
        suffixes = [suffix.lower() for suffix in self.path.suffixes]
        self._zipped = suffixes[-1:] == [".gz"]
        suffix = "".join(suffixes[-2:-1] if self._zipped else suffixes[-1:])
        self.format = FORMATS.get(suffix) if format is None else format
        if self.format not in FORMATS.values():
            raise ValueError(
                f"{self.path} is of an unknown kind: give format= one of "
                f"{', '.join(map(repr, dict.fromkeys(FORMATS.values())))}"
                + (f", received {shorten(format)}." if format else ".")
            )
        if self.format == "parquet" and self._zipped:
            raise ValueError(f"{self.path}: Parquet files are compressed inside. Unpack it.")
        _check_encoding(encoding)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.stamp.size

    def place(self, number: int) -> str:
        """How errors call a row."""
        unit = "row" if self.format == "parquet" else "line"
        return f"{self.path}, {unit} {number}"

    def digest(self) -> str:
        """The SHA-256 of the file, which is to be the same when it is read."""
        self.stamp = self.current_stamp()
        with self._open() as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._check_unchanged()
        return digest

    def rows(self, columns: Sequence) -> Iterator[tuple[int, tuple]]:
        """Each row's line (in Parquet files its number, from 1) and its values.

        Args:
            columns: names, or for CSV and TSV files without a header numbers from 0.

        Raises:
            FileNotFoundError: for a file that vanished.
            ValueError: for a column that is not there, a line that cannot be read, or a file that
                changed since it was stamped; with the file and the line.
        """
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
        _check_columns(self.path, columns, ("text",))
        for number, line in self._lines(file):
            line = line.rstrip("\r\n")
            if line and not line.isspace():  # Empty lines stand between texts.
                yield number, (line,) * len(columns)

    def _csv(self, file, columns):
        return self._table(self._csv_rows(file), columns)

    def _csv_rows(self, file):
        # The lines of a quoted cell are one row: a row's line is its first.
        reader = csv.reader((line for _, line in self._lines(file)), strict=True)
        while True:
            number = reader.line_num + 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise ValueError(
                    f"{self.place(number)}: {error}. Is there a quote that does not end? (A cell "
                    f"has {csv.field_size_limit():,} characters at most: csv.field_size_limit.)"
                ) from None
            yield number, row

    def _tsv(self, file, columns):
        # By its definition (IANA) TSV has no quotes: a quote is a character of its text.
        lines = ((number, line.rstrip("\r\n")) for number, line in self._lines(file))
        rows = ((number, line.split("\t") if line else []) for number, line in lines)
        return self._table(rows, columns)

    def _table(self, rows, columns):
        numbered = _are_numbers(columns)
        width = places = None
        for number, row in rows:
            if not row:
                continue
            if width is None:
                width = len(row)
                names = range(width) if numbered else row
                places = [_position(self.path, column, names) for column in columns]
                if not numbered:
                    continue
            yield number, self._cells(number, row, width, places)
        if width is None:
            _check_columns(self.path, columns, ())

    def _cells(self, number, row, width, places):
        if len(row) != width:
            raise ValueError(
                f"{self.place(number)} has {len(row)} cells, the first line has {width}. Is the "
                "line cut, or a separator not quoted?"
            )
        return tuple([row[place] for place in places])

    def _jsonl(self, file, columns):
        for number, line in self._lines(file):
            if line.isspace():
                continue
            try:
                row = json.loads(line)
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
                _check_columns(self.place(number), columns, row)

    def _parquet(self, file, columns):
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ImportError(
                f"{self.path} needs pyarrow: pip install 'keras_transformer[data]'."
            ) from error
        number = 0
        try:
            with pyarrow.parquet.ParquetFile(file) as parquet:
                _check_columns(self.path, columns, parquet.schema_arrow.names)
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

    def current_stamp(self) -> Stamp:
        """The stamp of the file as it is now."""
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            raise FileNotFoundError(f"There is no file {self.path}.") from None
        if not self.path.is_file():  # a folder, or a pipe, which could not be read twice
            raise ValueError(f"{self.path} is not a file. Of a folder, name the files: folder/*.")
        return Stamp(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)

    def _check_unchanged(self) -> None:
        # Not by `changed`: a link made to the file, as by a backup, changes that too.
        now, before = self.current_stamp(), self.stamp
        if now._replace(changed=0) != before._replace(changed=0):
            raise ValueError(
                f"{self.path} changed while it was read: it had {before.size:,} bytes, now "
                f"{now.size:,}. Begin again when nothing writes to it."
            )


def find_files(names: Sequence[str | os.PathLike]) -> list[Path]:
    """The files of paths and of patterns such as `folder/*.csv`, those of a pattern sorted.

    Raises:
        FileNotFoundError: for a pattern that fits no file.
    """
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


def missing_column(place, column, there) -> ValueError:
    """The error for a column that is not there."""
    names = ", ".join(map(repr, there)) or "none"
    return ValueError(f"{place} has no column {shorten(column)}. It has: {names}.")


def _check_columns(place, columns, there) -> None:
    for column in columns:
        if column not in there:
            raise missing_column(place, column, there)


def _position(place, column, names) -> int:
    positions = [position for position, name in enumerate(names) if name == column]
    if not positions:
        raise missing_column(place, column, names)
    if len(positions) > 1:
        raise ValueError(f"{place} has {len(positions)} columns {column!r}.")
    return positions[0]


def _are_numbers(columns) -> bool:
    """Whether columns are named by numbers, as those of files without a header are."""
    numbers = [isinstance(column, int) for column in columns]
    if any(numbers) != all(numbers):
        raise ValueError(
            f"Columns are all names, or all numbers for a file without a header: got {columns}."
        )
    return all(numbers)


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
