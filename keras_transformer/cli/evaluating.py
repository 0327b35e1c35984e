"""The sub-command evaluate: scores on benchmarks, of texts with references, and perplexity."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras_transformer as kt
from keras_transformer.cli.command import ABOUT_PRESET, command, option, positive, say
from keras_transformer.support.checking import load_json

if TYPE_CHECKING:
    from keras_transformer.evaluating import Scores

_OF_TASKS = (
    "include_path", "trust_tasks", "num_fewshot", "limit", "apply_chat_template",
    "system_instruction", "gen_kwargs", "seed",
)  # fmt: skip
# What is evaluated, and the options that apply to it.
_APPLY = {
    "tasks": (*_OF_TASKS, "max_length"),
    "texts": ("columns", "metrics", "ignore", "gen_kwargs"),
    "perplexity": ("stride", "max_length"),
}
_METRICS = "rouge1, rouge2, rougeL, bleu, chrf, wer, cer, exact_match"
_COLUMNS = ("source", "target")


def _number(text: str) -> float:
    """Parse a limit: a number of questions, or a share of them."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, received {text!r}") from None


def _option(text: str) -> tuple[str, Any]:
    """Parse an option of generation, a name and a value of JSON or a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, received {text!r}")
    try:
        return name, load_json(value)
    except ValueError:
        return name, value


def _column(text: str) -> str | int:
    """Parse the name of a column, or its number in a file without a header."""
    return int(text) if text.isdecimal() else text


@command(
    "evaluate",
    f"""\
score a model on benchmarks, or its texts by references

Scores a model that continues texts with EleutherAI's lm-eval, and a model of text vectors with
MTEB, in this process: the numbers can be compared with those that others publish. Run
pip install "keras_transformer[scores]", or [mteb] for vectors.

Or writes a text for each source in a file, such as a summary, a translation or the words of a
recording, and compares it with the reference in the same row (--texts). Run
pip install "keras_transformer[metrics,bleu]". Or prints the perplexity of a file.

Tasks are downloaded from the hub, or found in a folder with YAML files (--include-path). A task of
a folder that could run code is refused without --trust-tasks.

{ABOUT_PRESET}
examples:
  keras-transformer evaluate gpt_tiny_shakespeare --tasks sonnet_lines sonnets play_words \\
      --include-path examples/evaluation_tasks
  keras-transformer evaluate hf://org/name --tasks hellaswag arc_easy --num-fewshot 5 --format json
  keras-transformer evaluate minilm_l6_en --tasks STSBenchmark
  keras-transformer evaluate speech_digits_to_text --texts digits.csv --columns file words \\
      --metrics wer cer
  keras-transformer evaluate bart_large_en_cnn --texts news.jsonl --columns article highlights \\
      --metrics rouge1 rouge2 rougeLsum --gen-kwargs max_new_tokens=142
  keras-transformer evaluate gpt_tiny_shakespeare --perplexity text.txt --stride 128
""",
    option("preset", "the model", metavar="PRESET"),
    option("--tasks", "names of tasks, groups or tags", nargs="+", metavar="TASK"),
    option(
        "--texts", "a file of sources and references: CSV, TSV, JSON lines or Parquet",
        metavar="FILE",
    ),
    option(
        "--columns", f"columns of --texts, by name or number (default: {' '.join(_COLUMNS)})",
        type=_column, nargs=2, metavar=("SOURCE", "REFERENCE"),
    ),
    option("--metrics", f"metrics of --texts, such as {_METRICS}", nargs="+", metavar="METRIC"),
    option(
        "--ignore", "what wer, cer and exact_match leave out: case, punctuation, articles, spaces",
        nargs="+", metavar="WHAT",
    ),
    option("--perplexity", "a file whose perplexity is computed", type=Path, metavar="FILE"),
    option(
        "--stride", "tokens between windows of --perplexity (default: half of a window)",
        type=positive, metavar="N",
    ),
    option("--include-path", "a folder with tasks as YAML files", metavar="FOLDER"),
    option("--trust-tasks", "allow tasks to run code", action="store_true"),
    option("--num-fewshot", "examples before each question", type=int, metavar="N"),
    option(
        "--limit", "the most questions of each task, or a share below 1: to try out", type=_number,
        metavar="N",
    ),
    option(
        "--apply-chat-template", "ask in the form of the tokenizer's chats", action="store_true"
    ),
    option("--system-instruction", "a text at the beginning of each prompt", metavar="TEXT"),
    option(
        "--gen-kwargs",
        "options of generation: max_gen_toks=64 of --tasks, max_new_tokens=64 of --texts",
        type=_option, nargs="+", metavar="NAME=VALUE",
    ),
    option("--max-length", "the most tokens that the model reads", type=positive, metavar="N"),
    option("--batch-size", "texts that are computed together (default %(default)s)",
           type=positive, default=32),
    option("--seed", "seed of examples and sampling (default: the harness's)", type=int),
    option(
        "--format", "text, markdown or json (default %(default)s)", default="text",
        choices=("text", "markdown", "json"),
    ),
)  # fmt: skip
def _evaluate(options: argparse.Namespace) -> None:
    what = _asked(options)
    if what == "perplexity":
        return _show_perplexity(options)
    if what == "texts":
        return _show(options, _scores_of_texts(options))
    arguments = {name: getattr(options, name) for name in _OF_TASKS}
    if options.gen_kwargs is not None:
        arguments["gen_kwargs"] = dict(options.gen_kwargs)
    scores = kt.evaluate(
        options.preset, options.tasks, **arguments, max_length=options.max_length,
        batch_size=options.batch_size, verbose=options.format == "text",
    )  # fmt: skip
    return _show(options, scores)


def _asked(options: argparse.Namespace) -> str:
    """Return what is evaluated. Raises ValueError if an option does not apply to it."""
    asked = [name for name in _APPLY if getattr(options, name) is not None]
    if len(asked) != 1:
        raise ValueError(
            "Give one of --tasks, the names of benchmarks, --texts, a file of sources and "
            "references, and --perplexity, a file."
        )
    names = dict.fromkeys(name for names in _APPLY.values() for name in names)
    for name in names:
        if getattr(options, name) not in (None, False) and name not in _APPLY[asked[0]]:
            only = " and ".join(f"--{what}" for what, own in _APPLY.items() if name in own)
            raise ValueError(f"--{name.replace('_', '-')} only applies to {only}.")
    return asked[0]


def _scores_of_texts(options: argparse.Namespace) -> "Scores":
    if options.metrics is None:
        raise ValueError(f"--texts needs --metrics, such as {_METRICS}.")
    x, y = options.columns or _COLUMNS
    return kt.evaluating.evaluate_texts(
        options.preset, kt.data.read(options.texts, x=x, y=y), metrics=options.metrics,
        ignore=options.ignore or (), batch_size=options.batch_size,
        verbose=options.format == "text", **dict(options.gen_kwargs or ()),
    )  # fmt: skip


def _show(options: argparse.Namespace, scores: "Scores") -> None:
    if options.format != "text":  # the table is already printed, at the end of the progress bars
        say(scores.markdown() if options.format == "markdown" else _json(scores))


def _show_perplexity(options: argparse.Namespace) -> None:
    if not options.perplexity.is_file():
        raise FileNotFoundError(f"--perplexity {options.perplexity}: there is no such file.")
    task = kt.CausalLM.from_preset(options.preset)
    found = task.perplexity(options.perplexity, options.stride, options.max_length)
    if options.format == "json":
        return say(json.dumps({"perplexity": found}))
    return say(f"{found:.4f}")


def _json(scores: "Scores") -> str:
    about = {"model": scores.model, "harness": scores.harness, "settings": scores.settings}
    versions = {row.task: row.version for row in scores.rows}
    return json.dumps({**about, "versions": versions, "scores": scores.numbers}, indent=2)


COMMANDS = (_evaluate,)
