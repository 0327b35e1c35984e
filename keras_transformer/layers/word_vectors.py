"""Files of word vectors: those of GloVe, word2vec and fastText, read line by line."""

import gzip
import itertools
import os
import zlib
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import BinaryIO

import numpy as np

from keras_transformer.checking import check_int, shorten
from keras_transformer.files import check_file

FORMATS = ("auto", "glove", "word2vec", "word2vec_binary", "fasttext")
_LONGEST_LINE = 2**24
_LONGEST_WORD = 2**16
_WIDEST = 2**16
# GloVe has no header, and some of its words have spaces, which make lines longer and never shorter.
_LINES_FOR_WIDTH = 1000

# A word, its vector, and where it stands.
Row = tuple[str, Sequence[float] | np.ndarray]


def read_vectors(
    path: str | os.PathLike,
    format: str = "auto",
    wanted: Collection[str] | None = None,
    limit: int | None = None,
) -> tuple[list[str], np.ndarray]:
    """Words and their vectors, in the order of the file.

    Of a word that stands there more than once the first vector counts. Words are UTF-8; bytes that
    are not (some published files of word2vec cut words within a character) become U+FFFD.

    Args:
        path: a file, which may be compressed by gzip.
        format: one of `FORMATS`; `"auto"` tells them apart by the first two lines.
        wanted: the words to keep. Defaults to all.
        limit: int, how many lines, or words of a binary file, are read at most.

    Returns:
        A list of words, and float32 `(words, width)`.

    Raises:
        FileNotFoundError: without such a file.
        ValueError: for an unknown format, and a file that is not whole or not of the format.
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
    """The words in the order of their ids, each once.

    Raises:
        ValueError: for a word given twice, what is no word, and ids that are not 0, 1, 2, ...
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
            raise ValueError(f"`vocabulary` has {shorten(word)} twice, so that it has two ids.")
        seen.add(word)
    if not words:
        raise ValueError("`vocabulary` is empty. Give words, or None for those of the file.")
    return words


def _kept(rows: Iterator[Row], wanted: Collection[str] | None) -> tuple[list[str], array]:
    """The first row of each wanted word. An array of bytes grows without a second copy of all."""
    words, values = {}, array("f")
    missing = None if wanted is None else set(wanted)
    for word, vector in rows:
        if word in words or (missing is not None and word not in missing):
            continue
        words[word] = None
        with np.errstate(over="ignore"):  # infinite then, which the caller refuses
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
    """The number of vectors and their width, where a line says it."""
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
    """A line of text. What has spaces is the word: a line is split from the right."""
    word, *numbers = line.rstrip(b"\r\n ").rsplit(b" ", width)
    if len(numbers) != width:
        raise ValueError(f"it has {len(numbers)} numbers behind a word")
    return word.decode("utf-8", "replace"), [float(number) for number in numbers]


def _lines(path: str | os.PathLike, file: BinaryIO, width: int, first: int) -> Iterator[Row]:
    """The rows of the lines of a file, the first of which has this number."""
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
                "Is it a file of word vectors, and whole?"
            ) from None


def _text_rows(path: str | os.PathLike) -> tuple[int, Iterator[Row]]:
    """Those of word2vec and fastText: a header, and a line for each word."""
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
    """Those of GloVe: a line for each word, whose width is that of the shortest."""
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
    """Those of word2vec: a header, and for each word the word, a space, and float32 numbers."""
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
