"""The sub-command profile, which shows where the time of a model goes."""

import argparse

import keras_transformer as kt
from keras_transformer.cli.command import ABOUT_PRESET, command, option, positive, say

_WORK = ("fit", "predict", "encode", "generate")
_DTYPES = ("float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "float16")


def _task(preset: str, what: str, dtype: str) -> "kt.Task":
    """Load the task of a preset with random weights, which take the same time as trained ones."""
    source = kt.checkpoints.resolve_preset(preset)
    config, task, _ = source.description
    options = {"load_weights": False, "dtype": dtype}
    if what == "encode":
        return kt.TextEmbedder.from_preset(preset, **options)
    if task is not None:
        return kt.checkpoints.load_task(None, source, **options)
    if config.kind == "encoder":
        kind = kt.TextClassifier if config.stem is None else kt.ImageClassifier
        return kind.from_preset(preset, num_classes=2, **options)
    kind = kt.Seq2SeqLM if config.kind == "seq2seq" else kt.CausalLM
    return kind.from_preset(preset, **options)


@command(
    "profile",
    f"""\
show where the time of a model goes: steps per second, slowest operations, a trace

Runs a few steps of a preset on random data and random weights: training (fit), predict, encode
(vectors of texts) or generate, where a step is a token. Prints the device, steps per second and the
ten operations that took the most time. On a GPU these are kernels, and if the backend's profiler
reports it, also how many kernels the host launched in a step and how often it waited for them.
Writes a trace for https://ui.perfetto.dev (PyTorch, JAX) or TensorBoard (JAX, TensorFlow).

The steps run three times: to compile, to be timed, and under the profiler, which slows them down.

{ABOUT_PRESET}
examples:
  keras-transformer profile minilm_l6_en --what encode --batch-size 4 --length 16 --steps 2
  keras-transformer profile bert_base_en --batch-size 64 --length 128 --dtype mixed_bfloat16
  keras-transformer profile gpt2_base_en --what generate --steps 64 --trace gpt2_trace
""",
    option("preset", "the model", metavar="PRESET"),
    option(
        "--what", f"{', '.join(_WORK)} (default %(default)s)", choices=_WORK, default="fit",
        metavar="WORK",
    ),
    option("--batch-size", "rows in a step (default %(default)s)", type=positive, default=8),
    option("--length", "tokens in a row, or in a prompt (default 64)", type=positive),
    option("--steps", "steps to time (default %(default)s)", type=positive, default=10),
    option(
        "--dtype", f"{', '.join(_DTYPES)} (default %(default)s)", choices=_DTYPES,
        default="float32", metavar="D",
    ),
    option("--trace", "folder for the trace (default %(default)s)", default="trace", metavar="DIR"),
)  # fmt: skip
def _profile(options: argparse.Namespace) -> None:
    from keras_transformer.optimizing.profiling import profile, writable

    writable(options.trace)  # before anything is loaded
    task = _task(options.preset, options.what, options.dtype)
    sizes = (options.batch_size, options.length, options.steps)
    say(f"{options.preset}, {profile(task, options.trace, options.what, *sizes)}")


COMMANDS = (_profile,)
