"""The sub-command optimize, which measures dtypes."""

import argparse

import keras_transformer as kt
from keras_transformer.cli.command import ABOUT_PRESET, command, option, positive


@command(
    "optimize",
    f"""\
measure which dtype is fastest on this machine

Runs a preset on random tokens in float32, bfloat16, int8 and int4, by turns, and on PyTorch a model
that generates also with packed weights. Prints the time of each and how far its outputs deviate
from float32. The results hold for this machine, the backend of KERAS_BACKEND, and similar sizes.

{ABOUT_PRESET}
examples:
  keras-transformer optimize transformer_tiny_en_de --batch-size 32 --length 20
  keras-transformer optimize minilm_l6_en --modes bfloat16 int8
""",
    option("preset", "the model", metavar="PRESET"),
    option("--batch-size", "rows in a batch (default %(default)s)", type=positive, default=8),
    option("--length", "tokens in a row, or in a prompt (default 64)", type=positive),
    option(
        "--new-tokens",
        "tokens to generate, for a generating model (default %(default)s)",
        type=positive,
        default=32,
    ),
    option("--modes", "measure only these dtypes, and float32", nargs="+", metavar="MODE"),
    option(
        "--rounds", "number of runs of each dtype (default %(default)s)", type=positive, default=5
    ),
)
def _optimize(options: argparse.Namespace) -> None:
    from keras_transformer.exporting.child import load_model

    task = load_model(options.preset)
    if not isinstance(task, kt.Task):  # a backbone alone: compare its vectors
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
