"""The sub-commands about presets: presets, info."""

import argparse
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import keras_transformer as kt
from keras_transformer.cli.command import ABOUT_PRESET, command, option, positive, say
from keras_transformer.support.checking import printable, shorten


@command(
    "presets",
    """\
print a table of the bundled presets

Prints the bundled presets: their kind, size on disk and the location of their weights.

examples:
  keras-transformer presets
  keras-transformer presets --task token_classification
  keras-transformer presets --language de --parameters "<1B" --license apache-2.0
""",
    option(
        "--task",
        "only presets with a head for this task, such as text_classification or causal_lm",
        metavar="TASK",
    ),
    option("--modality", "what the model reads: text, images, sound or series", metavar="KIND"),
    option("--language", "such as de, which multilingual models fit too", metavar="CODE"),
    option("--parameters", "bounds of the size, such as '<1B' or '>=100M, <1B'", metavar="BOUNDS"),
    option("--license", "the licence of the weights, such as apache-2.0", metavar="NAME"),
)
def _presets(options: argparse.Namespace) -> None:
    rows = [("name", "family", "kind", "parameters", "task", "language", "size on disk", "weights")]
    wanted = {
        name: getattr(options, name)
        for name in ("task", "modality", "language", "parameters", "license")
    }
    for name in kt.list_presets(**wanted):
        source = kt.checkpoints.resolve_preset(name)
        config, task, metadata = kt.checkpoints.load_config(source, load_weights=False)
        files = source.local_weights
        rows.append(
            (
                name,
                metadata.get("family", "-"),
                config.kind,
                f"{metadata['parameters']:,}",
                task["name"] if task else "-",
                ", ".join(metadata.get("languages", ["-"])),
                _size(sum(path.stat().st_size for path in files)) if files else "-",
                "present" if files else _where(source.config.get("weights")),
            )
        )
    _print_table(rows, right=(3, 6))


def _where(pointer: dict[str, str] | None) -> str:
    """Describe where to get weights that are not on this machine, for the table."""
    if pointer is None:
        return "none"
    return f"none: extra [{pointer['extra']}]" if "extra" in pointer else "none: on the hub"


def _head_shapes(config: Any, task: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a head's weights. Raises ValueError if its task is unknown."""
    known = kt.checkpoints.heads.TASKS
    if task["name"] not in known:
        raise ValueError(
            f"The task of the preset is {shorten(task['name'])}, which this release does not have. "
            f"There are: {', '.join(sorted(known))}."
        )
    return known[task["name"]].head_shapes(config, task)


@command(
    "info",
    f"""\
describe a preset: architecture, parameters, sizes

Prints the architecture of a preset, its parameters by part, and the memory that it
takes: the weights, and the key-value cache during generation.

{ABOUT_PRESET}
examples:
  keras-transformer info minilm_l6_en
  keras-transformer info llama3_8b_en --length 8192 --batch 4
""",
    option("preset", "the model", metavar="PRESET"),
    option(
        "--length",
        "tokens in a sequence, for the size of the cache (default: the model's maximum)",
        type=positive,
        metavar="N",
    ),
    option(
        "--batch",
        "sequences generated together (default %(default)s)",
        type=positive,
        default=1,
        metavar="N",
    ),
)
def _info(options: argparse.Namespace) -> None:
    source = kt.checkpoints.resolve_preset(options.preset)
    config, task, metadata = kt.checkpoints.load_config(source, load_weights=False)
    files = source.local_weights
    say(options.preset)
    if "description" in metadata:
        say(metadata["description"])
    say()
    about = {"task": task["name"] if task else "none: a backbone alone"}
    about |= {key: value for key, value in (task or {}).items() if key != "name"}
    about |= {
        key: value for key, value in metadata.items() if key not in ("description", "parameters")
    }
    quantization = kt.checkpoints.read_quantization(source)
    if quantization is not None:
        about["quantized by"] = quantization.scheme
    about["folder"] = source.directory
    about["weights"] = ", ".join(map(str, files)) or "not on this machine"
    _print_table([(k, printable(str(v), one_line=True)) for k, v in about.items() if v is not None])

    say("\narchitecture")
    _print_table([(f"  {key}", str(value)) for key, value in config.flat.items()])

    head = _head_shapes(config, task) if task else {}
    shapes = kt.checkpoints.variable_shapes(config) | {
        f"head/{path}": shape for path, shape in head.items()
    }
    parts: Counter = Counter()
    for path, shape in shapes.items():
        parts[_part(path)] += math.prod(shape)
    total = parts.total()
    say("\nparameters")
    rows = [(f"  {part}", f"{count:,}", f"{count / total:.1%}") for part, count in parts.items()]
    _print_table([*rows, ("  all", f"{total:,}", "")], right=(1, 2))

    say("\nmemory")
    weights = [total * itemsize for itemsize in _ITEM_SIZES.values()]
    rows = [("", *_ITEM_SIZES), ("  weights", *map(_size, weights))]
    if config.kind in ("decoder", "seq2seq"):
        length = options.length or config.max_sequence_length
        source = length if config.kind == "seq2seq" else 0
        taken = [
            kt.generation.Cache.count_bytes(config, options.batch, length, source, itemsize)
            for itemsize in _ITEM_SIZES.values()
        ]
        tokens = f"{length:,} tokens" + (" of source and of target" if source else "")
        label = f"  keys and values, {options.batch} x {tokens}"
        rows.append((label, *map(_size, taken)))
    _print_table(rows, right=(1, 2, 3))
    if files:
        say(f"  weights on disk: {_size(sum(path.stat().st_size for path in files))}")
    if quantization is not None and quantization.memory is not None:
        say(f"  weights in memory, loaded without a dtype: {_size(quantization.memory)}")


# Bytes for each number.
_ITEM_SIZES = {"float32": 4, "float16, bfloat16": 2, "int8": 1}


def _part(path: str) -> str:
    """Return the row of the parameter table that a variable belongs to."""
    names = path.split("/")
    if len(names) > 1 and names[1].startswith("layer_"):
        part = names[2].removesuffix("_norm").replace("_", "-")
        return f"{names[0]} layers: {part}"
    if len(names) > 1 and names[0] in ("encoder", "decoder"):
        part = re.sub(r"^(input_stage_\d+)_.+", r"\1", names[1])  # of a convolutional network
        return f"{names[0]}: {part.replace('_', ' ')}"
    return names[0].replace("_", " ")


def _size(count: int) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _print_table(rows: list[tuple[str, ...]], right: Sequence[int] = ()) -> None:
    """Print rows in aligned columns; the columns in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        say("  ".join(cells).rstrip())


COMMANDS = (_presets, _info)
