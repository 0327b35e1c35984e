"""Preferences: prompts with a better and a worse completion, or with labelled completions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_transformer.support.checking import check_text, describe, shorten
from keras_transformer.support.columns import is_frame, is_table, listed_column, plain

# Columns of tables, as TRL names them.
PAIRS = ("chosen", "rejected")
LABELLED = ("completion", "label")


@dataclass(frozen=True)
class Preferences:
    """Prompts with their completions, each a string or a list of messages.

    Args:
        prompts: list of prompts.
        completions: lists with a completion for each prompt: `(chosen, rejected)`, or with labels
            one list.
        labels: list of bool, whether the completion is desirable. Pairs have None.
    """

    prompts: list
    completions: tuple[list, ...]
    labels: list[bool] | None = None


def read_preferences(x: Any, first: Any = None, second: Any = None) -> Preferences:
    """Read preferences from lists or a table, and check each row.

    Args:
        x: list of prompts; None if each chosen and rejected text begins with its prompt; or, alone,
            a table (`datasets.Dataset`, data frame, dict of lists, list of dicts) with the columns
            `prompt`, `chosen` and `rejected`, or `chosen` and `rejected`, or `prompt`,
            `completion` and `label`.
        first: list of chosen completions, or of labelled ones.
        second: list of rejected completions, or of labels, bool.

    Returns:
        `Preferences`.

    Raises:
        ValueError: if the lists differ in length, or, with the number of the row, if a completion
            is empty, both are the same, a text is missing or neither a string nor messages, a label
            is neither true nor false, or texts without a `prompt` do not begin alike.

    Example:
    ```python
    from keras_transformer.data.preferences import read_preferences

    read = read_preferences({"chosen": ["Hi! Hello"], "rejected": ["Hi! Go"]})
    assert read.prompts == ["Hi!"] and read.completions == ([" Hello"], [" Go"])
    ```
    """
    names = None
    if first is None and second is None:
        x, first, second, names = _of_table(x)
    if first is None or second is None:
        raise ValueError(
            "Give two lists beside the prompts: the chosen and the rejected completions, or "
            "completions and their labels."
        )
    lists = [None if x is None else _listed(x, "prompts"), _listed(first), _listed(second)]
    labels = _labels(lists[2], names)
    names = names or (("completions", "labels") if labels is not None else PAIRS)
    count = len(lists[1])
    for name, rows in zip(("prompts", *names), lists, strict=True):
        if rows is not None and len(rows) != count:
            raise ValueError(
                f"Received {count} {names[0]} texts and {len(rows)} {name}: give one for each row."
            )
    if count == 0:
        raise ValueError("There are no rows: give at least one prompt with its completions.")
    texts = lists[: 3 if labels is None else 2]
    places = ("prompts", *names)
    texts = [
        rows if rows is None else [_text(row, f"{place}[{i}]") for i, row in enumerate(rows)]
        for place, rows in zip(places, texts, strict=False)
    ]
    if texts[0] is None:
        if labels is not None:
            raise ValueError("Completions with labels need their `prompts`.")
        texts = list(zip(*map(_split, texts[1], texts[2], range(count)), strict=True))
    prompts, *completions = map(list, texts)
    completions = [
        [_like_prompt(prompt, row) for prompt, row in zip(prompts, rows, strict=True)]
        for rows in completions
    ]
    _check_rows(prompts, completions, names)
    return Preferences(prompts, tuple(completions), labels)


def _of_table(table: Any) -> tuple:
    """Return prompts or None, two columns, and the names of the latter."""
    columns, column = _columns(table)
    for names in (PAIRS, LABELLED):
        if set(names) <= set(columns):
            prompts = column("prompt") if "prompt" in columns else None
            return prompts, *map(column, names), names
    raise ValueError(
        "A table of preferences needs the columns 'chosen' and 'rejected', with 'prompt' unless "
        "both texts begin with it; or 'prompt', 'completion' and 'label'. Received "
        f"{shorten(columns) if columns else describe(table)}."
    )


def _columns(table: Any) -> tuple:
    if isinstance(table, Mapping) and all(map(_is_sized, table.values())):
        return list(table), table.__getitem__
    if is_table(table):
        return list(table.column_names), lambda name: listed_column(table[name])
    if is_frame(table):
        return list(map(str, table.columns)), lambda name: listed_column(table[name])
    rows = isinstance(table, (list, tuple)) and table and all(isinstance(r, Mapping) for r in table)
    if rows and "role" not in table[0]:
        return list(table[0]), lambda name: [row.get(name) for row in table]
    return [], None


def _is_sized(values: Any) -> bool:
    return hasattr(values, "__len__") and not isinstance(values, (str, bytes))


def _listed(rows: Any, name: str = "completions") -> list:
    rows = plain(rows, f"`{name}`") if hasattr(rows, "dtype") else rows
    if isinstance(rows, (str, bytes, Mapping)) or not hasattr(rows, "__iter__"):
        raise ValueError(f"`{name}` must be a list, received {describe(rows)}: put it in [].")
    return list(rows)


def _labels(rows: list, names: tuple[str, str] | None) -> list[bool] | None:
    """Return the second list as labels if it has any."""
    is_label = [isinstance(row, (bool, int, np.bool_, np.integer)) for row in rows]
    if names == PAIRS or (names is None and not any(is_label)):
        return None
    for i, (row, right) in enumerate(zip(rows, is_label, strict=True)):
        if not right or row not in (0, 1):
            raise ValueError(f"labels[{i}] must be True or False, received {describe(row)}.")
    return [bool(row) for row in rows]


def _text(row: Any, place: str) -> Any:
    """Return a string or a list of messages. Raises ValueError if it is neither."""
    row = plain(row, place) if isinstance(row, np.ndarray) else row
    if isinstance(row, str):
        check_text(place, row)
        return row
    if isinstance(row, (list, tuple)) and all(isinstance(message, Mapping) for message in row):
        for i, message in enumerate(row):
            for key in ("role", "content"):
                if not isinstance(message.get(key), str):
                    raise ValueError(
                        f"{place}[{i}] must be a message with the strings 'role' and 'content', "
                        f"received {shorten(message)}."
                    )
        return [dict(message) for message in row]
    raise ValueError(
        f"{place} must be a string or a list of messages, received {describe(row)}. Remove the row "
        "or fill it in."
    )


def _split(chosen: Any, rejected: Any, row: int) -> tuple:
    """Split two texts or conversations after what they have in common at their beginning."""
    if type(chosen) is not type(rejected):
        raise ValueError(f"Row {row} has a string and a conversation: give two of one kind.")
    pairs = zip(chosen, rejected, strict=False)
    length = next((i for i, (one, two) in enumerate(pairs) if one != two), None)
    if length is None:
        length = min(len(chosen), len(rejected))
    elif length and chosen[length - 1] == " ":  # the space belongs to the first word after it
        length -= 1
    if length == 0:
        raise ValueError(
            f"Row {row} has no `prompt`, and its chosen and rejected texts do not begin alike: "
            f"{shorten(chosen)} and {shorten(rejected)}. Give the prompts apart."
        )
    return chosen[:length], chosen[length:], rejected[length:]


def _like_prompt(prompt: Any, completion: Any) -> Any:
    """Return a string after a conversation as the assistant's message."""
    if isinstance(prompt, list) and isinstance(completion, str) and completion:
        return [{"role": "assistant", "content": completion}]
    return completion


def _check_rows(prompts: list, completions: list[list], names: tuple[str, str]) -> None:
    for row, prompt in enumerate(prompts):
        texts = [rows[row] for rows in completions]
        for name, text in zip(names, texts, strict=False):
            if not text or (isinstance(text, list) and not text[-1]["content"]):
                raise ValueError(
                    f"{name}[{row}] is empty: there is nothing to prefer. Remove the row, or give "
                    "its completion."
                )
            if type(text) is not type(prompt):
                raise ValueError(
                    f"{name}[{row}] is a conversation, but its prompt is a string. Give the prompt "
                    "as messages too."
                )
        if len(texts) == 2 and texts[0] == texts[1]:
            raise ValueError(
                f"chosen[{row}] and rejected[{row}] are the same, {shorten(texts[0])}, so neither "
                "is preferred. Remove the row."
            )
