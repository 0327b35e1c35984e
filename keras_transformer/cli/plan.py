"""The sub-command plan, which estimates the resources of a step of a model."""

import argparse
import json
import pathlib

import keras_transformer as kt
from keras_transformer.cli.command import command, option, say
from keras_transformer.planning.table import size
from keras_transformer.support.files import read_file


def _config(preset: str):
    """Load the config of a preset, or from a JSON file."""
    path = pathlib.Path(preset)
    if path.suffix != ".json":
        source = kt.checkpoints.resolve_preset(preset)
        return kt.checkpoints.load_config(source, load_weights=False)[0]
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no file {preset!r}. Give a JSON file with the values of a config."
        )
    try:
        return kt.TransformerConfig.from_json(read_file(path, 2**22).decode("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{preset!r} is not a JSON file: {error}") from error
    except ValueError as error:
        raise ValueError(f"{preset!r} is not the config of a model: {error}") from error


_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def quantity(text: str) -> float:
    """Parse a number of bytes or operations, such as `80G`, `312 TFLOP/s` or `3.35e12`."""
    short = text.strip().removesuffix("/s").removesuffix("FLOP").removesuffix("B").strip()
    factor = short[-1:] if short[-1:] in _FACTORS else ""
    try:
        value = float(short.removesuffix(factor)) * _FACTORS[factor]
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(
            f"must be a number above 0, such as 80G, 1.5T or 3.35e12, received {text!r}"
        )
    return value


@command(
    "plan",
    """\
plan training or generation: parameters, memory, layout, time

Estimates what a step of a model takes before you pay for it: parameters, operations, memory of a
device part by part, layout of the model on the devices, and the time of a step. Nothing is built,
loaded or allocated: GPT-3 on 1,024 devices is planned on a laptop in a second.

PRESET is the name of a bundled preset (`keras-transformer presets` prints them), a folder, a model
on the hub (hf://org/name), or a JSON file with the values of a TransformerConfig, such as
config.to_json() writes: {"kind": "decoder", "vocabulary_size": 50257, "hidden_dim": 768, ...}.

Memory. Weights, optimizer and gradients are exact. Activations are what XLA keeps for the backward
pass, with and without rematerialization (keras.RematScope(mode="full")); in float32 the total is
within a tenth of what XLA reports for steps compiled for a CPU. Gradients are created while
activations are freed, so the peak counts the larger of the two: gradients count twice if they are
summed over several copies of the model, otherwise hardly at all, since each weight is updated as
soon as its gradient is ready. Clipping by global norm keeps all gradients: add them. An encoder is
planned as a masked language model.

Layout. A mesh of data x model devices, as kt.distribution lays it out: each column of the data
axis has a part of the batch; the devices along the model axis share the heads, the inner width of
the feed-forward layers and the vocabulary. With --memory the model axis is the shortest that fits.

Time. --flops is what a device reaches in matrix products: half of the figure in its data sheet is a
good start. --bandwidth is its rate of sending to other devices. No overlap is assumed.

Write sizes as 80G, 1.5T or 3.35e12, with factors of 1000, not 1024. A trailing B or /s is allowed.

examples:
  keras-transformer plan bert_base_en --batch 32 --length 512
  keras-transformer plan gpt3_175b_en --devices 1024 --batch 64 --length 2048 \\
      --dtype mixed_bfloat16 --memory 141G --flops 400T --bandwidth 300G
  keras-transformer plan transformer_big --batch 64 --length 256 --target-length 256
  keras-transformer plan llama3_8b_en --generate --batch 16 --length 8192 --dtype bfloat16
  keras-transformer plan llama3_8b_en --batch 1 --length 1024 --dtype int4_from_bfloat16 \\
      --lora-rank 16 --memory 12G
  keras-transformer plan my_config.json --devices 8 --model-parallel 4 --batch 64 --length 1024
""",
    option("preset", "preset, folder, hf:// name or JSON file with a config", metavar="PRESET"),
    option("--devices", "devices (default %(default)s)", type=int, default=1, metavar="N"),
    option("--batch", "rows, over all devices", type=int, required=True, metavar="B"),
    option(
        "--length",
        "tokens in a row, or in the source of an encoder-decoder (default: the model's maximum)",
        type=int, metavar="L",
    ),
    option(
        "--target-length", "tokens in the target of an encoder-decoder (default: --length)",
        type=int, metavar="L",
    ),
    option(
        "--dtype",
        "float32, mixed_bfloat16 (weights in float32), mixed_float16, bfloat16 (weights too), "
        "float16, int8, int4, or such as int4_from_bfloat16 (default %(default)s)",
        default="float32", metavar="D",
    ),
    option(
        "--optimizer", "adamw, adam, lion, rmsprop or sgd (default %(default)s)",
        default="adamw", metavar="NAME",
    ),
    option(
        "--lora-rank", "plan the training of adapters of this rank, beside frozen weights",
        type=int, metavar="R",
    ),
    option(
        "--lora-targets", "dense layers that get adapters (default: query value)", nargs="+",
        default=("query", "value"), metavar="NAME",
    ),
    option("--generate", "plan generation with a cache, not training", action="store_true"),
    option(
        "--model-parallel",
        "devices that share a model (default: the fewest whose memory suffices)",
        type=int, metavar="M",
    ),
    option(
        "--fsdp",
        "devices that see different rows and share weights, gradients and optimizer; 0 for the "
        "fewest whose memory suffices (default %(default)s)",
        type=int, default=1, metavar="F",
    ),
    option("--memory", "memory of a device, such as 80G", type=quantity, metavar="BYTES"),
    option(
        "--flops", "operations that a device does per second, such as 150T", type=quantity,
        metavar="FLOP/S",
    ),
    option(
        "--bandwidth", "bytes that a device sends per second, such as 300G", type=quantity,
        metavar="BYTES/S",
    ),
)  # fmt: skip
def _plan(options: argparse.Namespace) -> None:
    config = _config(options.preset)
    made = kt.planning.make_plan(
        config,
        batch_size=options.batch,
        length=config.max_sequence_length if options.length is None else options.length,
        target_length=options.target_length,
        devices=options.devices,
        dtype=options.dtype,
        optimizer=options.optimizer,
        generating=options.generate,
        lora_rank=options.lora_rank,
        lora_targets=options.lora_targets,
        model_parallel=options.model_parallel,
        fsdp=options.fsdp or None,
        device_memory=options.memory,
        flops=options.flops,
        bandwidth=options.bandwidth,
    )
    say(f"{options.preset}: {made}")
    if pathlib.Path(options.preset).suffix != ".json":
        _say_quantization(options)


def _say_quantization(options: argparse.Namespace) -> None:
    """Print what the weights of a quantized checkpoint take; the plan is of unpacked ones."""
    found = kt.checkpoints.read_quantization(options.preset)
    if found is None:
        return
    kept = ""
    if found.memory is not None:
        kept = (
            f" They have {size(found.stored)} on disk, and take {size(found.memory)} in memory as "
            "`from_preset` keeps them without a dtype, to generate and predict."
        )
    say(
        f"\nThe weights are quantized ({found.scheme}). The plan is of weights unpacked to "
        f"{options.dtype}, as they are trained.{kept}"
    )


COMMANDS = (_plan,)
