"""Readers of word vector files of GloVe, word2vec and fastText, line by line."""

import gzip
import itertools
import os
import zlib
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import BinaryIO

import numpy as np

from keras_transformer.support.checking import check_int, shorten
from keras_transformer.support.files import check_file

FORMATS = ("auto", "glove", "word2vec", "word2vec_binary", "fasttext")
_LONGEST_LINE = 2**24
_LONGEST_WORD = 2**16
_WIDEST = 2**16
# Number of lines read to find the width, which GloVe does not state. The shortest line decides,
# since some words contain spaces.
_LINES_FOR_WIDTH = 1000

# A word and its vector.
Row = tuple[str, Sequence[float] | np.ndarray]


def read_vectors(
    path: str | os.PathLike,
    format: str = "auto",
    wanted: Collection[str] | None = None,
    limit: int | None = None,
) -> tuple[list[str], np.ndarray]:
    """Read words and their vectors, in the order of the file.

    If a word occurs more than once, its first vector is used. Words are UTF-8; invalid bytes (some
    published word2vec files cut words within a character) become U+FFFD.

    Args:
        path: a file, plain or compressed with gzip.
        format: one of `FORMATS`; `"auto"` detects the format from the first two lines.
        wanted: the words to keep. Defaults to all.
        limit: int, maximum number of lines to read, or of words in a binary file.

    Returns:
        A list of words, and float32 `(words, width)`.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the format is unknown, or the file is incomplete or not in the format.
    """
    if format not in FORMATS:
        known = ", ".join(map(repr, FORMATS))
        raise ValueError(f"Unknown `format` {format!r} of word vectors. Known are: {known}.")
    limit = check_int("limit", limit, at_least=1, none=True)
    check_file(path)
    try:
        if format == "auto":
            format = _format(path)
        width, rows = _ROWS[format](path)
        rows = itertools.islice(rows, limit)
        words, values = _kept(rows, wanted)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}. Fetch it again.") from error
    vectors = np.frombuffer(values, "float32").reshape(-1, width)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        word = words[int(np.argmin(finite))]
        raise ValueError(f"{path}: the vector of {shorten(word)} has a number that is not finite.")
    return words, vectors


def words_by_id(vocabulary: Sequence[str] | Mapping[str, int]) -> list[str]:
    """Return the words in the order of their ids, each once.

    Raises:
        ValueError: if a word is repeated or not a string, or the ids are not 0, 1, 2, ...
    """
    if isinstance(vocabulary, Mapping):
        ids = sorted(vocabulary.values())
        if ids != list(range(len(ids))):
            raise ValueError(
                "The ids of `vocabulary` must be 0, 1, 2, ..., each once, received "
                f"{len(ids)} words with ids from {ids[0]} to {ids[-1]}."
            )
        vocabulary = sorted(vocabulary, key=vocabulary.__getitem__)
    if isinstance(vocabulary, str):
        raise ValueError(
            "`vocabulary` must be a sequence of words or a dict from word to id, received the "
            f"string {shorten(vocabulary)}."
        )
    words, seen = list(vocabulary), set()
    for word in words:
        if not isinstance(word, str):
            raise ValueError(f"`vocabulary` must hold strings, received {shorten(word)}.")
        if word in seen:
            raise ValueError(f"`vocabulary` has {shorten(word)} twice. Give each word one id.")
        seen.add(word)
    if not words:
        raise ValueError("`vocabulary` is empty. Give words, or None to use the words of the file.")
    return words


def _kept(rows: Iterator[Row], wanted: Collection[str] | None) -> tuple[list[str], array]:
    """Keep the first row of each wanted word. An array of bytes grows without a second copy."""
    words, values = {}, array("f")
    missing = None if wanted is None else set(wanted)
    for word, vector in rows:
        if word in words or (missing is not None and word not in missing):
            continue
        words[word] = None
        with np.errstate(over="ignore"):  # it becomes infinite, which the caller refuses
            values.frombytes(np.asarray(vector, "float32").tobytes())
        if missing is not None:
            missing.discard(word)
            if not missing:
                break
    return list(words), values


def _open(path: str | os.PathLike) -> BinaryIO:
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if zipped else open(path, "rb")


def _header(line: bytes) -> tuple[int, int] | None:
    """Return the number of vectors and their width if a line states them, else None."""
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields):
        return None
    return int(fields[0]), int(fields[1])


def _format(path: str | os.PathLike) -> str:
    with _open(path) as file:
        header = _header(file.readline(_LONGEST_LINE))
        if header is None:
            return "glove"
        line = file.readline(_LONGEST_LINE)
    try:
        _parsed(line, header[1])
    except ValueError:
        return "word2vec_binary"
    return "word2vec"


def _parsed(line: bytes, width: int) -> Row:
    """Parse a line of text, split from the right since the word may contain spaces."""
    word, *numbers = line.rstrip(b"\r\n ").rsplit(b" ", width)
    if len(numbers) != width:
        raise ValueError(f"it has {len(numbers)} numbers after a word")
    return word.decode("utf-8", "replace"), [float(number) for number in numbers]


def _lines(path: str | os.PathLike, file: BinaryIO, width: int, first: int) -> Iterator[Row]:
    """Yield the rows of the lines of a file; `first` is the number of the first line."""
    for number in itertools.count(first):
        line = file.readline(_LONGEST_LINE)
        if not line:
            return
        if not line.strip():
            continue
        try:
            yield _parsed(line, width)
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: a word and {width} numbers were expected, but {error}. "
                "Check that the file holds word vectors and is complete."
            ) from None


def _text_rows(path: str | os.PathLike) -> tuple[int, Iterator[Row]]:
    """Read the text format of word2vec and fastText: a header, and a line for each word."""
    count, width = _checked_header(path)

    def rows():
        with _open(path) as file:
            file.readline(_LONGEST_LINE)
            found = 0
            for found, row in enumerate(_lines(path, file, width, 2), 1):
                yield row
                if found == count:
                    return
            raise _cut_off(path, found, count)

    return width, rows()


def _glove_rows(path: str | os.PathLike) -> tuple[int, Iterator[Row]]:
    """Read the format of GloVe: a line for each word; the shortest line tells the width."""
    with _open(path) as file:
        lines = [file.readline(_LONGEST_LINE) for _ in range(_LINES_FOR_WIDTH)]
    fields = [line.rstrip(b"\r\n ").count(b" ") for line in lines if line.strip()]
    width = min(fields, default=0)
    if not 0 < width <= _WIDEST:
        raise ValueError(f"{path} is not a file of word vectors: no line is a word and numbers.")

    def rows():
        with _open(path) as file:
            yield from _lines(path, file, width, 1)

    return width, rows()


def _binary_rows(path: str | os.PathLike) -> tuple[int, Iterator[Row]]:
    """Read word2vec's binary format: a header, then each word, a space, and float32 numbers."""
    count, width = _checked_header(path)

    def rows():
        with _open(path) as file:
            file.readline(_LONGEST_LINE)
            buffer, place = b"", 0
            for found in range(count):
                end = buffer.find(b" ", place)
                while end < 0 or len(buffer) - end - 1 < 4 * width:
                    more = file.read(max(2**20, 8 * width))
                    if not more or (end < 0 and len(buffer) - place > _LONGEST_WORD):
                        raise _cut_off(path, found, count)
                    buffer, place = buffer[place:] + more, 0
                    end = buffer.find(b" ")
                word = buffer[place:end].lstrip(b"\n").decode("utf-8", "replace")
                place = end + 1 + 4 * width
                yield word, np.frombuffer(buffer, "<f4", width, end + 1)

    return width, rows()


def _checked_header(path: str | os.PathLike) -> tuple[int, int]:
    with _open(path) as file:
        line = file.readline(_LONGEST_LINE)
    header = _header(line)
    if header is None or not 0 < header[1] <= _WIDEST or not header[0]:
        raise ValueError(
            f"{path} begins with {shorten(line)}. In this format the first line is the number of "
            'vectors and their width, as in "400000 300"; without one it is format="glove".'
        )
    return header


def _cut_off(path: str | os.PathLike, found: int, count: int) -> ValueError:
    return ValueError(
        f"{path} declares {count} vectors and ends after {found}. Fetch it again, or give its "
        "`format` if this is not the right one."
    )


_ROWS = {
    "glove": _glove_rows,
    "word2vec": _text_rows,
    "fasttext": _text_rows,
    "word2vec_binary": _binary_rows,
}
