"""Labels and weights, from what users give to what a loss takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.checking import (
    check_int,
    check_number,
    describe,
    is_int,
    is_number,
    nearest,
    shorten,
)
from keras_transformer.columns import is_column, is_frame, plain
from keras_transformer.data.buckets import array_of


def on_host(array):
    """A tensor of the backend in the memory of the host; others as they are."""
    return ops.convert_to_numpy(array) if ops.is_tensor(array) else array


def class_numbers(
    y: Any, count: int, num_classes: int, labels: list[str] | None, unit: str, name: str = "y"
) -> np.ndarray:
    """Labels by number or name, of two classes also as bool, as int32 `(count,)`."""
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


def class_number(label: Any, num_classes: int, labels: list[str] | None) -> int:
    """The number of one label. ValueError for one that is not known, without a place."""
    number = _number_of(label, labels or ()) if isinstance(label, str) else label
    if not is_number(number) or not 0 <= number < num_classes or int(number) != number:
        names = labels or [str(n) for n in range(num_classes)]
        known = f"{', '.join(map(repr, names[:20]))}{', ...' if len(names) > 20 else ''}"
        raise ValueError(
            f"the label {shorten(label)} is not known. Known are {known}, or the numbers from 0 to "
            f"{num_classes - 1}."
        )
    return int(number)


def class_rows(
    y: Any,
    count: int,
    num_classes: int,
    labels: list[str] | None,
    multi_label: bool,
    unit: str = "text",
) -> np.ndarray | None:
    """Labels that are a row for each `unit`, float32 `(count, num_classes)`; None for one."""
    array = _matrix(y, count, num_classes)
    if array is not None and not np.isfinite(array).all():
        raise ValueError(f"`y[{np.argwhere(~np.isfinite(array))[0][0]}]` holds no finite numbers.")
    if not multi_label:
        return array
    if array is not None and ((array >= 0) & (array <= 1)).all():
        return array
    rows = plain(y, "`y`") if is_column(y) or hasattr(y, "tolist") else y
    if not isinstance(rows, Sequence) or isinstance(rows, str) or len(rows) != count:
        raise ValueError(
            f"`y` must be a list with the labels of each {unit}, {count} in all, or an array of 0 "
            f"and 1 of shape {(count, num_classes)}, received {describe(y)}."
        )
    array = np.zeros((count, num_classes), "float32")
    for row, names in enumerate(rows):
        names = list(names) if isinstance(names, (list, tuple, set, np.ndarray)) else [names]
        numbers = class_numbers(names, len(names), num_classes, labels, "label", f"y[{row}]")
        array[row, numbers] = 1
    return array


def check_probabilities(rows: np.ndarray) -> np.ndarray:
    """ValueError for rows, as in `class_rows`, that are no probabilities, with their place."""
    right = (rows >= 0).all(axis=1) & (np.abs(rows.sum(axis=1) - 1) < 1e-3)
    if not right.all():
        row = int(right.argmin())
        raise ValueError(
            f"`y[{row}]` is {shorten(rows[row].tolist())}, and adds up to {rows[row].sum():g}: the "
            "probabilities of the classes add up to 1. If several classes, or none, may be right, "
            "make the task with multi_label=True."
        )
    return rows


def likeliest(
    shares: np.ndarray,
    names: Sequence[str],
    top_k: int | None = None,
    threshold: float | None = None,
    several: bool = False,
) -> list:
    """Of rows of probabilities the likeliest name each, `(name, probability)`.

    With `top_k`, `threshold` or `several` a list of them, the likeliest first: those of at least
    the threshold, which is 0.5 for `several` without `top_k`.
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
    """The numbers that a regression learns, as float32 `(count,)`; also where they are text."""
    if is_frame(y) or getattr(y, "shape", None) == (count, 1):
        y = np.asarray(y).reshape(-1)
    rows = _rows(y, count, unit, "y")
    if rows.dtype.kind not in "iufb":
        for row, number in enumerate(rows.tolist()):
            try:
                rows[row] = float(number)
            except (TypeError, ValueError):
                raise ValueError(
                    f"`y[{row}]` must be a number, received {describe(number)}. The task has one "
                    "class, which makes it a regression: give `num_classes` or `labels` for others."
                ) from None
    with np.errstate(over="ignore"):
        rows = rows.astype("float32")
    if not np.isfinite(rows).all():
        row = int(np.isfinite(rows).argmin())
        raise ValueError(f"`y[{row}]` must be a finite number, received {rows[row]}.")
    return rows


def real_margins(y: Any, count: int) -> np.ndarray:
    """Return one or more numbers for each row, float32 `(count,)` or `(count, numbers)`.

    Raises ValueError if they are not, or a row has more of them than another.
    """
    rows = np.asarray(y)
    if rows.ndim < 2:
        return real_numbers(y, count, "row")
    columns = [real_numbers(column, count, "row") for column in rows.T]
    return np.stack(columns, axis=1)


def check_weights(
    name: str, weights: Any, rows: int, targets: tuple | None = None, unit: str = "text"
) -> np.ndarray | None:
    """Weights as float32, one for each of `rows`, or of the first axes of `targets`, a shape."""
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
            f"`{name}` must be one number a {unit}, {rows} in all, received shape {array.shape}."
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


def _matrix(y: Any, count: int, num_classes: int) -> np.ndarray | None:
    """`y` as float32 if it is numbers of the shape `(count, num_classes)`, else None."""
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
    """The labels as an array with one axis; of objects where they are not of one kind."""
    article = "an" if unit[0] in "aeiou" else "a"
    expected = f"`{name}` must be one label {article} {unit}, {count} in all"
    if isinstance(y, (str, bytes, dict, set)) or not hasattr(y, "__len__"):
        raise ValueError(f"{expected}, received {describe(y)}.")
    y = plain(y, f"`{name}`") if is_column(y) else y
    if isinstance(y, (list, tuple)):
        rows = np.fromiter(y, "O", count=len(y))
        if set(map(type, y)) <= {int} and all(abs(label) < 2**31 for label in y):
            rows = rows.astype("int64")
    else:
        rows = np.asarray(on_host(y))
    if rows.shape != (count,):
        raise ValueError(f"{expected}, received shape {rows.shape}.")
    return rows


def _number_of(label: str, names: Any) -> int | None:
    """The number of a name; of text that is none, but a number, that one, as files have it."""
    if label in names:
        return names[label] if isinstance(names, dict) else names.index(label)
    return int(label) if label.isascii() and label.isdecimal() and len(label) < 10 else None


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
            number = _number_of(label, places)
            if number is None and labels is None:
                raise ValueError(
                    f"{here} is {shorten(label)}, a name, but the classes have none: make the task "
                    "with `labels`, the names in the order of their numbers, or give numbers."
                )
            if number is None:
                raise ValueError(
                    f"{here} is {shorten(label)}, which is none of the labels "
                    f"{shorten(labels)}.{nearest(label, labels)}"
                )
            if not number < num_classes:
                raise _outside(name, row, label, num_classes)
            numbers[row] = number
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
