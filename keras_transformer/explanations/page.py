"""Self-contained HTML page of an explanation."""

import base64
import html
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.explanations.values import Values, View
from keras_transformer.support.checking import check_int

_HERE = Path(__file__).parent
# Queries and keys with more numbers than the first limit are kept in 4 bits instead of 8, and with
# more than the second they are left out.
_IN_BYTES, _MOST_NUMBERS = 120_000, 2_000_000
_MOST_IN_NOTEBOOK = 128  # tokens, beyond which a notebook shows the table
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def as_page(explanation: Values, layers: list[int] | None = None) -> str:
    """Return the text of the page.

    Args:
        explanation: `Values`, the fields of an `Explanation`.
        layers: ints, the layers to show. Defaults to all.
    """
    data = json.dumps(_data(explanation, layers), ensure_ascii=False, separators=(",", ":"))
    # These characters are escaped, since a closing tag would end the script even within quotes.
    for char in "<>&\u2028\u2029":
        data = data.replace(char, f"\\u{ord(char):04x}")
    title = html.escape(f"{explanation.model}: {' '.join(explanation.tokens[:12])}")
    style, script = ((_HERE / name).read_text("utf-8") for name in ("page.css", "page.js"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head><body><main></main>"
        f'<script type="application/json" id="data">{data}</script>'
        f"<script>{script}</script></body></html>\n"
    )


def in_notebook(explanation: Values) -> str:
    """Return the page in an isolated frame, or the table as HTML if the text is long."""
    if max(len(explanation.tokens), len(explanation.encoder_tokens or ())) > _MOST_IN_NOTEBOOK:
        return f"<pre>{html.escape(str(explanation))}</pre>"
    page = html.escape(as_page(explanation), quote=True)
    return (
        f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="Explanation" '
        'style="width:100%;height:640px;border:0;color-scheme:normal"></iframe>'
    )


def _data(explanation: Values, layers: list[int] | None) -> dict[str, Any]:
    views = list(explanation.views.values())
    if views and views[-1].name == "cross_attention":  # shown first, as the most interesting
        views = [views[-1], *views[:-1]]
    numbers = sum(x.size for view in views for x in (view.queries, view.keys) if x is not None)
    bits = 0 if numbers > _MOST_NUMBERS else 4 if numbers > _IN_BYTES else 8
    data: dict[str, Any] = {"model": explanation.model, "text": explanation.text}
    data["views"] = [_view(view, layers, bits) for view in views]
    if explanation.logit_lens is not None:
        data["lens"] = [
            [[[word, round(share, 3)] for word, share in best[:3]] for best in layer]
            for layer in explanation.logit_lens
        ]
        data["tokens"] = explanation.tokens
    added = []
    for name in ("encoder_", ""):
        values = getattr(explanation, f"{name}saliency")
        tokens = getattr(explanation, f"{name}tokens")
        if values is not None and values.ndim == 1 and len(values) == len(tokens):
            digits = [float(f"{value:.3g}") for value in values]
            added.append({"tokens": tokens, "values": digits})
    if added:
        data |= {"added": added, "target": explanation.target}
    return data


def _view(view: View, layers: list[int] | None, bits: int) -> dict[str, Any]:
    count = len(view.attention)
    chosen = list(range(count))
    if layers is not None:
        chosen = [
            check_int("layers", i, at_least=-count, at_most=count - 1) % count for i in layers
        ]
    weights = view.attention[chosen]
    found: dict[str, Any] = {
        "title": view.title,
        "rows": view.rows,
        "columns": view.columns,
        "layers": chosen,
        "heads": weights.shape[1],
        "missing": np.isnan(weights).all((2, 3)).astype(int).tolist(),
        # Converted layer by layer: all layers as floats would take several times the memory.
        "weights": _packed(np.stack([_in_bytes(layer) for layer in weights])),
    }
    if bits and view.queries is not None and view.keys is not None:
        found["dim"], found["bits"] = view.queries.shape[-1], bits
        for name, each in (("queries", view.queries), ("keys", view.keys)):
            found[name] = _vectors(np.nan_to_num(each[chosen]), bits)
    return found


def _in_bytes(weights: np.ndarray) -> np.ndarray:
    return np.rint(255 * np.nan_to_num(weights)).astype("uint8")


def _vectors(values: np.ndarray, bits: int) -> dict[str, Any]:
    """Quantize the vectors of each head symmetrically, scaled by their largest absolute number."""
    steps = 2 ** (bits - 1) - 1
    largest = np.maximum(np.abs(values).max(axis=(2, 3)), 1e-9)
    whole = np.rint(values / largest[:, :, None, None] * steps).astype("int64") + steps + 1
    flat = whole.ravel().astype("uint8")
    if bits == 4:  # two per byte
        flat = np.pad(flat, (0, flat.size % 2))
        flat = flat[::2] * 16 + flat[1::2]
    scales = [[float(f"{x:.4g}") for x in row] for row in largest]
    return {"data": _packed(flat), "scales": scales, "heads": values.shape[1]}


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()
