"""What a sub-command is, and the options that several of them have."""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

Option = tuple[str, dict[str, Any]]
AS_WRITTEN = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=28)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """One sub-command, all that there is to say of it.

    Args:
        name: what is typed.
        short: a few words, for the list of all.
        description: what it does, in whole sentences.
        examples: lines to copy.
        options: its arguments, see `option`.
        run: is given the parsed options.
    """

    name: str
    short: str
    description: str
    examples: str
    options: tuple[Option, ...]
    run: Callable[[argparse.Namespace], None]

    def add_to(self, commands) -> None:
        """Adds it to the sub-commands of a parser."""
        parser = commands.add_parser(
            self.name,
            help=self.short,
            description=self.description,
            epilog=f"examples:\n{self.examples}",
            formatter_class=AS_WRITTEN,
        )
        for name, values in self.options:
            parser.add_argument(name, **values)
        parser.set_defaults(run=self.run)


def option(name: str, help: str, **values) -> Option:
    """An argument: its name, its help, and what else argparse takes."""
    return name, {"help": help, **values}


def positive(text: str) -> int:
    """An integer of at least 1, of the command line."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, received {text!r}")
    return value


ABOUT_PRESET = """\
PRESET is the name of a bundled preset (`keras-transformer presets` prints them), a folder (one
that save_to_preset wrote, or in Hugging Face's format), or hf://org/name for a model on the hub.
"""

ABOUT_LINES = """\
Without a TEXT the texts are the lines of standard input, in UTF-8. Line i of the output belongs to
line i of the input, and an empty line stays empty. --format tsv gives all that was found, in
columns with tabs between them; --format json an object a line, for an empty one too.
"""

PRESET = option("--preset", "the model", required=True, metavar="PRESET")
TEXTS = option("texts", "texts, each in quotes; else lines of stdin", nargs="*", metavar="TEXT")
FORMAT = option(
    "--format", "text to read, or all that was found as tsv or json lines (default %(default)s)",
    choices=("text", "tsv", "json"), default="text",
)  # fmt: skip
BATCH_SIZE = option(
    "--batch-size", "texts computed together (default %(default)s)", type=positive, default=32,
    metavar="N",
)  # fmt: skip
ASKING = (PRESET, TEXTS, FORMAT, BATCH_SIZE)


def top_k(default: int) -> Option:
    """How many results each text has."""
    return option(
        "--top-k", "the K likeliest (default %(default)s)", type=positive, default=default,
        metavar="K",
    )  # fmt: skip
