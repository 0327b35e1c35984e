"""Labels of a classifier as users give them, to the numbers of its classes."""

from typing import Any

import numpy as np
from keras import ops

from keras_transformer.checking import describe, is_int, is_number, nearest, shorten


def class_numbers(
    y: Any, count: int, num_classes: int, labels: list[str] | None, unit: str, name: str = "y"
) -> np.ndarray:
    """Labels by number or by name, as int32 `(count,)`.

    Args:
        y: a list, an array, a tensor or a column of a data frame: numbers of classes, also as
            floats that are whole, or names; for two classes also True and False.
        count: int, how many there must be.
        num_classes: int.
        labels: the names of the classes, None for a task whose classes have none.
        unit: str, what each label is of.
        name: str, what errors call `y`.

    Raises:
        ValueError: for another number of labels, or the first that is none, with its place.
    """
    rows = _rows(y, count, unit, name)
    if rows.dtype.kind in "iu" or (rows.dtype.kind == "f" and (rows == np.floor(rows)).all()):
        numbers = rows
    elif rows.dtype.kind == "b" and num_classes == 2:
        numbers = rows.astype("int32")
    else:
        numbers = _one_by_one(rows.tolist(), num_classes, labels, name)
    outside = np.flatnonzero((numbers < 0) | (numbers >= num_classes))
    if outside.size:
        raise _outside(name, outside[0], numbers[outside[0]], num_classes)
    return numbers.astype("int32")


def _rows(y: Any, count: int, unit: str, name: str) -> np.ndarray:
    """The labels as an array with one axis; of objects where they are not of one kind."""
    expected = f"`{name}` must be one label a {unit}, {count} in all"
    if isinstance(y, (str, bytes, dict, set)) or not hasattr(y, "__len__"):
        raise ValueError(f"{expected}, received {describe(y)}.")
    if isinstance(y, (list, tuple)):
        rows = np.fromiter(y, "O", count=len(y))
        if set(map(type, y)) <= {int} and all(abs(label) < 2**31 for label in y):
            rows = rows.astype("int64")
    else:
        rows = np.asarray(ops.convert_to_numpy(y) if ops.is_tensor(y) else y)
    if rows.shape != (count,):
        raise ValueError(f"{expected}, received shape {rows.shape}.")
    return rows


def _outside(name: str, row: int, label: Any, num_classes: int) -> ValueError:
    return ValueError(
        f"Labels must be from 0 to {num_classes - 1}, but `{name}[{row}]` is {shorten(label)}. "
        "Give `num_classes` to match the data."
    )


def _one_by_one(rows: list, num_classes: int, labels: list[str] | None, name: str) -> np.ndarray:
    """Numbers of labels whose types differ, or are names. ValueError for the first wrong one."""
    places = {label: number for number, label in enumerate(labels or ())}
    of_bools = num_classes == 2 and all(isinstance(label, (bool, np.bool_)) for label in rows)
    kinds = {isinstance(label, str) for label in rows}
    numbers = np.zeros(len(rows), "int64")
    for row, label in enumerate(rows):
        here = f"`{name}[{row}]`"
        if isinstance(label, str):
            if labels is None:
                raise ValueError(
                    f"{here} is {shorten(label)}, a name, but the classes have none: make the task "
                    "with `labels`, the names in the order of their numbers, or give numbers."
                )
            if label not in places:
                raise ValueError(
                    f"{here} is {shorten(label)}, which is none of the labels "
                    f"{shorten(labels)}.{nearest(label, labels)}"
                )
            numbers[row] = places[label]
        elif of_bools or is_int(label) or (is_number(label) and float(label).is_integer()):
            if not 0 <= label < num_classes:
                raise _outside(name, row, label, num_classes)
            numbers[row] = int(label)
        else:
            or_name = "" if labels is None else " or the name"
            raise ValueError(
                f"{here} must be the number{or_name} of a class, received {describe(label)}."
            )
        if len(kinds) > 1 and isinstance(label, str) != isinstance(rows[0], str):
            raise ValueError(
                f"`{name}` has names and numbers: `{name}[0]` is {shorten(rows[0])}, {here} is "
                f"{shorten(label)}. Give one kind."
            )
    return numbers
