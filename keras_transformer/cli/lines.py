"""Input of sub-commands from lines of text, and their output in three formats."""

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import keras_transformer as kt
from keras_transformer.cli.command import ABOUT_PRESET, Command, Option, option, positive, say
from keras_transformer.support.checking import escaped_json, shorten

Rows = list[dict[str, Any]]  # results for one text, the best first; all with the same keys
# A function from texts to their results, and one that formats a text's results for reading.
Asking = tuple[Callable[[list[str]], list[Rows]], Callable[[str, Rows], str]]

_CHUNK = 4096  # lines that are read, computed and printed at a time
_ABOUT = f"""
Without a TEXT the texts are the lines of standard input, in UTF-8. Line i of the output belongs to
line i of the input, and an empty line stays empty. --format tsv prints all results as tab-separated
columns; --format json prints an object for each line, even an empty one.

{ABOUT_PRESET}"""
_OPTIONS = (
    option("--preset", "the model", required=True, metavar="PRESET"),
    option("texts", "texts, each in quotes; default: lines of stdin", nargs="*", metavar="TEXT"),
    option(
        "--format",
        "readable text, or all results as tsv or json lines (default %(default)s)",
        choices=("text", "tsv", "json"), default="text",
    ),
    option(
        "--batch-size", "texts computed together (default %(default)s)", type=positive, default=32,
        metavar="N",
    ),
)  # fmt: skip


def asking(name: str, text: str, *options: Option, found: str | None = None):
    """Return a decorator that makes a sub-command, which prints the results for each input text.

    The decorated function takes the parsed options and returns an `Asking`. `found` is the JSON key
    of a text's results; None merges the values of a single result into the text's JSON object.
    """

    def make(prepare: Callable[[argparse.Namespace], Asking]) -> Command:
        def run(given: argparse.Namespace) -> None:
            chunks = _read_texts(given)
            find, show = prepare(given)
            if not getattr(find, "takes_files", False):
                _tell_of_files(given.texts)
            _answer_lines(given.format, chunks, find, show, found)

        about = text.replace("\nexamples:\n", f"{_ABOUT}\nexamples:\n")
        return Command(name, about, (*_OPTIONS, *options), run)

    return make


def load(name: str, preset, trained: bool = False, also: tuple[str, ...] = ()):
    """Load the task of a preset. Its kind is checked before any weights are downloaded.

    Args:
        name: name of the task's class.
        preset: name, folder or URL of the preset.
        trained: whether the preset must have a trained head. Defaults to False.
        also: names of classes that are accepted too.
    """
    opened = kt.checkpoints.resolve_preset(preset)
    saved = opened.description[1]
    name = saved["name"] if saved is not None and saved["name"] in also else name
    task_class = getattr(kt, name)
    if trained and (saved is None or saved["name"] != name):
        what = f"a {saved['name']}" if saved else "a backbone alone"
        raise ValueError(
            f"The preset {opened.name!r} is {what}, not a {name}. Choose another "
            f"(`keras-transformer presets --task {task_class.alias}` lists the bundled ones), or "
            f"train one with {name}.from_preset, fit and save_to_preset."
        )
    return task_class.from_preset(opened)


def embedder_of(preset) -> str:
    """Return the name of the task that embeds what the first side of a preset's model reads."""
    stem = kt.checkpoints.resolve_preset(preset).description[0].sides[0].stem
    if stem is not None and (hasattr(stem, "num_bins") or stem.kind == "waveform"):
        return "AudioEmbedder"
    if stem is not None and stem.kind == "tubes":
        return "VideoEmbedder"
    return "TextEmbedder" if getattr(stem, "image_size", None) is None else "ImageEmbedder"


def _read_texts(options: argparse.Namespace) -> Iterator[list[str]]:
    """Return the texts of the command line, or the lines of standard input, in chunks."""
    for number, text in enumerate(options.texts, 1):
        if not text.strip():
            raise ValueError(f"TEXT {number} is empty.")
    if options.texts:
        return iter([options.texts])
    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError(
            "There is no input text. Give texts in quotes, or lines on standard input."
        )
    lines = _decoded(sys.stdin.buffer)
    return iter(lambda: list(islice(lines, _CHUNK)), [])


def _tell_of_files(texts: list[str]) -> None:
    for text in texts:
        if os.path.isfile(text):
            said = f"{shorten(text)} is read as a text. To read the lines of that file: < {text}"
            say(f"keras-transformer: {said}", file=sys.stderr)


def _decoded(stream: Iterable[bytes]) -> Iterator[str]:
    """Decode lines of UTF-8, and remove line ends and the byte order mark."""
    for number, line in enumerate(stream, 1):
        text = decoded(line, f"Line {number} of standard input", with_mark=number == 1)
        yield text.rstrip("\r\n")


def decoded(content: bytes, name: str, with_mark: bool = True) -> str:
    """Decode UTF-8 text; `with_mark` allows a byte order mark at the beginning."""
    try:
        return content.decode("utf-8-sig" if with_mark else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not UTF-8: {shorten(content)}. Convert it, for example with "
            "`iconv -f UTF-16 -t UTF-8`."
        ) from error


def _answer_lines(form: str, chunks: Iterator[list[str]], find, show, name: str | None) -> None:
    """Print the results of each text on a line, in order; an empty text gives an empty line."""

    def written(line: str, rows: Rows) -> str:
        if form == "json":
            found = {name: rows} if name else dict(*rows)
            # Convert NumPy's numbers and arrays to Python's for JSON.
            text = {"text": line, **found}
            said = json.dumps(text, ensure_ascii=False, default=lambda value: value.tolist())
            return escaped_json(said)
        if form == "tsv":
            return "\t".join(_cells(row[key] for row in rows for key in row))
        return show(line, rows) if line.strip() else ""

    before = 0
    for lines in chunks:
        places = [place for place, line in enumerate(lines) if line.strip()]
        with _naming_lines([before + place + 1 for place in places]):
            found = iter(find([lines[place] for place in places]) if places else [])
        before += len(lines)
        for line in lines:
            say(written(line, next(found) if line.strip() else []))
        sys.stdout.flush()


@contextlib.contextmanager
def _naming_lines(numbers: list[int]) -> Iterator[None]:
    """Rewrite errors about the i-th text so that they name its line, from 1, instead of `i`."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        place = re.search(
            r"`(texts|prompts|sources|targets|questions|contexts|x)\[(\d+)\]`", str(error)
        )
        if place is None or int(place[2]) >= len(numbers):
            raise
        said = f"line {numbers[int(place[2])]} (`{place[1]}`)"
        raise type(error)(str(error).replace(place[0], said)) from error


def one_line(text: str) -> str:
    """Put a text on one line: line ends and tabs become spaces."""
    return " ".join(text.split()) if any(mark in text for mark in "\r\n\t") else text


def show_texts(text: str, rows: Rows) -> str:
    """Format the texts of all results, separated by tabs."""
    return "\t".join(one_line(row["text"]) for row in rows)


def pairs(lines: list[str], what: str) -> tuple[list[str], list[str]]:
    """Split each line at its tab into two texts."""
    for line in lines:
        if line.count("\t") != 1:
            raise ValueError(
                f"Each line must be {what}, with one tab between them, received {shorten(line)}."
            )
    first, second = zip(*(line.split("\t") for line in lines), strict=True)
    return list(first), list(second)


def _cells(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            marks = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
            yield value.translate(str.maketrans(marks))
        elif isinstance(value, list):
            yield from _cells(value)
        else:
            yield f"{value:.7g}" if isinstance(value, float) else str(value)
