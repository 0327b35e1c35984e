"""Texts in, what a model finds in them out: line by line, in three formats."""

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
from keras_transformer.checking import escaped_json, shorten
from keras_transformer.cli.command import ABOUT_PRESET, Command, Option, option, positive, say

Rows = list[dict[str, Any]]  # What is found in a text, the best first; each with the same names.
# What is found in each of some texts; and a text and what was found in it, as people read it.
Asking = tuple[Callable[[list[str]], list[Rows]], Callable[[str, Rows], str]]

_CHUNK = 4096  # lines that are read, computed and printed together
_ABOUT = f"""
Without a TEXT the texts are the lines of standard input, in UTF-8. Line i of the output belongs to
line i of the input, and an empty line stays empty. --format tsv gives all that was found, in
columns with tabs between them; --format json an object a line, for an empty one too.

{ABOUT_PRESET}"""
_OPTIONS = (
    option("--preset", "the model", required=True, metavar="PRESET"),
    option("texts", "texts, each in quotes; else lines of stdin", nargs="*", metavar="TEXT"),
    option(
        "--format",
        "text to read, or all that was found as tsv or json lines (default %(default)s)",
        choices=("text", "tsv", "json"), default="text",
    ),
    option(
        "--batch-size", "texts computed together (default %(default)s)", type=positive, default=32,
        metavar="N",
    ),
)  # fmt: skip


def asking(name: str, text: str, *options: Option, found: str | None = None):
    """Makes a sub-command that answers each line, of a function that says how."""
    # `found` is what JSON calls all that is found in a text, None for the one thing that there is.

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
    """The task of a preset. That it is of the right kind is seen before its weights are fetched."""
    opened = kt.checkpoints.resolve_preset(preset)
    saved = opened.description[1]
    name = saved["name"] if saved is not None and saved["name"] in also else name
    task_class = getattr(kt, name)
    if trained and (saved is None or saved["name"] != name):
        what = f"a {saved['name']}" if saved else "a backbone alone"
        raise ValueError(
            f"The preset {opened.name!r} is {what}, not a {name}. Take one that is "
            f"(`keras-transformer presets --task {task_class.alias}` lists those that are "
            f"bundled), or train one: {name} with from_preset, fit and save_to_preset."
        )
    return task_class.from_preset(opened)


def reads_images(preset) -> bool:
    """Whether the first side of a preset's model is of images."""
    config = kt.checkpoints.resolve_preset(preset).description[0]
    return getattr(config.sides[0].stem, "image_size", None) is not None


def _read_texts(options: argparse.Namespace) -> Iterator[list[str]]:
    """The texts of the command line, else the lines of standard input, in chunks."""
    for number, text in enumerate(options.texts, 1):
        if not text.strip():
            raise ValueError(f"TEXT {number} is empty.")
    if options.texts:
        return iter([options.texts])
    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError("There is no text. Give texts in quotes, or lines on standard input.")
    lines = _decoded(sys.stdin.buffer)
    return iter(lambda: list(islice(lines, _CHUNK)), [])


def _tell_of_files(texts: list[str]) -> None:
    for text in texts:
        if os.path.isfile(text):
            said = f"{shorten(text)} is taken as a text. The lines of that file are: < {text}"
            say(f"keras-transformer: {said}", file=sys.stderr)


def _decoded(stream: Iterable[bytes]) -> Iterator[str]:
    """Lines of UTF-8 without their ends, and without the byte order mark of some editors."""
    for number, line in enumerate(stream, 1):
        text = decoded(line, f"Line {number} of standard input", with_mark=number == 1)
        yield text.rstrip("\r\n")


def decoded(content: bytes, name: str, with_mark: bool = True) -> str:
    """A text in UTF-8; `with_mark`: it may begin with a byte order mark."""
    try:
        return content.decode("utf-8-sig" if with_mark else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not UTF-8: {shorten(content)}. Convert it, for example with "
            "`iconv -f UTF-16 -t UTF-8`."
        ) from error


def _answer_lines(form: str, chunks: Iterator[list[str]], find, show, name: str | None) -> None:
    """Prints a line for each text, in their order; an empty one for an empty one."""

    def written(line: str, rows: Rows) -> str:
        if form == "json":
            found = {name: rows} if name else dict(*rows)
            # NumPy's numbers and arrays, of which JSON knows nothing, as Python's.
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
    """Errors about a text name its line, from 1, and not its place among those that are asked."""
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
    """A text on one line: its line ends and tabs become spaces."""
    return " ".join(text.split()) if any(mark in text for mark in "\r\n\t") else text


def show_texts(text: str, rows: Rows) -> str:
    """The texts that were found, with tabs between them."""
    return "\t".join(one_line(row["text"]) for row in rows)


def pairs(lines: list[str], what: str) -> tuple[list[str], list[str]]:
    """The two texts of each line, with a tab between them."""
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
