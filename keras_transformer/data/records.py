"""`read`: texts and labels from files, and from data sets of other libraries, of any size."""

import dataclasses
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.data.conversations import conversation_columns
from keras_transformer.data.held_column import HeldColumn
from keras_transformer.data.record_files import FORMATS, FileSource, find_files
from keras_transformer.data.record_objects import ObjectSource
from keras_transformer.support.checking import check_choice, check_path, describe, shorten
from keras_transformer.support.columns import (
    TableColumn,
    class_names,
    is_frame,
    is_table,
    listed_column,
)

# Limits of a chunk in memory: large enough to keep a tokenizer's threads busy, but no larger, since
# encoding takes a few hundred bytes for each character.
_CHUNK_ROWS = 4096
_CHUNK_CHARACTERS = 2**20


class Chunk(NamedTuple):
    """Consecutive rows of a source, and the number of bytes that were read so far."""

    columns: list[list]
    place: Callable[[int], str]  # from an index in the chunk to how errors name the row
    done: int


@dataclasses.dataclass(eq=False, repr=False)
class Records:
    """Rows of texts, optionally with labels or target texts, that need not fit in memory.

    `read` makes them from sources and columns. A task's `fit`, `evaluate`, `predict` and
    `make_dataset` take them instead of lists of strings.
    """

    sources: Sequence  # `FileSource` or `ObjectSource` objects
    x: tuple
    y: Any
    cache: Path  # folder for tokenized texts

    @property
    def columns(self) -> tuple:
        """Columns that are read: those in `x`, then `y` if it is given."""
        return self.x if self.y is None else (*self.x, self.y)

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes that the column `y` holds as numbers, or None if unknown."""
        return class_names(getattr(self.sources[0], "data", None), self.y)

    @property
    def size(self) -> int:
        """Size of all files in bytes, 0 if unknown."""
        return sum(source.size for source in self.sources)

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows in chunks, so that few of them are in memory."""
        before = 0
        for source in self.sources:
            values, numbers, characters = [], [], 0
            for number, row in source.read_rows(self.columns):
                numbers.append(number)
                values.append(row)
                characters += sum(len(value) for value in row if isinstance(value, str))
                if len(values) >= _CHUNK_ROWS or characters >= _CHUNK_CHARACTERS:
                    yield _chunk(source, values, numbers, before)
                    values, numbers, characters = [], [], 0
            if values:
                yield _chunk(source, values, numbers, before)
            before += source.size

    def held(self) -> tuple[Sequence, ...]:
        """Return each column as a sequence, for data that is read row by row, such as images.

        Bytes are kept in a temporary file. File paths in the first column are relative to the
        folder of the file that contains them.
        """
        tables = [source.data for source in self.sources if isinstance(source, ObjectSource)]
        if tables and is_table(tables[0]):
            return tuple(TableColumn(tables[0], name) for name in self.columns)
        if tables and is_frame(tables[0]):
            return tuple(listed_column(tables[0][name]) for name in self.columns)
        columns = tuple(HeldColumn() for _ in self.columns)
        for source in self.sources:
            folder = getattr(source, "path", Path()).absolute().parent
            for _, row in source.read_rows(self.columns):
                first, *others = row
                if isinstance(first, str) and isinstance(source, FileSource):
                    first = str(folder / first)
                for column, value in zip(columns, (first, *others), strict=True):
                    column.append(value)
        return columns

    def fingerprint(self) -> str | None:
        """Return a hash of the content, or None if it would need a pass over the rows."""
        digests = [source.digest(self.cache / "digests") for source in self.sources]
        if None in digests:
            return None
        formats = [(source.format, source.encoding) for source in self.sources]
        return hashlib.sha256(json.dumps([digests, formats]).encode()).hexdigest()

    def __repr__(self) -> str:
        return f"Records(x={self.x}, y={self.y!r}, sources={len(self.sources)})"


def read(
    source: Any,
    x="text",
    y=None,
    format: str | None = None,
    encoding: str = "utf-8",
    cache: str | os.PathLike | None = None,
) -> Records:
    """Read texts and labels from files or another library's data set, for `fit` and other methods.

    The texts may be larger than memory: they are tokenized once, in chunks, into an Arrow file in
    the cache, whose name depends on the texts, the tokenizer and its options. Training maps the
    file into memory; batches, shuffling and resuming work as for texts in memory. Needs
    `pip install "keras_transformer[data]"`.

    Args:
        source: the path of a file, a pattern such as `"train-*.parquet"`, or a list of these; a
            data frame of pandas, Polars or pyarrow; a data set of `datasets`, `tf.data` or
            `torch.utils.data`; or a list of rows: dicts, tuples or texts, single or batched.
        x: the column of the texts; for pairs of texts a tuple of two columns; for conversations a
            column or a tuple of the columns of `as_conversations`, such as `("messages", "tools")`.
            The column of a text file is `"text"`. A number is an index in tuples, or in the lines
            of a CSV or TSV file without a header. Defaults to `"text"`.
        y: the column of the labels or target texts. Defaults to None, no such column.
        format: `"text"` (one text on each line, empty lines are skipped), `"csv"`, `"tsv"` (without
            quoting), `"jsonl"` (one object on each line) or `"parquet"`. Defaults to the format of
            a file's suffix; except for Parquet, `.gz` may follow it.
        encoding: str, the encoding of text, CSV, TSV and JSON files. Defaults to `"utf-8"`.
        cache: folder for the tokenized texts, which may be deleted at any time. Defaults to
            `keras_transformer/tokens` in `$XDG_CACHE_HOME` or `~/.cache`.

    Returns:
        `Records`, which the methods of a task take instead of lists of strings.

    Raises:
        FileNotFoundError: if a file does not exist.
        ImportError: if pyarrow, which comes with `datasets`, is not installed.
        ValueError: if a column, a format or the source is invalid. An invalid line raises it later,
            when it is read; the message has the line's number.

    Example:
    ```python
    import keras_transformer as kt

    with open("films.csv", "w") as file:
        print("review,label", "a warm film,good", "dull,bad", sep=chr(10), file=file)
    records = kt.data.read("films.csv", x="review", y="label")
    (chunk,) = records.chunks()
    assert chunk.columns == [["a warm film", "dull"], ["good", "bad"]]
    ```
    """
    check_choice("format", format, dict.fromkeys(FORMATS.values()), none=True)
    if importlib.util.find_spec("pyarrow") is None:
        raise ImportError('data.read needs pyarrow. Run `pip install "keras_transformer[data]"`.')
    if cache is not None:
        check_path("cache", cache)
    x = x if isinstance(x, tuple) else (x,)
    sources = _sources(source, _checked(x, y), format, encoding)
    if cache is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cache = Path(home, "keras_transformer", "tokens")
    return Records(sources, x, y, Path(cache).expanduser().absolute())


def _checked(x: tuple, y) -> tuple:
    """Return the columns of `x` and `y`. Raises ValueError unless they are names or numbers."""
    columns = x if y is None else (*x, y)
    named = all(isinstance(c, (str, int)) and not isinstance(c, bool) for c in columns)
    many = len(x) > 2 and len(conversation_columns(x) or ()) < len(x)
    if not x or many or not named:
        raise ValueError(
            "`x` must be a column or a tuple of two, and `y` a column, by name or number; received "
            f"x={shorten(x)}, y={shorten(y)}."
        )
    return columns


def _sources(source: Any, columns: tuple, format: str | None, encoding: str) -> list:
    """Return a source for each file that `source` names, or one for a data set."""
    names = [source] if isinstance(source, (str, os.PathLike)) else source
    if isinstance(names, (list, tuple)) and all(isinstance(n, (str, os.PathLike)) for n in names):
        if not names:
            raise ValueError("Received an empty list: give the path of at least one file.")
        sources = [FileSource(path, format, encoding) for path in find_files(names)]
        for file in sources:
            next(file.read_rows(columns), None)  # Report missing columns at once.
        return sources
    if format is not None:
        raise ValueError(
            f"format={format!r} is for files, received a {type(source).__name__}: leave it out."
        )
    return [ObjectSource(source)]


def check_texts(texts: list, column, place: Callable[[int], str]) -> None:
    """Raise ValueError, naming the row, if a value is not a text or is empty."""
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(
                f"{place(index)}: the column {column!r} must be a text, but is {describe(text)}."
            )
        if not text or text.isspace():
            raise ValueError(
                f"{place(index)}: the column {column!r} is empty. Remove the row, or write "
                "something in its place."
            )
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:  # a lone surrogate, as in JSON's "\ud800"
                raise ValueError(
                    f"{place(index)}: the text is not valid Unicode: {error}."
                ) from None


def _chunk(source, values, numbers, before) -> Chunk:
    columns = [list(column) for column in zip(*values, strict=True)]
    return Chunk(columns, lambda index: source.place(numbers[index]), before + source.done)
