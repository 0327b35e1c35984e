"""Registry of task classes and their heads, for presets, families and the command line.

This package may not import the task classes, so they are registered here when `keras_transformer`
is imported. A task class has the attributes `alias` (its name for users), `backbone_kinds`,
`head_shapes` (of its weights), `head_values` (options that the weights depend on),
`processor_class` (its `reads_arrays` are names of the backbone's first input) and `head_class`. The
head's class has `published_as` (the ending of the class names in Transformers), `published_head`,
`published_options`, `reads_pooler` and `predicts_tokens`.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from keras_transformer.support.warned import warn_once

Values = Mapping[str, Any]
_LOGGER = logging.getLogger("keras_transformer")

TASKS: dict[str, type] = {}  # by class name, which a preset stores


def register_tasks(*classes: type) -> None:
    """Register task classes by name."""
    TASKS.update({each.__name__: each for each in classes})


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Conversion, in both directions, of values that do not correspond one to one.

    Args:
        read: function from published values to this package's. May raise ValueError.
        write: function from this package's values, of a config or a task, to published ones.
    """

    read: Callable[[Values], dict[str, Any]]
    write: Callable[[Any], dict[str, Any]]


def _read_labels(values: Values) -> dict[str, Any]:
    labels = values.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
    numbers = [str(i) for i in range(len(labels))] if isinstance(labels, dict) else None
    named = numbers and set(labels) == set(numbers)
    if not named or not all(isinstance(label, str) for label in labels.values()):
        raise ValueError(
            f"id2label must map '0', '1', ... in this order to labels. Received: {labels!r}."
        )
    return {"num_classes": len(labels), "labels": [labels[number] for number in numbers]}


def _write_labels(task: Values) -> dict[str, Any]:
    labels = task["labels"] or [f"LABEL_{i}" for i in range(task["num_classes"])]
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }


def _read_problem(values: Values) -> dict[str, Any]:
    kind, count = values.get("problem_type"), len(values.get("id2label", "ab"))
    if kind not in (None, _MULTI_LABEL) and (kind == "regression") != (count == 1):
        warn_once(
            _LOGGER,
            "problem_type=%r with %s labels cannot be trained here: `predict` gives the same "
            "numbers, but `fit` learns %s.",
            kind,
            count,
            "one number" if count == 1 else "classes",
        )
    return {"multi_label": True} if kind == _MULTI_LABEL else {}


def _write_problem(task: Values) -> dict[str, Any]:
    if task.get("multi_label"):
        return {"problem_type": _MULTI_LABEL}
    return {"problem_type": "regression"} if task["num_classes"] == 1 else {}


def _read_ends(values: Values) -> dict[str, Any]:
    ends = values.get("eos_token_id")
    if ends is None:
        return {}
    return {"end_ids": _token_ids("eos_token_id", ends if isinstance(ends, list) else [ends])}


def _write_ends(task: Values) -> dict[str, Any]:
    ends = list(task.get("end_ids") or ())
    return {"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {}


def _read_start(values: Values) -> dict[str, Any]:
    start = values.get("decoder_start_token_id")
    return {} if start is None else {"start_id": _token_ids("decoder_start_token_id", [start])[0]}


def _write_start(task: Values) -> dict[str, Any]:
    start = task.get("start_id")
    return {} if start is None else {"decoder_start_token_id": start}


def _read_separator(values: Values) -> dict[str, Any]:
    separator = values.get("sep_token_id")
    if separator is None or "attention_window" not in values:
        return {}
    return {"separator_id": _token_ids("sep_token_id", [separator])[0]}


def _write_separator(task: Values) -> dict[str, Any]:
    separator = task.get("separator_id")
    return {} if separator is None else {"sep_token_id": separator}


def _token_ids(name: str, ids: list) -> list[int]:
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ValueError(f"{name} must be a token id. Received: {ids!r}.")
    return list(ids)


_MULTI_LABEL = "multi_label_classification"
# Published values of a saved head: the names of its classes, and how they relate to a text.
LABELS = Conversion(_read_labels, _write_labels)
PROBLEM = Conversion(_read_problem, _write_problem)
# Published values of a task, whether or not the checkpoint has its head.
END_IDS = Conversion(_read_ends, _write_ends)
# Separator of question and context, for models whose question attends globally (Longformer).
SEPARATOR = Conversion(_read_separator, _write_separator)
START_ID = Conversion(_read_start, _write_start)
