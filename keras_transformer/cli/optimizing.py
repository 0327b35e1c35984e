"""The sub-command that measures dtypes: optimize."""

import argparse

import keras_transformer as kt
from keras_transformer.cli.command import ABOUT_PRESET, command, option, positive


@command(
    "optimize",
    f"""\
measure which dtype is fastest here

Runs a preset in float32, bfloat16, int8 and int4, and, for a model that generates on PyTorch, with
packed weights, in turns, on random tokens. Prints how long each takes and how far its outputs move
from float32. What it finds holds for this machine, the backend of KERAS_BACKEND, and sizes like
these.

{ABOUT_PRESET}
examples:
  keras-transformer optimize transformer_tiny_en_de --batch-size 32 --length 20
  keras-transformer optimize minilm_l6_en --modes bfloat16 int8
""",
    option("preset", "the model", metavar="PRESET"),
    option("--batch-size", "rows of a batch (default %(default)s)", type=positive, default=8),
    option("--length", "tokens of a row, or of a prompt (default 64)", type=positive),
    option(
        "--new-tokens",
        "tokens that a model that generates adds (default %(default)s)",
        type=positive,
        default=32,
    ),
    option("--modes", "measure these alone, beside float32", nargs="+", metavar="MODE"),
    option("--rounds", "how often each is run (default %(default)s)", type=positive, default=5),
)
def _optimize(options: argparse.Namespace) -> None:
    from keras_transformer.exporting.child import load_model

    task = load_model(options.preset)
    if not isinstance(task, kt.Task):  # a backbone alone: by its vectors
        task = kt.TextEmbedder.from_preset(options.preset)
    kt.optimize(
        task,
        batch_size=options.batch_size,
        length=options.length,
        new_tokens=options.new_tokens,
        modes=options.modes,
        rounds=options.rounds,
    )


COMMANDS = (_optimize,)
