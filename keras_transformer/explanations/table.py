"""Table of an explanation for a terminal."""

import unicodedata

import numpy as np

from keras_transformer.explanations.values import Values

_MOST_ROWS = 60
_MOST_WIDTH = 18


def as_table(explanation: Values) -> str:
    """Return the text that `print` shows: a line for each token, and the entropy of each head."""
    lines = [explanation.model]
    if explanation.text is not None:
        lines.append(f"wrote: {explanation.text!r}")
    if explanation.target is not None:
        lines.append(f"attributions of {explanation.target}{_missed(explanation.gap)}")
    for name, view in explanation.views.items():
        own = {"encoder_attention": "encoder_saliency"}.get(name, "saliency")
        lines += ["", f"{view.title}, mean of the heads of the last layer"]
        lines += _grid(_rows(explanation, view, getattr(explanation, own)))
    for name, view in explanation.views.items():
        lines += ["", f"Entropy of heads in nats: {view.title.lower()}"]
        heads = [f"head {i}" for i in range(view.attention.shape[1])]
        spread = explanation.entropy(name)
        rows = [[f"layer {i}", *map(_number, row)] for i, row in enumerate(spread)]
        lines += _grid([["", *heads], *rows])
    return "\n".join(lines)


def _rows(explanation: Values, view, saliency) -> list[list[str]]:
    weights = np.nanmean(view.attention[-1], axis=0)
    with_saliency = saliency is not None and saliency.ndim == 1 and len(saliency) == len(view.rows)
    with_saliency = with_saliency and view.name != "cross_attention"
    lens = explanation.logit_lens if view.name == "attention" else None
    head = ["", "token", *(["adds"] if with_saliency else []), "attends to"]
    head += ["likeliest next"] if lens else []
    rows = [head]
    for i, token in enumerate(view.rows[:_MOST_ROWS]):
        row = [str(i), _cut(token)]
        row += [f"{saliency[i]:+.3f}"] if with_saliency else []
        best = np.argsort(-weights[i], kind="stable")[:3]
        row.append("  ".join(f"{_cut(view.columns[j])} {weights[i, j]:.2f}" for j in best))
        if lens:
            row.append("  ".join(f"{_cut(word)} {share:.2f}" for word, share in lens[-1][i][:3]))
        rows.append(row)
    if len(view.rows) > _MOST_ROWS:
        rows.append(["", f"... {len(view.rows) - _MOST_ROWS} more"])
    return rows


def _missed(gap: float | None) -> str:
    return "" if gap is None else f", which miss the difference to the baseline by {gap:.2g}"


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.2f}"


def _cut(text: str) -> str:
    """Return a token on one line, without characters that move a terminal's cursor."""
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return text if len(text) <= _MOST_WIDTH else f"{text[: _MOST_WIDTH - 1]}…"


def _grid(rows: list[list[str]]) -> list[str]:
    columns = max(map(len, rows))
    rows = [[*row, *[""] * (columns - len(row))] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (cell + " " * (n - _width(cell)) for cell, n in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    return lines


def _width(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(bool(unicodedata.combining(char)) for char in text)
