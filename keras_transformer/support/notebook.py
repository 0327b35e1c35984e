"""HTML tables that describe an object in a notebook, for IPython's `_repr_html_`."""

import math
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from keras_transformer.support.checking import printable

_LEFT = 'style="text-align:left;vertical-align:top"'


KINDS = {
    "encoder": "encoder-only",
    "decoder": "decoder-only",
    "seq2seq": "encoder-decoder",
    "dual": "dual encoder",
}
_ROWS = {
    "num_layers": "layers",
    "num_decoder_layers": "decoder layers",
    "hidden_dim": "hidden width",
    "num_heads": "attention heads",
    "num_key_value_heads": "key/value heads",
    "intermediate_dim": "feed-forward width",
    "num_experts": "experts",
    "experts_per_token": "experts per token",
    "expert_dim": "width of an expert",
    "activation": "activation",
    "position": "positions",
    "max_sequence_length": "longest sequence",
    "vocabulary_size": "vocabulary",
}
# Values of the input stem (images, sound, series) that the table shows.
_OF_STEM = (
    "image_size", "frame_size", "patch_size", "num_frames", "num_bins", "context_length",
    "patch_length", "norm", "kernel_sizes", "strides",
)  # fmt: skip


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Return a title and a table of labels and values as HTML. None values are left out."""
    cells = [(label, value) for label, value in rows.items() if value is not None]
    return _table(title, [[("th", label), ("td", as_text(value))] for label, value in cells])


def html_grid(title: str, rows: Iterable[Iterable[object]]) -> str:
    """Return a title and a grid of cells as HTML. The first row names the columns."""
    head, *others = ([as_text(value) for value in row] for row in rows)
    lines = [[("th", text) for text in head]]
    lines += [[("td", text) for text in row] for row in others]
    return _table(title, lines)


def model_rows(
    backbone: dict[str, Any], task: dict[str, Any] | None, metadata: dict[str, Any]
) -> dict[str, Any]:
    """Return labels and values that describe a model, from the parts of a preset's config."""
    rows = {"kind": KINDS[backbone["kind"]], "parameters": metadata.get("parameters")}
    for key, label in _ROWS.items():
        if backbone.get(key) is not None and ("expert" not in key or backbone["num_experts"]):
            rows[label] = backbone[key]
    apart = backbone.get("source")
    sides = backbone["kind"] == "dual" or backbone.get("placeholder_id") is not None
    beside = apart or (sides and (backbone["encoder"] or {})) or {}
    if not backbone["num_layers"]:  # a stem alone, without the values of blocks
        rows.pop("layers", None)
        beside = {n: value for n, value in beside.items() if n in ("hidden_dim", "stem")}
    read = (beside.get("stem") or {}).get("kind", "")
    what = "sound" if "frames" in read else "videos" if read == "tubes" else "images"
    for key in beside:
        shown = key in _ROWS and _ROWS[key] in rows and key not in ("vocabulary_size", "position")
        if shown and beside[key] is not None and ("expert" not in key or beside.get("num_experts")):
            rows[f"{_ROWS[key]}, of {what}"] = beside[key]
    if stem := backbone.get("stem"):
        del rows["longest sequence"], rows["vocabulary"]
    stem = (apart or backbone.get("encoder") or {}).get("stem") or stem
    if stem:
        known = [name for name in _OF_STEM if stem.get(name) not in (None, [], ())]
        words = (f"{name.replace('_', ' ')} {_product(stem[name])}" for name in known)
        rows["reads"] = f"{stem['kind']}, {', '.join(words)}"
    if task:
        rows |= {"task": task["name"]}
        rows |= {"labels": task["labels"]} if task.get("labels") else {}
    return rows


def model_table(
    model: Any, config: Any, task: dict[str, Any] | None = None, tokenizer: Any = None
) -> str:
    """Return the HTML table of a built model, with the options and tokenizer of a task."""
    rows = model_rows(config.flat, task, {"parameters": model.count_params()})
    trainable = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    rows["trainable"] = None if trainable == model.count_params() else trainable
    rows["dtype"] = model.dtype_policy.name
    rows["tokenizer"] = None if tokenizer is None else repr(tokenizer)
    return html_table(f"{type(model).__name__} {model.name!r}", rows)


def as_text(value: object) -> str:
    """Format a value as one line of text, with control characters escaped."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    return printable(str(value), one_line=True)


def _product(value: object) -> str:
    return " x ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _table(title: str, lines: list[list[tuple[str, str]]]) -> str:
    title, lines = printable(title), [[(tag, printable(text)) for tag, text in x] for x in lines]
    rows = ["".join(f"<{tag} {_LEFT}>{escape(text)}</{tag}>" for tag, text in x) for x in lines]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<div><b>{escape(title)}</b><table><tbody>{body}</tbody></table></div>"
