"""Conversion of labels, names of classes and sample weights, as users give them, to arrays."""

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.data.buckets import array_of
from keras_transformer.data.token_rows import TokenWeights
from keras_transformer.support.checking import (
    check_int,
    check_number,
    describe,
    is_number,
    nearest,
    shorten,
    with_article,
)
from keras_transformer.support.columns import is_column, is_frame, plain

# A string that CSV readers parse as a number. Strings over the length below are names.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_LONGEST_NUMBER = 40


def read_labels(
    rows: Sequence,
    num_classes: int,
    labels: list[str] | None,
    place: Callable[[int], str],
    name: str = "y",
) -> np.ndarray:
    """Read a whole column of labels as class numbers, int32 `(rows,)`.

    A label is looked up as a name first, and as a class number only if no class has that name. `1`,
    `1.0`, `"1"` and `"01"` may be the same name, since files, data frames and data sets write the
    same column in different ways. Raises ValueError if a label is neither, or if the column is
    ambiguous. `place` maps a row to its name in errors; `name` is the column's name in errors.
    """
    values, firsts, codes = distinct(rows)
    names = _Names(num_classes, labels, all(isinstance(value_of(v), bool) for v in values))
    readings = []
    for row, value in sorted(zip(firsts, values, strict=True), key=lambda pair: pair[0]):
        reading = _Reading(place(row), value, names.class_of(value), names.number_of(value))
        if reading.found is None:
            raise names.unknown(value, reading.place)
        readings.append(reading)
        first = readings[0]
        if isinstance(value, str) != isinstance(first.value, str):
            raise ValueError(
                f"`{name}` mixes names and numbers: `{first.place}` is {shorten(first.value)}, "
                f"`{reading.place}` is {shorten(value)}. Give one kind."
            )
    names.check_one_reading(readings, name)
    found = np.zeros(len(readings), "int32")
    found[np.argsort(firsts)] = [reading.found for reading in readings]
    return found[codes]


def class_number(label: Any, num_classes: int, labels: list[str] | None) -> int:
    """Return the class number of one label. Raises ValueError if it is unknown."""
    found = _Names(num_classes, labels, bools=True)
    number = _Reading("", label, found.class_of(label), found.number_of(label)).found
    if number is None:
        names = labels or [str(n) for n in range(num_classes)]
        known = f"{', '.join(map(repr, names[:20]))}{', ...' if len(names) > 20 else ''}"
        raise ValueError(
            f"the label {shorten(label)} is not known. Known labels are {known}, or the numbers "
            f"from 0 to {num_classes - 1}."
        )
    return number


def by_name(rows: Any, names: list[str] | None, labels: list[str] | None) -> Any:
    """Replace a data set's class numbers by names, if its names are the same as the task's.

    The order of names may differ between the two. `rows` is a list of labels, of lists of labels,
    or of rows of class probabilities.
    """
    if rows is None or names is None or labels is None or set(names) != set(labels):
        return rows

    def named(label: Any) -> Any:
        if is_number(label):
            return names[int(label)] if label in range(len(names)) else label
        if not isinstance(label, (list, tuple)):
            return label
        if len(label) == len(names) and all(isinstance(part, float) for part in label):
            return [label[names.index(name)] for name in labels]
        return [named(part) for part in label]

    return [named(label) for label in rows]


class _Reading(NamedTuple):
    """A label, the row it first occurs in, and its class by name and by number (or None)."""

    place: str
    value: Any
    named: int | None
    number: int | None

    @property
    def found(self) -> int | None:
        return self.number if self.named is None else self.named


class _Names:
    """Class names, and the lookup of labels among them."""

    def __init__(self, num_classes: int, labels: list[str] | None, bools: bool):
        self.num_classes, self.labels, self.bools = num_classes, labels, bools
        self.places = {label: number for number, label in enumerate(labels or ())}
        self.by_value: dict[Any, list[int]] = {}  # for names that are numbers, "true" or "false"
        for label, number in self.places.items():
            if (value := value_of(label)) is not None:
                self.by_value.setdefault(_key(value), []).append(number)

    def class_of(self, label: Any) -> int | None:
        """Return the class with this name, or None."""
        if isinstance(label, str) and label in self.places:
            return self.places[label]
        value = value_of(label)
        known = [] if value is None else self.by_value.get(_key(value), [])
        if isinstance(value, bool) and not known:
            known = self.by_value.get(_key(int(value)), [])
        if len(known) > 1:
            raise ValueError(
                f"The label {shorten(label)} could mean each of the names "
                f"{', '.join(repr(self.labels[number]) for number in known)}: give it as a string "
                "that is one of them."
            )
        return known[0] if known else None

    def number_of(self, label: Any) -> int | None:
        """Return the class with this number, or None."""
        value = value_of(label)
        if isinstance(value, bool) and not (self.bools and self.num_classes == 2):
            return None
        right = value is not None and _is_whole(value) and 0 <= value < self.num_classes
        return int(value) if right else None

    def unknown(self, label: Any, place: str) -> ValueError:
        """Return the error for a label that is neither a class name nor a class number."""
        value = value_of(label)
        if value is not None and not isinstance(value, bool) and _is_whole(value):
            known = f" The names are {shorten(self.labels)}." if self.by_value else ""
            return ValueError(
                f"Labels must be from 0 to {self.num_classes - 1}, but `{place}` is "
                f"{shorten(label)}. Give `num_classes` to match the data.{known}"
            )
        if isinstance(label, str) and self.labels is None:
            return ValueError(
                f"`{place}` is {shorten(label)}, a name, but the classes have no names: make the "
                "task with `labels`, the names in the order of their numbers, or give numbers."
            )
        if isinstance(label, str):
            return ValueError(
                f"`{place}` is {shorten(label)}, which is not among the labels "
                f"{shorten(self.labels)}.{nearest(label, self.labels)}"
            )
        or_name = "" if self.labels is None else " or the name"
        return ValueError(
            f"`{place}` must be the number{or_name} of a class, received {describe(label)}."
        )

    def check_one_reading(self, readings: list[_Reading], name: str) -> None:
        """Raise ValueError if some labels are class numbers while class names are other numbers."""
        numbers = [reading for reading in readings if reading.named is None]
        # If possible, decide by the names alone: then all batches of a stream are read alike.
        swapped = any(
            key[0] is not bool and key[1] in range(self.num_classes) and known != [key[1]]
            for key, known in self.by_value.items()
        )
        other = any(
            reading.named not in (None, reading.number) and value_of(reading.value) is not None
            for reading in readings
        )
        if not numbers or not (swapped or other):
            return
        unnamed_first = sorted(readings, key=lambda reading: reading.named is not None)
        shown = "; ".join(map(self._both_readings, unnamed_first[:3]))
        raise ValueError(
            f"`{name}` is ambiguous, since the names {shorten(self.labels)} are numbers too: "
            f"{shown}. Give names only: [labels[number] for number in y]."
        )

    def _both_readings(self, reading: _Reading) -> str:
        number = "not a number of a class"
        if reading.number is not None:
            number = f"the number of {self.labels[reading.number]!r}"
        named = "not a name" if reading.named is None else f"the name of class {reading.named}"
        return f"`{reading.place}`, {shorten(reading.value)}, is {named} and {number}"


def value_of(label: Any) -> bool | int | float | None:
    """Return the number or bool that a label stands for, even written as text; None otherwise."""
    if isinstance(label, str):
        text = label.strip()
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
            return None
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    if isinstance(label, bool):
        return label
    return label if is_number(label) and label == label else None


def _key(value: bool | int | float) -> tuple:
    """Return a dict key that tells True from 1."""
    return (bool if isinstance(value, bool) else int, value)


def _is_whole(value: float) -> bool:
    return isinstance(value, int) or value.is_integer() or abs(value) == float("inf")


def distinct(rows: Sequence) -> tuple[list, list[int], np.ndarray]:
    """Return the distinct values, the first row of each, and the index of each row's value."""
    if isinstance(rows, np.ndarray) and rows.dtype.kind in "iufb":
        values, first, codes = np.unique(rows, return_index=True, return_inverse=True)
        return values.tolist(), first.tolist(), codes.reshape(-1)
    values, first, known = [], [], {}
    codes = np.zeros(len(rows), "int64")
    for row, value in enumerate(rows.tolist() if isinstance(rows, np.ndarray) else rows):
        if is_number(value) or isinstance(value, np.bool_):
            value = value.item() if hasattr(value, "item") else value
        key = (type(value), value) if isinstance(value, Hashable) else (type(value), id(value))
        if key not in known:
            known[key] = len(values)
            values.append(value)
            first.append(row)
        codes[row] = known[key]
    return values, first, codes


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
            f"`{name}` must be one number {with_article(unit)}, {rows} in all, received shape "
            f"{array.shape}."
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
                f"`sample_weight` must be one number {with_article(unit)}, {len(counts)} in all, "
                f"or for each one number a {part}, received {shape}: `sample_weight[{i}]` has "
                f"{len(row)} numbers, and `x[{i}]` {count} {part}s."
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
    expected = f"`{name}` must be one label {with_article(unit)}, {count} in all"
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
