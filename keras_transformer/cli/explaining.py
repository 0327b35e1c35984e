"""The sub-command that shows what a model saw: explain."""

import argparse
from typing import Any

import keras_transformer as kt
from keras_transformer.cli.command import ABOUT_PRESET, command, option, positive, say
from keras_transformer.cli.generating import forms
from keras_transformer.cli.lines import load
from keras_transformer.files import atomic_file

_OF_BACKBONES = {"encoder": "TextEmbedder", "decoder": "CausalLM", "seq2seq": "Seq2SeqLM"}
_PICTURES = ("heads", "attention", "layers", "saliency")


def number(text: str) -> int:
    """An integer of the command line, which may be below 0."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, received {text!r}") from None


@command(
    "explain",
    f"""\
show what a model saw in a text: attention, and what each token adds

Prints a table of the tokens of TEXT, of what each attends to, and of how spread the attention of
each head is; of a model of images or sound TEXT is a path. Of a pair of texts the second is given
by --pair; of a model that writes, what it writes is explained, or the --output that is given.
--html writes a page with all heads, layers, queries and keys, and --plot a picture.

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
    option("--output", "the text that the model is to have written", metavar="TEXT"),
    option("--html", "write a page that needs no network", metavar="FILE"),
    option("--plot", "write a picture: .png, .pdf or .svg", metavar="FILE"),
    option(
        "--picture",
        "which picture (default: attention, of attributions saliency)",
        choices=_PICTURES,
    ),
    option("--layer", "the layer of the picture, from 0, or from -1 backwards", type=number),
    option("--head", "the head of the picture (default: the mean of all)", type=number),
    option(
        "--saliency",
        "also what each token adds to an output",
        choices=("gradient_x_input", "integrated_gradients"),
    ),
    option("--target", "which output: a class, or a token (default: the likeliest)"),
    option("--position", "which token's output: its place, or itself", metavar="TOKEN"),
    option(
        "--steps", "of integrated gradients (default %(default)s)", type=positive, default=50,
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
    """The task that was trained and saved, or what a backbone alone can be asked."""
    config, saved, _ = kt.checkpoints.load_config(preset, load_weights=False)
    if saved is not None:
        return load(saved["name"], preset)
    reads_text = config.sides[0].stem is None
    if not reads_text or config.kind not in _OF_BACKBONES:
        return load("ImageEmbedder", preset)
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
            raise ValueError("--output is for models that write, and this one writes nothing.")
        return task.explain(text if pair is None else (text, pair), **asked)
    if hasattr(task, "prompt_rows"):  # of an image or a recording
        return task.explain(text, output, pair, **asked)
    if pair is not None:
        raise ValueError("--pair is of two texts that are read: give what is written as --output.")
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
        raise ValueError(f"--layer is of the pictures heads and attention, not of {name}.")
    if options.head is not None and name != "attention":
        raise ValueError(f"--head is of the picture attention, not of {name}.")
    layer = {} if options.layer is None else {"layer": options.layer}
    if name == "attention":
        return explanation.plot_attention(**layer, head=options.head)
    if name == "heads":
        return explanation.plot_heads(**layer)
    return explanation.plot_layers() if name == "layers" else explanation.plot_saliency()


COMMANDS = (_explain,)
