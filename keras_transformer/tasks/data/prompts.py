"""Prompts of a table, with the further columns of each."""

from collections.abc import Mapping
from typing import Any

from keras_transformer.data.record_objects import column_names
from keras_transformer.support.checking import describe, shorten
from keras_transformer.support.columns import is_frame, is_table, listed_column, plain

COLUMN = "prompt"


def prompt_rows(data: Any) -> tuple[list, list[dict[str, Any]]]:
    """Return the prompts of `data`, and for each a dict of the further columns.

    `data` is a list of prompts, a list of dicts with the key `"prompt"`, a dict of columns, a data
    frame, or a `datasets.Dataset`. A prompt is a text, a list of token ids, or a list of messages,
    each `{"role": ..., "content": ...}`.

    Raises:
        ValueError: if the data is of another kind or empty, has no column `"prompt"`, or its
            columns differ in length.
    """
    if isinstance(data, str):
        raise ValueError(f"`prompts` must be a list of prompts, received one: {shorten(data)}.")
    if isinstance(data, Mapping) or is_frame(data) or is_table(data):
        data = _rows(data)
    elif not isinstance(data, (list, tuple)) and not hasattr(data, "__array__"):
        raise ValueError(
            "`prompts` must be a list of prompts, a list of dicts, a dict of columns, a data frame "
            f"or a datasets.Dataset, received {describe(data)}."
        )
    data = list(data)
    if not data:
        raise ValueError("`prompts` is empty: there must be at least one prompt.")
    if not isinstance(data[0], Mapping):
        return [plain(prompt, "the prompt") for prompt in data], [{} for _ in data]
    prompts, rows = [], []
    for place, row in enumerate(data):
        if not isinstance(row, Mapping) or COLUMN not in row:
            raise ValueError(
                f"`prompts[{place}]` must be a dict with the key {COLUMN!r}, received "
                f"{describe(row)}."
            )
        prompts.append(row[COLUMN])
        rows.append({name: value for name, value in row.items() if name != COLUMN})
    return prompts, rows


def _rows(data: Any) -> list[dict[str, Any]]:
    names = list(data) if isinstance(data, Mapping) else column_names(data)
    if COLUMN not in names:
        raise ValueError(
            f"The {type(data).__name__} has the columns {shorten(names)}, but none is named "
            f"{COLUMN!r}: rename the column of the prompts."
        )
    columns = {name: listed_column(data[name]) for name in names}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The columns of `prompts` differ in length: {shorten(lengths)}.")
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
