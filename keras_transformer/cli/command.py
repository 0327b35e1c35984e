"""Definition of sub-commands, and the options that several of them share."""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from keras_transformer.support.checking import printable

Option = tuple[str, dict[str, Any]]
AS_WRITTEN = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=28)


@dataclasses.dataclass(frozen=True)
class Command:
    """A sub-command: its name, help, options and function."""

    name: str
    text: str  # a short summary; a description; `examples:` with commands to copy
    options: tuple[Option, ...]
    run: Callable[[argparse.Namespace], None]  # called with the parsed options

    def add_to(self, commands) -> None:
        """Add this sub-command to a parser."""
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
    """Return a decorator that turns a function into a sub-command, which runs the function."""
    return lambda run: Command(name, text, options, run)


def option(name: str, help: str, **values) -> Option:
    """Describe an argument: its name, its help, and further keywords of argparse."""
    return name, {"help": help, **values}


def say(text: object = "", **options: Any) -> None:
    """Print a text from a file or a model, with control characters escaped for the terminal."""
    print(printable(str(text)), **options)


def positive(text: str) -> int:
    """Parse an integer of at least 1 from the command line."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, received {text!r}")
    return value


def above_0(text: str, most: float = 1e30) -> float:
    """Parse a sampling option, a number above 0 and up to `most`, from the command line."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        bound = "" if most > 1 else f" and at most {most:g}"
        raise argparse.ArgumentTypeError(
            f"must be a number above 0{bound}, received {text!r}. To take the most likely token "
            "each time, leave out --temperature, --top-k and --top-p"
        )
    return value


ABOUT_PRESET = """\
PRESET is the name of a bundled preset (`keras-transformer presets` prints them), a folder (one
that save_to_preset wrote, or in Hugging Face's format), or hf://org/name for a model on the hub.
"""
