"""`read`: texts and labels of files and of other libraries' data sets, however many."""

import dataclasses
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.checking import check_choice, check_path, describe, shorten
from keras_transformer.columns import TableColumn, class_names, is_frame, is_table, listed_column
from keras_transformer.data.held_column import HeldColumn
from keras_transformer.data.record_files import FORMATS, FileSource, find_files
from keras_transformer.data.record_objects import ObjectSource

# What is in memory at once. Enough to keep the threads of a tokenizer busy; the encoding of a
# character takes some hundred bytes.
_CHUNK_ROWS = 4096
_CHUNK_CHARACTERS = 2**20


class Chunk(NamedTuple):
    """Some rows that follow each other, and the bytes of the source that were read so far."""

    columns: list[list]
    place: Callable[[int], str]  # from the place in a list to what errors call the row
    done: int


@dataclasses.dataclass(eq=False, repr=False)
class Records:
    """Rows of texts, with labels or target texts or without, that need not fit in memory.

    Made by `read`, of sources and columns. `fit`, `evaluate`, `predict` and `make_dataset` of a
    task take them in the place of lists of strings.
    """

    sources: Sequence  # of `FileSource` or `ObjectSource`
    x: tuple
    y: Any
    cache: Path  # folder of what is tokenized

    @property
    def columns(self) -> tuple:
        """The columns that are read: those of `x`, then `y` if there is one."""
        return self.x if self.y is None else (*self.x, self.y)

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes that a data set numbers in `y`; None if it does not say."""
        return class_names(getattr(self.sources[0], "data", None), self.y)

    @property
    def size(self) -> int:
        """Bytes of all files, 0 if it is not known."""
        return sum(source.size for source in self.sources)

    def chunks(self) -> Iterator[Chunk]:
        """Goes through all rows, with few of them in memory."""
        before = 0
        for source in self.sources:
            values, numbers, characters = [], [], 0
            for number, row in source.rows(self.columns):
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
        """Each column as a sequence, for what is read row by row, such as images and sound.

        Bytes lie in a temporary file. The path of a file, in the first column, is from the folder
        of the file that it is named in.
        """
        tables = [source.data for source in self.sources if isinstance(source, ObjectSource)]
        if tables and is_table(tables[0]):
            return tuple(TableColumn(tables[0], name) for name in self.columns)
        if tables and is_frame(tables[0]):
            return tuple(listed_column(tables[0][name]) for name in self.columns)
        columns = tuple(HeldColumn() for _ in self.columns)
        for source in self.sources:
            folder = getattr(source, "path", Path()).absolute().parent
            for _, row in source.rows(self.columns):
                first, *others = row
                if isinstance(first, str) and isinstance(source, FileSource):
                    first = str(folder / first)
                for column, value in zip(columns, (first, *others), strict=True):
                    column.append(value)
        return columns

    def fingerprint(self) -> str | None:
        """A hash of the content, without a pass over the rows; None if only such a pass tells."""
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
    """Texts and labels of files or of another library's data set, for `fit` and its like.

    They may be larger than memory: they are tokenized once, a few at a time, into an Arrow file of
    the cache, which is found again by their content, the tokenizer and its options. Training maps
    it into memory; batches, shuffling and resuming are those of texts in memory. It needs
    `pip install "keras_transformer[data]"`.

    Args:
        source: the path of a file, a pattern such as `"train-*.parquet"`, or a list of these. Or a
            data frame of pandas, Polars or pyarrow; or a data set of `datasets`, `tf.data` or
            `torch.utils.data`, or a list of rows: dicts, tuples or texts, alone or in batches.
        x: the column of the texts; of pairs of texts a tuple of two. A text file has the column
            `"text"`. A number is the place in a tuple, or in a line of a CSV or TSV file that has
            no header.
        y: the column of the labels or the target texts, if there is one.
        format: `"text"` (a text a line, empty lines do not count), `"csv"`, `"tsv"` (without
            quotes), `"jsonl"` (an object a line) or `"parquet"`. Defaults to what a file's suffix
            says; except for Parquet, `.gz` may follow it.
        encoding: str, the encoding of the files, except Parquet.
        cache: folder for the tokenized texts, which may be removed at any time. Defaults to
            `keras_transformer/tokens` in `$XDG_CACHE_HOME` or `~/.cache`.

    Raises:
        FileNotFoundError: for a file that is not there.
        ImportError: without pyarrow, which comes with `datasets`.
        ValueError: for a wrong column, format or source; for a line when it is read, with its
            number.

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
        raise ImportError("data.read needs pyarrow: pip install 'keras_transformer[data]'.")
    if cache is not None:
        check_path("cache", cache)
    x = x if isinstance(x, tuple) else (x,)
    sources = _sources(source, _checked(x, y), format, encoding)
    if cache is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cache = Path(home, "keras_transformer", "tokens")
    return Records(sources, x, y, Path(cache).expanduser().absolute())


def _checked(x: tuple, y) -> tuple:
    """The columns, which are names or numbers."""
    columns = x if y is None else (*x, y)
    if not 1 <= len(x) <= 2 or not all(
        isinstance(c, (str, int)) and not isinstance(c, bool) for c in columns
    ):
        raise ValueError(
            "`x` must be a column or a tuple of two, and `y` a column, by name or number; received "
            f"x={shorten(x)}, y={shorten(y)}."
        )
    return columns


def _sources(source: Any, columns: tuple, format: str | None, encoding: str) -> list:
    """The files that paths name, or the data set."""
    names = [source] if isinstance(source, (str, os.PathLike)) else source
    if isinstance(names, (list, tuple)) and all(isinstance(n, (str, os.PathLike)) for n in names):
        if not names:
            raise ValueError("Received an empty list: give the path of at least one file.")
        sources = [FileSource(path, format, encoding) for path in find_files(names)]
        for file in sources:
            next(file.rows(columns), None)  # Columns that are not there are to be told at once.
        return sources
    if format is not None:
        raise ValueError(f"format={format!r} is that of files, received a {type(source).__name__}.")
    return [ObjectSource(source)]


def check_texts(texts: list, column, place: Callable[[int], str]) -> None:
    """ValueError, with its place as in `Chunk`, unless it is a text that is not empty."""
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
            except UnicodeEncodeError as error:  # half of a pair, as in JSON's "\ud800"
                raise ValueError(f"{place(index)}: no valid Unicode: {error}.") from None


def _chunk(source, values, numbers, before) -> Chunk:
    columns = [list(column) for column in zip(*values, strict=True)]
    return Chunk(columns, lambda index: source.place(numbers[index]), before + source.done)
