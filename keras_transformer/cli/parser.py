"""The parser of the whole command line."""

import argparse

import keras_transformer as kt
from keras_transformer.cli import (
    asking,
    doctor,
    evaluating,
    explaining,
    exporting,
    forecasting,
    generating,
    optimizing,
    plan,
    presets,
    profiling,
    serving,
    sources,
)
from keras_transformer.cli.command import AS_WRITTEN
from keras_transformer.support.checking import nearest

_PARTS = (
    presets, doctor, plan, asking, generating, sources, forecasting, explaining, evaluating,
    optimizing, profiling, exporting, serving,
)  # fmt: skip
COMMANDS = tuple(command for part in _PARTS for command in part.COMMANDS)

_DESCRIPTION = """\
Transformers in Keras: list the presets, plan resources, and run models on texts from the command
line or from the lines of standard input.
"""

_EXAMPLES = """\
examples:
  keras-transformer presets
  keras-transformer info minilm_l6_en
  keras-transformer plan bert_base_en --batch 32 --length 512
  keras-transformer translate --preset transformer_tiny_en_de "A man rides a bike."
  keras-transformer COMMAND --help

KERAS_BACKEND=jax, tensorflow or torch chooses the backend.
"""


class _Parser(argparse.ArgumentParser):
    """Parser that reports errors as one line, without the usage."""

    def parse_known_args(self, args=None, namespace=None):
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:  # Reported here, since only this parser knows the options of its sub-command.
            name = unknown[0].partition("=")[0]
            known = [option for action in self._actions for option in action.option_strings]
            by_place = {f"--{a.dest}": a.metavar for a in self._actions if not a.option_strings}
            hint = nearest(name, known)
            if name in by_place:
                hint = f" Give {by_place[name]} without {name}."
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint and '.' + hint}")
        return options, unknown

    def error(self, message):
        self.exit(2, f"keras-transformer: error: {message} (see {self.prog} --help)\n")


class _Version(argparse.Action):
    """Action of `--version`, the only option whose parsing imports Keras."""

    def __call__(self, parser, *_):
        import keras

        from keras_transformer.kernels.device import with_backend

        print(with_backend(f"keras_transformer {kt.__version__}, Keras {keras.__version__}"))
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all sub-commands."""
    parser = _Parser(
        "keras-transformer",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=AS_WRITTEN,
    )
    about = "show the release, Keras and the backend, and exit"
    parser.add_argument("-V", "--version", action=_Version, nargs=0, help=about)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    return parser
