"""The description `export.json` of an exported folder, for programs that run the model."""

from collections.abc import Mapping
from typing import Any

import keras

# Version of `export.json`, incremented when programs that read it must change.
VERSION = 1


def describe_export(task: keras.Model, format: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `export.json`: the model, and its labels, special ids and cache.

    Args:
        task: a task or a backbone.
        format: str, the name of the format.
        options: dict of the options of the format.
    """
    backbone = getattr(task, "backbone", task)
    decoder = backbone.config.sides[-1]
    said: dict[str, Any] = {
        "version": VERSION,
        "format": format,
        "options": dict(options),
        "kind": backbone.config.kind,
        "task": None if task is backbone else type(task).__name__,
        "max_length": decoder.max_sequence_length,
        "vocabulary_size": decoder.vocabulary_size,
    }
    if task is not backbone:
        said |= {"labels": getattr(task, "labels", None), "pad_id": _pad_id(task)}
    if getattr(task, "generates", False):
        said |= {"end_ids": list(task.end_ids), "start_id": getattr(task, "start_id", None)}
    if backbone.config.kind in ("decoder", "seq2seq"):
        said["cache_layers"] = [list(layer) for layer in backbone.cache_layers]
    return said


def _pad_id(task: keras.Model) -> int | None:
    """Return the id with which the task pads rows of tokens, or None if it reads no tokens."""
    own = getattr(task, "pad_id", None)
    if own is not None or not any("token_ids" in name for name in task.input_interface.id_inputs):
        return own
    tokenizer = getattr(task, "tokenizer", None)
    known = None if tokenizer is None else tokenizer.pad_id
    return known or task.backbone.config.sides[0].position_padding_id or 0
