"""The sub-command explain, which shows a model's attention and attributions."""

import argparse
from typing import Any

import keras_transformer as kt
from keras_transformer.cli.command import ABOUT_PRESET, command, option, positive, say
from keras_transformer.cli.generating import forms
from keras_transformer.cli.lines import embedder_of, load
from keras_transformer.support.files import atomic_file

_OF_BACKBONES = {"encoder": "TextEmbedder", "decoder": "CausalLM", "seq2seq": "Seq2SeqLM"}
_PICTURES = ("heads", "attention", "layers", "saliency")


def number(text: str) -> int:
    """Parse an integer, which may be negative, from the command line."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, received {text!r}") from None


@command(
    "explain",
    f"""\
show attention and attributions of a model for a text

Prints a table of the tokens of TEXT, the tokens that each attends to, and how spread out the
attention of each head is. For a model of images or audio TEXT is a path. --pair gives the second
text of a pair. For a model that generates, the text it generates is explained, or the given
--output. --html writes a page with all heads, layers, queries and keys, and --plot a picture.

{ABOUT_PRESET}
examples:
  keras-transformer explain minilm_l6_en "It was too tired to cross." --html tired.html
  keras-transformer explain transformer_tiny_en_de "a man rides a bike ." --plot words.png
  keras-transformer explain gpt_tiny_shakespeare "ROMEO: what" --picture layers --plot lens.pdf
  keras-transformer explain splice_sites ACGTACGT --saliency integrated_gradients
""",
    option("preset", "the model", metavar="PRESET"),
    option("text", "a text in quotes, or the path of an image or a recording", metavar="TEXT"),
    option("--pair", "the second text of a pair, such as a context or a caption", metavar="TEXT"),
    option("--output", "explain this text as the model's output", metavar="TEXT"),
    option("--html", "write a page that needs no network", metavar="FILE"),
    option("--plot", "write a picture: .png, .pdf or .svg", metavar="FILE"),
    option(
        "--picture",
        "kind of picture (default: attention, or saliency with --saliency)",
        choices=_PICTURES,
    ),
    option("--layer", "layer of the picture, from 0, or from -1 backwards", type=number),
    option("--head", "head of the picture (default: the mean over heads)", type=number),
    option(
        "--saliency",
        "also compute what each token contributes to an output",
        choices=("gradient_x_input", "integrated_gradients"),
    ),
    option("--target", "the output to explain: a class, or a token (default: the most likely)"),
    option("--position", "explain the output of this token, or this index", metavar="TOKEN"),
    option(
        "--steps", "steps of integrated gradients (default %(default)s)", type=positive, default=50,
        metavar="N",
    ),
)  # fmt: skip
def _explain(options: argparse.Namespace) -> None:
    task = _task_of(options.preset)
    explanation = _explanation(task, options)
    if options.html is not None:
        explanation.to_html(options.html)
    if options.plot is not None:
        with atomic_file(options.plot) as scratch:
            _picture(explanation, options).savefig(scratch, dpi=150)
    say(explanation)


def _task_of(preset: str) -> Any:
    """Load the task of a preset, or, if it is a backbone alone, a task that suits it."""
    config, saved, _ = kt.checkpoints.load_config(preset, load_weights=False)
    if saved is not None:
        return load(saved["name"], preset)
    reads_text = config.sides[0].stem is None
    if not reads_text or config.kind not in _OF_BACKBONES:
        return load(embedder_of(preset), preset)
    return load(_OF_BACKBONES[config.kind], preset)


def _explanation(task: Any, options: argparse.Namespace) -> Any:
    target = options.target
    if target is not None and target.lstrip("-").isdigit() and target not in _names(task):
        target = int(target)
    position = options.position
    if position is not None and position.lstrip("-").isdigit():
        position = int(position)
    asked = {"saliency": options.saliency, "target": target, "position": position}
    asked |= {"steps": options.steps}
    text, pair, output = options.text, options.pair, options.output
    if not hasattr(task, "generate"):
        if output is not None:
            raise ValueError("--output is for models that generate text, and this one does not.")
        return task.explain(text if pair is None else (text, pair), **asked)
    if hasattr(task, "prompt_rows"):  # the text is the path of an image or recording
        return task.explain(text, output, pair, **asked)
    if pair is not None:
        raise ValueError(
            "--pair is for models that read two texts. Give the text to generate as --output."
        )
    split, _ = forms(options.preset)
    if output is not None:
        (output,) = split([output])
    (text,) = split([text])
    return task.explain(text, output, **asked)


def _names(task: Any) -> list[str]:
    return getattr(task, "label_names", [])


def _picture(explanation: Any, options: argparse.Namespace) -> Any:
    name = options.picture or ("saliency" if options.saliency else "attention")
    if options.layer is not None and name not in ("heads", "attention"):
        raise ValueError(f"--layer is for the pictures heads and attention, not for {name}.")
    if options.head is not None and name != "attention":
        raise ValueError(f"--head is for the picture attention, not for {name}.")
    layer = {} if options.layer is None else {"layer": options.layer}
    if name == "attention":
        return explanation.plot_attention(**layer, head=options.head)
    if name == "heads":
        return explanation.plot_heads(**layer)
    return explanation.plot_layers() if name == "layers" else explanation.plot_saliency()


COMMANDS = (_explain,)
