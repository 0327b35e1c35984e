"""The console command: what presets there are, and asking one of them."""

import argparse
import math
import os
import pathlib
import sys
from collections import Counter
from collections.abc import Sequence

from keras_transformer.planning import command as planning

# Only what `--help` needs is imported here; each sub-command imports what it uses.

_FAILURE = 2

_DESCRIPTION = (
    "Transformers in Keras: list the presets, plan what a model takes, and classify, translate or "
    "generate text."
)

_PRESET = """\
PRESET is the name of a bundled preset (`keras-transformer presets` prints them), a folder (one
that save_to_preset wrote, or in Hugging Face's format), or hf://org/name for a model on the hub.
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

_CLASSIFY = f"""\
Prints the likeliest label of each text and its probability. The preset must be a classifier that
was trained and saved, as TextClassifier.save_to_preset does:

  import keras_transformer as kt
  classifier = kt.TextClassifier.from_preset("minilm_l6_en", labels=["negative", "positive"])
  classifier.fit(texts, labels, epochs=3)
  classifier.save_to_preset("my_classifier")

{_PRESET}"""

_CLASSIFY_EXAMPLES = """\
examples:
  keras-transformer classify --preset my_classifier "What a film!" "I want my money back."
  keras-transformer classify --preset my_classifier < reviews.txt      one text a line
"""

_TRANSLATE = f"""\
Translates each text with beam search and prints one translation a line.

Write ordinary text. A preset trained on lowercased words with spaces around the punctuation, such
as transformer_tiny_en_de, is given the text in that form, and its output is joined again, but stays
lowercased. It has only seen descriptions of images: "A man rides a bike." goes well, news does not.

{_PRESET}"""

_TRANSLATE_EXAMPLES = """\
examples:
  keras-transformer translate --preset transformer_tiny_en_de "A man rides a bike."
  keras-transformer translate --preset transformer_tiny_en_de < english.txt > german.txt
"""

_GENERATE = f"""\
Continues a prompt with a decoder-only model, and prints prompt and continuation. With --stream the
text comes as it is made.

The likeliest token is taken at each step, unless --temperature, --top-k, --top-p or --beams say
otherwise. Use --seed to get the same random text again.

{_PRESET}"""

_GENERATE_EXAMPLES = """\
examples:
  python examples/language_model.py --output my_model
  keras-transformer generate --preset my_model "ROMEO:" --beams 4 --max-new-tokens 80
  keras-transformer generate --preset my_model "ROMEO:" --stream --top-p 0.9 --temperature 0.8
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: what follows the command's name. Defaults to those of the process.

    Returns:
        The exit code: 0, or 2 after an error, which is one line on stderr.

    Example:
    ```python
    from keras_transformer import cli

    assert cli.main(["presets"]) == 0
    ```
    """
    options = _parser().parse_args(arguments)
    _keep_compiled_programs()
    try:
        options.run(options)
        sys.stdout.flush()
    except (ValueError, OSError, ImportError) as error:
        if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"keras-transformer: error: {' '.join(str(error).split())}", file=sys.stderr)
        return _FAILURE
    except KeyboardInterrupt:
        print("keras-transformer: interrupted", file=sys.stderr)
        return 130
    return 0


def _keep_compiled_programs() -> None:
    """A command lives shortly: JAX is to find what it compiled for an earlier one."""
    jax = sys.modules.get("jax")  # there already if it is the backend
    if jax is None or jax.config.jax_compilation_cache_dir is not None:
        return
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(cache / "keras_transformer" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage."""

    def error(self, message):
        self.exit(_FAILURE, f"keras-transformer: error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "keras-transformer",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name, run, short, description, examples):
        added = commands.add_parser(
            name,
            help=short,
            description=description,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run)
        return added

    presets = command(
        "presets",
        _presets,
        "print a table of the bundled presets",
        "Prints the bundled presets: what they are, their size on disk and where the weights are.",
        "examples:\n  keras-transformer presets\n"
        "  keras-transformer presets --task token_classification\n",
    )
    presets.add_argument(
        "--task", metavar="TASK",
        help="only those with a head for this task, such as text_classification or causal_lm",
    )  # fmt: skip
    info = command(
        "info",
        _info,
        "print what a preset is: architecture, parameters, sizes",
        "Prints the architecture of a preset, its parameters by part, and the memory that it "
        f"takes: the weights, and the keys and values kept in generation.\n\n{_PRESET}",
        "examples:\n  keras-transformer info minilm_l6_en\n"
        "  keras-transformer info llama3_8b_en --length 8192 --batch 4\n",
    )
    info.add_argument("preset", metavar="PRESET")
    info.add_argument(
        "--length", type=_positive, metavar="N",
        help="tokens of a sequence, for the size of the cache (default: the model's longest)",
    )  # fmt: skip
    info.add_argument(
        "--batch", type=_positive, default=1, metavar="N",
        help="sequences generated together (default %(default)s)",
    )  # fmt: skip
    planning.add_arguments(
        command("plan", planning.run, planning.SHORT, planning.DESCRIPTION, planning.EXAMPLES)
    )

    classify = command(
        "classify", _classify, "print the label of texts", _CLASSIFY, _CLASSIFY_EXAMPLES
    )
    translate = command("translate", _translate, "translate texts", _TRANSLATE, _TRANSLATE_EXAMPLES)
    generate = command("generate", _generate, "continue a prompt", _GENERATE, _GENERATE_EXAMPLES)
    for added in (classify, translate, generate):
        added.add_argument("--preset", required=True, metavar="PRESET", help="the model")
    for added in (classify, translate):
        added.add_argument(
            "texts", nargs="*", help="texts, each in quotes; without any, the lines of stdin"
        )
    generate.add_argument("prompt", metavar="PROMPT", help="the text to continue, in quotes")
    for added, beams, length in ((translate, 5, 128), (generate, 1, 64)):
        added.add_argument(
            "--beams", type=_positive, default=beams, metavar="N",
            help="beams of the search; 1 takes the likeliest token each time (default %(default)s)",
        )  # fmt: skip
        added.add_argument(
            "--max-new-tokens", type=_positive, default=length, metavar="N",
            help="longest output, in tokens (default %(default)s)",
        )  # fmt: skip
    generate.add_argument("--stream", action="store_true", help="print the text as it is made")
    for name, kind, meaning in (
        ("--temperature", float, "draw tokens, below 1 the likely ones more often"),
        ("--top-k", _positive, "draw from the K likeliest tokens"),
        ("--top-p", float, "draw from the likeliest tokens that have the probability P together"),
        ("--seed", int, "draw the same text again"),
    ):
        generate.add_argument(name, type=kind, metavar=name[-1].upper(), help=meaning)
    generate.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; can be repeated"
    )
    return parser


def _presets(options) -> None:
    from keras_transformer.checkpoints import list_presets, load_config, resolve_preset

    rows = [("name", "family", "kind", "parameters", "task", "size on disk", "weights")]
    for name in list_presets(options.task):
        source = resolve_preset(name)
        config, task, metadata = load_config(source, load_weights=False)
        files = source.local_weights
        rows.append(
            (
                name,
                metadata.get("family", "-"),
                config.kind,
                f"{metadata['parameters']:,}",
                task["name"] if task else "-",
                _size(sum(path.stat().st_size for path in files)) if files else "-",
                "present" if files else _where(source.config.get("weights")),
            )
        )
    _print_table(rows, right=(3, 5))


def _where(pointer: dict[str, str] | None) -> str:
    """Where weights that are not on this machine come from."""
    if pointer is None:
        return "none"
    return f"none: extra [{pointer['extra']}]" if "extra" in pointer else "none: on the hub"


def _info(options) -> None:
    from keras_transformer.checkpoints import load_config, resolve_preset, variable_shapes
    from keras_transformer.checkpoints.shapes import head_shapes
    from keras_transformer.generation import Cache

    source = resolve_preset(options.preset)
    config, task, metadata = load_config(source, load_weights=False)
    files = source.local_weights
    print(options.preset)
    if "description" in metadata:
        print(metadata["description"])
    print()
    about = {"task": task["name"] if task else "none: a backbone alone"}
    about |= {key: value for key, value in (task or {}).items() if key != "name"}
    about |= {
        key: value for key, value in metadata.items() if key not in ("description", "parameters")
    }
    about["folder"] = source.directory
    about["weights"] = ", ".join(map(str, files)) or "not on this machine"
    _print_table([(key, str(value)) for key, value in about.items() if value is not None])

    print("\narchitecture")
    _print_table([(f"  {key}", str(value)) for key, value in config.to_dict().items()])

    shapes = variable_shapes(config) | {
        f"head/{path}": shape for path, shape in head_shapes(config, task or {}).items()
    }
    parts: Counter = Counter()
    for path, shape in shapes.items():
        parts[_part(path)] += math.prod(shape)
    total = parts.total()
    print("\nparameters")
    rows = [(f"  {part}", f"{count:,}", f"{count / total:.1%}") for part, count in parts.items()]
    _print_table([*rows, ("  all", f"{total:,}", "")], right=(1, 2))

    print("\nmemory")
    weights = [total * itemsize for itemsize in _ITEM_SIZES.values()]
    rows = [("", *_ITEM_SIZES), ("  weights", *map(_size, weights))]
    if config.kind != "encoder":
        length = options.length or config.max_sequence_length
        source = length if config.kind == "seq2seq" else 0
        taken = [
            Cache.count_bytes(config, options.batch, length, source, itemsize)
            for itemsize in _ITEM_SIZES.values()
        ]
        tokens = f"{length:,} tokens" + (" of source and of target" if source else "")
        label = f"  keys and values, {options.batch} x {tokens}"
        rows.append((label, *map(_size, taken)))
    _print_table(rows, right=(1, 2, 3))
    if files:
        print(f"  weights on disk: {_size(sum(path.stat().st_size for path in files))}")


# Bytes of a number.
_ITEM_SIZES = {"float32": 4, "float16, bfloat16": 2, "int8": 1}


def _part(path: str) -> str:
    """The row of the table of parameters that a variable counts in."""
    names = path.split("/")
    if names[1].startswith("layer_"):
        part = names[2].removesuffix("_norm").replace("_", "-")
        return f"{names[0]} layers: {part}"
    if names[0] in ("encoder", "decoder"):
        return f"{names[0]}: {names[1].replace('_', ' ')}"
    return names[0].replace("_", " ")


def _classify(options) -> None:
    from keras_transformer import TextClassifier
    from keras_transformer.checkpoints import load_config, resolve_preset

    source = resolve_preset(options.preset)
    task = load_config(source, load_weights=False)[1]
    if task is None or task["name"] != "TextClassifier":
        saved = f"a {task['name']}" if task else "a backbone alone"
        raise ValueError(
            f"The preset {options.preset!r} is {saved}, not a TextClassifier, and knows no labels. "
            "Train one from it and save that: see `keras-transformer classify --help`."
        )
    texts = [text for text in _texts(options) if text.strip()]
    if not texts:
        return
    answers = TextClassifier.from_preset(source).classify(texts)
    rows = zip(answers, texts, strict=True)
    _print_table([(label, f"{share:.3f}", text) for (label, share), text in rows])


def _translate(options) -> None:
    from keras_transformer import Seq2SeqLM
    from keras_transformer.checkpoints import load_config, resolve_preset
    from keras_transformer.tokenizers import moses_detokenize, moses_tokenize

    source = resolve_preset(options.preset)
    # Said by presets that were trained on text as Moses leaves it.
    tokenized = load_config(source, load_weights=False)[2].get("text") == "moses"
    lines = _texts(options)
    texts = [line for line in lines if line.strip()]
    if not texts:
        return
    translator = Seq2SeqLM.from_preset(source)
    if tokenized:
        texts = [moses_tokenize(text) for text in texts]
    new = translator.generate(
        texts, max_new_tokens=options.max_new_tokens, sampler=_sampler(options)
    )
    # An empty line stays one, so that line i of the output is that of the input.
    translations = iter(moses_detokenize(text) if tokenized else text for text in new)
    for line in lines:
        print(next(translations) if line.strip() else "")


def _generate(options) -> None:
    from keras_transformer import CausalLM

    arguments = {
        "max_new_tokens": options.max_new_tokens,
        "sampler": _sampler(options),
        "stop": options.stop,
        "seed": options.seed,
    }
    lm = CausalLM.from_preset(options.preset)
    if not options.stream:
        print(lm.generate(options.prompt, return_prompt=True, **arguments))
        return
    pieces = lm.generate(options.prompt, stream=True, **arguments)
    print(options.prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _sampler(options):
    from keras_transformer.generation import BeamSearch, Greedy, Random

    given = {name: getattr(options, name, None) for name in ("temperature", "top_k", "top_p")}
    given = {name: value for name, value in given.items() if value is not None}
    if given and options.beams > 1:
        raise ValueError("--beams does not go with --temperature, --top-k and --top-p: choose one.")
    if given:
        return Random(**given)
    return Greedy() if options.beams == 1 else BeamSearch(num_beams=options.beams)


def _texts(options) -> list[str]:
    """The texts of the command line, else the lines of standard input."""
    if options.texts:
        return options.texts
    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError("There is no text. Give texts in quotes, or lines on standard input.")
    return [line.rstrip("\r\n") for line in sys.stdin]


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, received {text!r}")
    return value


def _size(count: int) -> str:
    """Bytes as people write them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _print_table(rows: list[tuple[str, ...]], right: Sequence[int] = ()) -> None:
    """Rows in aligned columns, those of `right` flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


if __name__ == "__main__":
    sys.exit(main())
