"""What a notebook shows of an object: a table, by IPython's `_repr_html_`."""

from collections.abc import Iterable, Mapping
from html import escape

_LEFT = 'style="text-align:left;vertical-align:top"'


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """A title, and rows of a label and what it is.

    Args:
        title: what is shown, in bold.
        rows: values by label. Those that are None are left out.

    Returns:
        HTML, in which every text stands for itself.

    Example:
    ```python
    from keras_transformer.notebook import html_table

    assert "<td" in html_table("A tokenizer", {"vocabulary": 300})
    ```
    """
    cells = [(label, value) for label, value in rows.items() if value is not None]
    return _table(title, [[("th", label), ("td", as_text(value))] for label, value in cells])


def html_grid(title: str, rows: Iterable[Iterable[object]]) -> str:
    """A title, and rows of as many cells. The first row names the columns."""
    head, *others = ([as_text(value) for value in row] for row in rows)
    lines = [[("th", text) for text in head]]
    lines += [[("td", text) for text in row] for row in others]
    return _table(title, lines)


def as_text(value: object) -> str:
    """A value as people read it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


def _table(title: str, lines: list[list[tuple[str, str]]]) -> str:
    rows = ["".join(f"<{tag} {_LEFT}>{escape(text)}</{tag}>" for tag, text in x) for x in lines]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<div><b>{escape(title)}</b><table><tbody>{body}</tbody></table></div>"
