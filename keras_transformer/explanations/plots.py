"""Figures of explanations, made with matplotlib."""

from typing import Any

import numpy as np

from keras_transformer.explanations.values import Values, View
from keras_transformer.support.checking import check_int

_MOST_LABELS = 48
# Tokens of a text of which the logit lens is drawn: letters in more cells could not be read.
_MOST_GUESSES = 24
# Colormaps of weights from 0 to 1, and of numbers with a sign. Their lightness changes evenly, so
# that prints without color are readable too.
_SHARES, _SIGNED = "Blues", "RdBu"


def make_figure(
    rows: int = 1,
    columns: int = 1,
    widths: list[float] | None = None,
    sharex: bool = False,
    **options: Any,
) -> tuple[Any, Any]:
    """Make a figure and its axes with matplotlib's objects, without changing global state.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            'Plots need matplotlib. Run `pip install "keras_transformer[plots]"`.'
        ) from error
    figure = Figure(layout="constrained", **options)
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, width_ratios=widths, sharex=sharex)
    return figure, axes


def heads(explanation: Values, view: str | None, layer: int | None) -> Any:
    """Plot a small map of the attention of each head, with a row for each layer."""
    found = explanation.view(view)
    layers, count = found.attention.shape[:2]
    chosen = range(layers) if layer is None else [_layer(layer, layers)]
    size = max(0.55, min(1.1, 13 / count))
    figure, axes = make_figure(
        len(chosen), count, figsize=(count * size + 0.9, len(chosen) * size + 0.8)
    )
    for line, number in zip(axes, chosen, strict=True):
        for head, axis in enumerate(line):
            weights = found.attention[number, head]
            axis.set_xticks([])
            axis.set_yticks([])
            if np.isnan(weights).all():
                axis.axis("off")
                continue
            axis.imshow(weights, cmap=_SHARES, vmin=0, vmax=1, aspect="auto", rasterized=True)
            for spine in axis.spines.values():
                spine.set_linewidth(0.4)
        line[0].set_ylabel(str(number), rotation=0, ha="right", va="center", fontsize=8)
    for head, axis in enumerate(axes[0]):
        axis.set_title(str(head), fontsize=8)
    figure.supxlabel(f"{found.title}: queries down, keys to the right", fontsize=8)
    figure.supylabel("layer", fontsize=8)
    figure.suptitle("head", fontsize=8)
    return figure


def attention(explanation: Values, layer: int, head: int | None, view: str | None) -> Any:
    """Plot the weights of one head, or the mean of a layer's heads, token by token."""
    found = explanation.view(view)
    number = _layer(layer, len(found.attention))
    weights, name = np.nanmean(found.attention[number], axis=0), "mean of the heads"
    if head is not None:
        count = found.attention.shape[1]
        head = check_int("head", head, at_least=-count, at_most=count - 1) % count
        weights, name = found.attention[number, head], f"head {head}"
    rows, columns = weights.shape
    width, height = (min(12.0, max(2.2, 0.24 * n)) for n in (columns, rows))
    figure, ((axis,),) = make_figure(figsize=(width + 1.6, height + 1.1))
    image = axis.imshow(weights, cmap=_SHARES, vmin=0, vmax=max(float(np.nanmax(weights)), 1e-9))
    _label(axis.set_xticks, found.columns, rotation=90)
    _label(axis.set_yticks, found.rows)
    axis.set_xlabel("key", fontsize=9)
    axis.set_ylabel("query", fontsize=9)
    axis.set_title(f"{found.title}\nlayer {number}, {name}", fontsize=9)
    bar = figure.colorbar(image, ax=axis, fraction=0.046, pad=0.02)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_linewidth(0.4)
    return figure


def layers(explanation: Values, view: str | None) -> Any:
    """Plot how spread the heads of each layer are, and a language model's logit lens."""
    found, lens = explanation.view(view), explanation.logit_lens
    if lens is None:
        figure, ((axis,),) = make_figure(figsize=(4.8, 3.0))
        _entropies(axis, explanation, found)
        return figure
    # Wide enough for the letters of a cell; of a long text only the last tokens are shown.
    shown = min(len(explanation.tokens), _MOST_GUESSES)
    width, height = 0.8 * shown + 1.6, max(3.0, 0.36 * len(lens) + 1.3)
    figure, ((axis, table),) = make_figure(1, 2, widths=[2.8, width], figsize=(3.4 + width, height))
    _entropies(axis, explanation, found)
    _lens(figure, table, explanation)
    return figure


def _entropies(axis: Any, explanation: Values, found: View) -> None:
    spread = explanation.entropy(found.name)
    for head in spread.T:
        axis.plot(
            head, "o", color="#5b8db8", markersize=3, alpha=0.7, clip_on=False, markeredgewidth=0
        )
    axis.plot(np.nanmean(spread, axis=1), color="#1f3b57", linewidth=1.5, label="mean")
    most = np.log(found.attention.shape[-1])
    axis.axhline(most, color="#999999", linewidth=0.8, linestyle=":")
    axis.text(0, most, "all keys alike", fontsize=7, color="#666666", va="bottom")
    axis.set_ylim(0, most * 1.12 or 1)
    axis.set_xticks(range(len(spread)))
    axis.set_xlabel("layer", fontsize=8)
    axis.set_ylabel("entropy of a head, nats", fontsize=8)
    axis.set_title(found.title, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=7)


def _lens(figure: Any, axis: Any, explanation: Values) -> None:
    lens = explanation.logit_lens
    assert lens is not None
    likeliest = [[best[0] for best in layer[-_MOST_GUESSES:]] for layer in lens]
    shares = np.array([[share for _, share in layer] for layer in likeliest])
    image = axis.imshow(shares, cmap=_SHARES, vmin=0, vmax=1, aspect="auto")
    for i, layer in enumerate(likeliest):
        for j, (token, share) in enumerate(layer):
            color = "white" if share > 0.6 else "#222222"
            text = _short(token, 9).replace("$", r"\$")
            axis.text(j, i, text, ha="center", va="center", fontsize=9, color=color)
    _label(axis.set_xticks, explanation.tokens[-_MOST_GUESSES:], rotation=90)
    axis.set_yticks(range(len(lens)), ["input", *map(str, range(len(lens) - 1))], fontsize=9)
    axis.set_ylabel("behind layer", fontsize=9)
    hidden = len(explanation.tokens) - shares.shape[1]
    tail = f", last {shares.shape[1]} tokens" if hidden else ""
    axis.set_title(f"Likeliest next token at each layer (logit lens){tail}", fontsize=9)
    bar = figure.colorbar(image, ax=axis, fraction=0.02, pad=0.01)
    bar.set_label("probability", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_linewidth(0.4)


def saliency(explanation: Values) -> Any:
    """Plot how much each token, or each place of an image, adds to the output."""
    found = [
        (values, tokens, side)
        for values, tokens, side in (
            (explanation.encoder_saliency, explanation.encoder_tokens, "encoder"),
            (explanation.saliency, explanation.tokens, "decoder"),
        )
        if values is not None
    ]
    if not found:
        raise ValueError(
            'There are no attributions. Use explain(x, saliency="integrated_gradients").'
        )
    sizes = [0.22 * len(v) if v.ndim == 1 and len(v) == len(t) else 3.2 for v, t, _ in found]
    height = max(1.8, min(12.0, max(sizes)))
    figure, (line,) = make_figure(1, len(found), figsize=(3.6 * len(found), height + 0.9))
    largest = max(float(np.abs(values).max()) for values, *_ in found) or 1.0
    least = min(float(values.min()) for values, *_ in found)
    for axis, (values, tokens, side) in zip(line, found, strict=True):
        if len(found) > 1:
            axis.set_title(side, fontsize=8)
        if values.ndim == 2:
            axis.imshow(values, cmap=_SIGNED, vmin=-largest, vmax=largest)
            axis.set_xticks([])
            axis.set_yticks([])
        elif len(values) == len(tokens):
            colors = ["#2166ac" if value >= 0 else "#b2182b" for value in values]
            axis.barh(range(len(values)), values, color=colors, height=0.75)
            _label(axis.set_yticks, tokens)
            axis.set_ylim(len(values) - 0.4, -0.6)
            axis.set_xlim(min(least * 1.05, 0), largest * 1.05)  # the same in both plots
            axis.axvline(0, color="#444444", linewidth=0.6)
            axis.spines[["top", "right", "left"]].set_visible(False)
            axis.tick_params(axis="y", length=0)
            axis.tick_params(axis="x", labelsize=7)
        else:
            axis.plot(values, color="#2166ac", linewidth=0.8)
            axis.axhline(0, color="#444444", linewidth=0.6)
    figure.suptitle(f"added to {explanation.target}", fontsize=9, wrap=True)
    return figure


def _layer(layer: int, count: int) -> int:
    return check_int("layer", layer, at_least=-count, at_most=count - 1) % count


def _label(set_ticks: Any, tokens: tuple[str, ...], **options: Any) -> None:
    """Label an axis with tokens; if there are many, only some of them."""
    step = -(-len(tokens) // _MOST_LABELS)
    places = range(0, len(tokens), step)
    size = 8 if len(tokens) <= 30 else 6.5
    # Escaped, since matplotlib takes a dollar sign as the start of a formula.
    names = [_short(tokens[i], 16).replace("$", r"\$") for i in places]
    set_ticks(places, names, fontsize=size, **options)


def _short(token: str, most: int) -> str:
    token = "".join(char if char.isprintable() else "·" for char in token)
    return token if len(token) <= most else f"{token[: most - 1]}…"
