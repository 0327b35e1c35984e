"""Rows of several texts, such as an anchor, its positive and its negatives, as batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.data import BucketedDataset, TokenRows
from keras_transformer.tasks.text import text_rows, token_batches, tokenizer_of


def is_tuple(x: Any) -> bool:
    """Whether `x` is a tuple of lists of texts, and not one of texts."""
    return isinstance(x, tuple) and bool(x) and not isinstance(x[0], str)


def tuple_rows(x: tuple) -> list[list[str]]:
    """The lists of texts of a tuple. ValueError unless they are two or more, of one length."""
    if len(x) < 2:
        raise ValueError(
            "A tuple is of two or more lists of texts, such as (anchors, positives), received one. "
            "Texts to be asked for their vectors are a list."
        )
    parts = [text_rows(part, f"x[{i}]") for i, part in enumerate(x)]
    for i, part in enumerate(parts):
        if len(part) != len(parts[0]):
            raise ValueError(
                f"`x[0]` has {len(parts[0])} texts and `x[{i}]` {len(part)}: row by row they "
                "belong together, so give one for each."
            )
    return parts


def tuple_batches(
    task, ids: list[list[list[int]]], further: Callable[[np.ndarray], dict], **options
) -> BucketedDataset:
    """Batches of inputs `(batch, texts, length)`: all texts of a row padded to one length.

    `further` gives inputs that are added, of the shape `(batch, texts)`.
    """
    if options.get("pack_length") is not None:
        raise ValueError("`pack_length` is for texts alone, and not for pairs or more of them.")
    if options.get("batch_tokens") is not None:
        options["batch_tokens"] = max(1, options["batch_tokens"] // len(ids))
    every = TokenRows.of([row for part in ids for row in part], "token_ids")
    lengths = every.lengths.reshape(len(ids), -1)
    count = lengths.shape[1]
    # What a row is put into a bucket by is its longest text, in the store of all.
    starts = every.starts[lengths.argmax(axis=0) * count + np.arange(count)]
    longest = TokenRows(every.ids, lengths.max(axis=0), starts, every.blocks)
    pad_id = np.int32(tokenizer_of(task).pad_id or 0)

    def finish(inputs, arrays):
        places = np.arange(inputs["token_ids"].shape[1])
        rows = arrays["row"][:, None] + count * np.arange(len(ids))
        mask = places < every.lengths[rows][..., None]
        found = np.where(mask, every.ids_at(rows[..., None], places), pad_id)
        inputs = {"token_ids": found, "padding_mask": mask, **further(rows)}
        scores = arrays.get("scores", np.ones(len(rows), "float32"))
        weights = (arrays["sample_weight"],) if "sample_weight" in arrays else ()
        return inputs, scores, *weights

    return token_batches(task, {"token_ids": longest}, finish, **options)


def flat(inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs `(batch, texts, length)` as `(batch * texts, length)`; those of texts as they are."""
    ids = inputs.get("token_ids")
    if ids is None or len(getattr(ids, "shape", ())) != 3:
        return inputs
    return {
        name: array.reshape(-1, *array.shape[2:])
        if isinstance(array, np.ndarray)
        else ops.reshape(array, (-1, *ops.shape(array)[2:]))
        for name, array in inputs.items()
    }
