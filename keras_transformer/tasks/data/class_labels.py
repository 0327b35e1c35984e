"""Reading a column of class labels, given as names or as numbers."""

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.support.checking import describe, is_number, nearest, shorten

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
