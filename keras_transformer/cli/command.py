"""What a sub-command is, and the options that several of them have."""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from keras_transformer.checking import printable

Option = tuple[str, dict[str, Any]]
AS_WRITTEN = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=28)


@dataclasses.dataclass(frozen=True)
class Command:
    """One sub-command, all that there is to say of it."""

    name: str
    text: str  # a few words for the list of all; what it does; `examples:` with lines to copy
    options: tuple[Option, ...]
    run: Callable[[argparse.Namespace], None]  # is given the parsed options

    def add_to(self, commands) -> None:
        """Adds it to the sub-commands of a parser."""
        short, text = self.text.split("\n\n", 1)
        description, examples = text.split("\nexamples:\n")
        parser = commands.add_parser(
            self.name,
            help=short,
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=AS_WRITTEN,
        )
        for name, values in self.options:
            parser.add_argument(name, **values)
        parser.set_defaults(run=self.run)


def command(name: str, text: str, *options: Option) -> Callable[..., Command]:
    """Makes a sub-command of the function that it runs."""
    return lambda run: Command(name, text, options, run)


def option(name: str, help: str, **values) -> Option:
    """An argument: its name, its help, and what else argparse takes."""
    return name, {"help": help, **values}


def say(text: object = "", **options: Any) -> None:
    """Print with control characters escaped: what files and models say is not for the terminal."""
    print(printable(str(text)), **options)


def positive(text: str) -> int:
    """An integer of at least 1, of the command line."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, received {text!r}")
    return value


def above_0(text: str, most: float = 1e30) -> float:
    """A number above 0, by which tokens are drawn."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        bound = "" if most > 1 else f" and at most {most:g}"
        raise argparse.ArgumentTypeError(
            f"must be a number above 0{bound}, received {text!r}. Leave it out: without any of "
            "--temperature, --top-k and --top-p the likeliest token is taken each time"
        )
    return value


ABOUT_PRESET = """\
PRESET is the name of a bundled preset (`keras-transformer presets` prints them), a folder (one
that save_to_preset wrote, or in Hugging Face's format), or hf://org/name for a model on the hub.
"""
