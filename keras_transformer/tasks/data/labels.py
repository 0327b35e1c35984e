"""Conversion of labels and sample weights, as users give them, to the arrays of losses."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.data.buckets import array_of
from keras_transformer.data.token_rows import TokenWeights
from keras_transformer.support.checking import (
    check_int,
    check_number,
    describe,
    shorten,
)
from keras_transformer.support.columns import is_column, is_frame, plain
from keras_transformer.tasks.data.class_labels import distinct, read_labels


def on_host(array):
    """Copy a backend tensor to host memory; return other values as they are."""
    return ops.convert_to_numpy(array) if ops.is_tensor(array) else array


def class_numbers(
    y: Any, count: int, num_classes: int, labels: list[str] | None, unit: str, name: str = "y"
) -> np.ndarray:
    """Convert labels, given as numbers, names or (of two classes) bools, to int32 `(count,)`."""
    rows = _rows(y, count, unit, name)
    return read_labels(rows, num_classes, labels, lambda row: f"{name}[{row}]", name)


def class_rows(
    y: Any,
    count: int,
    num_classes: int,
    labels: list[str] | None,
    multi_label: bool,
    unit: str = "text",
) -> np.ndarray | None:
    """Return labels with a number for each class, float32 `(count, num_classes)`.

    Returns None if `y` is a single label for each `unit`.
    """
    if multi_label and num_classes == 1 and isinstance(y, (list, tuple, np.ndarray)):
        # With a single class, 0 and 1 say whether it applies; they are not class numbers.
        alone = array_of(y)
        y = alone.reshape(-1, 1) if alone.dtype.kind in "iufb" and alone.shape == (count,) else y
    array = _matrix(y, count, num_classes)
    if array is not None and not np.isfinite(array).all():
        raise ValueError(
            f"`y[{np.argwhere(~np.isfinite(array))[0][0]}]` has values that are not finite."
        )
    if not multi_label:
        return array
    if array is not None and ((array >= 0) & (array <= 1)).all():
        listed = isinstance(y, (list, tuple)) or is_column(y)
        if listed and set(labels or ()) == {"0", "1"} and (array.sum(axis=1) == 1).all():
            raise ValueError(
                "`y` is ambiguous, since the names '0' and '1' are numbers too: a row such as "
                f"{shorten(y[0])} may be 0 or 1 for each class, or the names of two classes. Give "
                "a NumPy array of 0 and 1, or lists of strings."
            )
        return array
    rows = plain(y, "`y`") if is_column(y) or hasattr(y, "tolist") else y
    if not isinstance(rows, Sequence) or isinstance(rows, str) or len(rows) != count:
        raise ValueError(
            f"`y` must be a list with the labels of each {unit}, {count} in all, or an array of 0 "
            f"and 1 of shape {(count, num_classes)}, received {describe(y)}."
        )
    rows = [list(r) if isinstance(r, (list, tuple, set, np.ndarray)) else [r] for r in rows]
    array = np.zeros((count, num_classes), "float32")
    for row, numbers in enumerate(_read_lists(rows, num_classes, labels)):
        array[row, numbers] = 1
    return array


def check_probabilities(rows: np.ndarray) -> np.ndarray:
    """Raise ValueError, naming the row, unless rows as in `class_rows` are probabilities."""
    right = (rows >= 0).all(axis=1) & (np.abs(rows.sum(axis=1) - 1) < 1e-3)
    if not right.all():
        row = int(right.argmin())
        raise ValueError(
            f"`y[{row}]` is {shorten(rows[row].tolist())}, and adds up to {rows[row].sum():g}: the "
            "probabilities of the classes must add up to 1. If a row can have several classes or "
            "none, make the task with multi_label=True."
        )
    return rows


def top_classes(
    shares: np.ndarray,
    names: Sequence[str],
    top_k: int | None = None,
    threshold: float | None = None,
    several: bool = False,
) -> list:
    """Return the most likely `(name, probability)` of each row of probabilities.

    With `top_k`, `threshold` or `several`, return for each row a list of the pairs that reach the
    threshold (0.5 for `several` without `top_k`), the most likely first.
    """
    top_k = check_int("top_k", top_k, at_least=1, none=True)
    threshold = check_number("threshold", threshold, at_least=0, at_most=1, none=True)
    single = top_k is None and threshold is None and not several
    if threshold is None:
        threshold = 0.5 if several and top_k is None else 0.0
    found = []
    for row in shares:
        order = np.argsort(-row, kind="stable")[: 1 if single else top_k]
        pairs = [(names[i], float(row[i])) for i in order if row[i] >= threshold]
        found.append(pairs[0] if single else pairs)
    return found


def real_numbers(y: Any, count: int, unit: str = "text") -> np.ndarray:
    """Return regression targets as float32 `(count,)`; they may be numbers written as text."""
    if not isinstance(y, list) and (is_frame(y) or getattr(y, "shape", None) == (count, 1)):
        y = np.asarray(y).reshape(-1)
    rows = _rows(y, count, unit, "y")
    if rows.dtype.kind not in "iufb":
        for row, number in enumerate(rows.tolist()):
            try:
                rows[row] = float(number)
            except (TypeError, ValueError):
                raise ValueError(
                    f"`y[{row}]` must be a number, received {describe(number)}. The task has one "
                    "class and is a regression: for classes give `num_classes` or `labels`."
                ) from None
    with np.errstate(over="ignore"):
        rows = rows.astype("float32")
    if not np.isfinite(rows).all():
        row = int(np.isfinite(rows).argmin())
        raise ValueError(f"`y[{row}]` must be a finite number, received {rows[row]}.")
    return rows


def real_margins(y: Any, count: int) -> np.ndarray:
    """Return one or more numbers for each row, float32 `(count,)` or `(count, numbers)`.

    Raises ValueError if values are not finite numbers, or rows have different lengths.
    """
    rows = np.asarray(y)
    if rows.ndim < 2:
        return real_numbers(y, count, "row")
    columns = [real_numbers(column, count, "row") for column in rows.T]
    return np.stack(columns, axis=1)


def check_weights(
    name: str, weights: Any, rows: int, targets: tuple | None = None, unit: str = "text"
) -> np.ndarray | None:
    """Check weights and return them as float32.

    There must be one weight for each of `rows`, or an array of weights with the leading axes of the
    shape `targets`.
    """
    if weights is None:
        return None
    if isinstance(weights, (str, bytes, dict)):
        raise ValueError(f"`{name}` must be an array of numbers, received {describe(weights)}.")
    array = array_of(on_host(weights))
    if array.dtype.kind == "O" and array.ndim == 1:
        for place, weight in enumerate(array):
            if not isinstance(weight, (int, float, np.number)):
                raise ValueError(
                    f"`{name}[{place}]` must be a number, received {describe(weight)}."
                )
        array = array.astype("float64")
    if array.dtype.kind not in "iufb":
        raise ValueError(f"`{name}` must be an array of numbers, received {describe(weights)}.")
    fitting = tuple(targets or (rows,))[: array.ndim]
    if array.shape not in ((rows,), fitting) or array.ndim == 0:
        raise ValueError(
            f"`{name}` must be one number {_a(unit)}, {rows} in all, received shape {array.shape}."
        )
    with np.errstate(over="ignore"):
        array = array.astype("float32", copy=False)
    right = np.isfinite(array) & (array >= 0)
    if not right.all():
        place = tuple(int(axis[0]) for axis in np.nonzero(~right))
        raise ValueError(
            f"`{name}[{', '.join(map(str, place))}]` is {array[place]}: a weight is a finite "
            "number of at least 0."
        )
    return array


def labels_of_words(
    rows: Sequence, counts: Sequence[int], num_classes: int, labels: list[str] | None
) -> list[np.ndarray]:
    """Read the labels of the words of all texts as one column; `counts` are the words per text."""
    return _read_lists(
        [
            _rows(row, count, "word", f"y[{i}]").tolist()
            for i, (row, count) in enumerate(zip(rows, counts, strict=True))
        ],
        num_classes,
        labels,
    )


def _read_lists(rows: list[list], num_classes: int, labels: list[str] | None) -> list[np.ndarray]:
    """Read lists of labels, one for each row, as one column."""
    ends = np.cumsum([len(row) for row in rows])

    def place(index: int) -> str:
        row = int(np.searchsorted(ends, index, side="right"))
        return f"y[{row}][{index - ends[row] + len(rows[row])}]"

    column = [label for row in rows for label in row]
    return np.split(read_labels(column, num_classes, labels, place), ends[:-1])


def weights_of_words(
    weights: Any, counts: Sequence[int]
) -> tuple[Sequence[Sequence[int]], np.ndarray, np.ndarray]:
    """Read weights of texts, or of each of their words; `counts` are the words per text.

    Returns an index for each word of each text, the weight at each index, and the weight of each
    text; the two weights are multiplied. Index 0 has weight 0.
    """
    of_texts = np.ones(len(counts), "float32")
    numbers = [np.ones(count, "int32") for count in counts]
    of_words = _weights_by_row(weights, counts, "word")
    if of_words is None:
        found = check_weights("sample_weight", weights, len(counts))
        return numbers, np.array([0, 1], "float32"), of_texts if found is None else found
    ends = np.cumsum(counts)
    numbers = np.split(np.arange(1, ends[-1] + 1, dtype="int32"), ends[:-1])
    return numbers, np.concatenate([np.zeros(1, "float32"), *of_words]), of_texts


def token_weights(
    weights: Any, counts: Sequence[int], most: int, unit: str, before: Sequence[int] | None = None
) -> dict:
    """Read weights of texts, or of each of their tokens, as a column of a `BucketedDataset`.

    Args:
        weights: None; one number for each text; or one for each token of each text, as a list of
            lists or as an array with arbitrary numbers after the end of a text.
        counts: int array `(texts,)`, the number of weighted tokens of each text.
        most: int, the number of tokens that longer texts were cut to.
        unit: name of a row in errors.
        before: int array `(texts,)`, the number of preceding tokens, such as a prompt's. Defaults
            to 0.

    Returns:
        A dict with the column `"weights"`, empty if `weights` is None.

    Raises:
        ValueError: if the weights do not fit, naming their place.
    """
    if weights is None:
        return {}
    counts = np.asarray(counts, "int64")
    before = np.zeros_like(counts) if before is None else np.asarray(before, "int64")
    of_tokens = _weights_by_row(weights, counts.tolist(), "token", most, unit)
    if of_tokens is None:
        of_rows = check_weights("sample_weight", weights, len(counts), unit=unit)
        return {"weights": TokenWeights(of_rows, before + counts, per_row=True)}
    of_tokens = [np.pad(row, (n, 0)) for row, n in zip(of_tokens, before, strict=True)]
    return {"weights": TokenWeights(np.concatenate(of_tokens), before + counts)}


def weighed(counted: np.ndarray, arrays: dict) -> np.ndarray:
    """Multiply the loss mask of a batch, float32 `(batch, length)`, by its `token_weights`."""
    bits = arrays.get("weights")
    return counted if bits is None else counted * TokenWeights.floats(bits)


def _weights_by_row(
    weights: Any, counts: Sequence[int], part: str, most: int | None = None, unit: str = "text"
) -> list[np.ndarray] | None:
    """Return the weights of each row's `counts` parts; None unless they are given row by row.

    A row that was cut to `most` parts may have weights for the parts cut off, and a row of an array
    may have arbitrary numbers after its own.
    """
    rows = (list, tuple, np.ndarray)
    weights = on_host(weights)
    listed = isinstance(weights, rows) and len(weights) == len(counts)
    if not listed or np.ndim(weights[0]) != 1 or not all(isinstance(row, rows) for row in weights):
        return None
    padded = isinstance(weights, np.ndarray) and weights.ndim == 2
    found = []
    for i, (row, count) in enumerate(zip(weights, counts, strict=True)):
        if len(row) != count and not (len(row) > count and (padded or count == most)):
            shape = array_of(weights).shape
            shape = f"shape {shape}" if shape else "lists"
            raise ValueError(
                f"`sample_weight` must be one number {_a(unit)}, {len(counts)} in all, or for "
                f"each one number a {part}, received {shape}: `sample_weight[{i}]` has {len(row)} "
                f"numbers, and `x[{i}]` {count} {part}s."
            )
        row = row[:count]
        found.append(check_weights(f"sample_weight[{i}]", row, count, unit=part))
    return found


def label_codes(y: Any, count: int, unit: str = "text") -> np.ndarray:
    """Return a code for each label, equal for equal labels, int32 `(count,)`.

    Raises ValueError if the number of labels is wrong, or a label is missing.
    """
    rows = _rows(y, count, unit, "y")
    values, firsts, codes = distinct(rows)
    for value, row in zip(values, firsts, strict=True):
        if value is None or value != value:
            raise ValueError(f"`y[{row}]` is {value}: a label is missing. Remove the row.")
        if not isinstance(value, (str, int, float)):
            raise ValueError(
                f"`y[{row}]` must be a label, a string or a number, received {describe(value)}."
            )
    return codes.astype("int32")


def _matrix(y: Any, count: int, num_classes: int) -> np.ndarray | None:
    """Return `y` as float32 if it holds numbers `(count, num_classes)`; otherwise None."""
    if isinstance(y, (str, bytes, dict, set)) or not hasattr(y, "__len__"):
        return None
    if isinstance(y, (list, tuple)) or is_column(y):
        rows = (list, tuple, np.ndarray)
        if not isinstance(next(iter(y), None), rows) or not all(isinstance(r, rows) for r in y):
            return None
        if {np.shape(row)[:1] for row in y} != {(num_classes,)}:
            return None
        y = list(map(np.asarray, y))
    array = np.asarray(on_host(y))
    if array.shape != (count, num_classes) or array.dtype.kind not in "iufb":
        return None
    return array.astype("float32")


def _rows(y: Any, count: int, unit: str, name: str) -> np.ndarray:
    """Return the labels as a 1D array; its dtype is object if their types differ."""
    expected = f"`{name}` must be one label {_a(unit)}, {count} in all"
    if isinstance(y, (str, bytes, dict, set)) or not hasattr(y, "__len__"):
        raise ValueError(f"{expected}, received {describe(y)}.")
    y = plain(y, f"`{name}`") if not isinstance(y, list) and is_column(y) else y
    if isinstance(y, (list, tuple)):
        rows = np.fromiter(y, "O", count=len(y))
        if set(map(type, y)) <= {int} and all(abs(label) < 2**31 for label in y):
            rows = rows.astype("int64")
    else:
        rows = np.asarray(on_host(y))
    if rows.shape != (count,):
        raise ValueError(f"{expected}, received shape {rows.shape}.")
    return rows


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
