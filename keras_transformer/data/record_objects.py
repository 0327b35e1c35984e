"""Rows of the data sets of other libraries, which are known by what they can do, not by import."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_transformer.checking import describe
from keras_transformer.columns import is_frame, plain
from keras_transformer.data.record_files import place_columns

_BATCH = 1000  # rows that a `datasets.Dataset` gives at once


class ObjectSource:
    """The rows of another library's data set; one, or a batch, is a dict, a tuple or a text."""

    size = done = 0  # bytes: not known
    format = encoding = None

    def __init__(self, data: Any):
        if isinstance(data, Mapping):
            raise ValueError(
                f"Received a {type(data).__name__} with the keys {list(data)[:9]}: give one of "
                "its data sets."
            )
        if hasattr(data, "__next__"):
            raise ValueError(
                f"A {type(data).__name__} can be gone through once only. Give the data set that "
                "it comes from, or an object whose __iter__ begins anew."
            )
        if not any(hasattr(data, name) for name in ("as_numpy_iterator", "__iter__")) and not (
            hasattr(data, "__getitem__") and hasattr(data, "__len__")
        ):
            raise ValueError(
                "Expected paths of files, or a data set of `datasets`, `tf.data` or "
                f"`torch.utils.data`, received {describe(data)}."
            )
        self.data = data

    def place(self, number: int) -> str:
        """How errors call a row."""
        return f"row {number} of the {type(self.data).__name__}"

    def digest(self, notes=None) -> str | None:
        """What stands for the content without reading it; None if nothing does."""
        # Of the library `datasets`: the content and all that was done to it.
        fingerprint = getattr(self.data, "_fingerprint", None)
        return fingerprint if isinstance(fingerprint, str) else None

    def rows(self, columns: Sequence) -> Iterator[tuple[int, tuple]]:
        """Each row's number, from 0, and its values, by name or by the place in a tuple."""
        columns = tuple(columns)
        number = 0
        for element in self._elements(columns):
            place = self.place(number)
            values = [
                plain(_pick(element, c, place), f"{place}: the column {c!r}") for c in columns
            ]
            if not isinstance(values[0], list):  # One text; its label may be a list.
                yield number, tuple(values)
                number += 1
                continue
            lengths = [len(v) if isinstance(v, list) else None for v in values]
            if len(set(lengths)) > 1:
                raise ValueError(
                    f"From {place} on, the columns {list(columns)} have {lengths} values (None "
                    "for a single one): there must be one a row, or as many in each batch."
                )
            for row in zip(*values, strict=True):
                yield number, row
                number += 1

    def _elements(self, columns) -> Iterator:
        data, there = self.data, column_names(self.data)
        if there is not None:
            place_columns(f"The {type(data).__name__}", columns, there)
        if is_frame(data):
            return iter([{column: data[column] for column in columns}])
        if hasattr(data, "select_columns") and hasattr(data, "iter"):  # datasets
            if there is not None:
                data = data.select_columns(list(dict.fromkeys(columns)))
            return data.iter(batch_size=_BATCH)
        return elements_of(data)


def column_names(data: Any) -> list | None:
    """The columns of a data frame, or of a data set of `datasets` that knows them, else None."""
    names = getattr(data, "column_names", None)
    if names is None and is_frame(data):
        names = data.columns
    return None if names is None else list(names)


def elements_of(data: Any) -> Iterator:
    """What a data set gives, from its beginning."""
    if hasattr(data, "as_numpy_iterator"):  # tf.data
        return data.as_numpy_iterator()
    if hasattr(data, "__iter__"):
        return iter(data)
    return (data[index] for index in range(len(data)))  # torch.utils.data, keras.utils.PyDataset


def _pick(element, column, place):
    alone = not isinstance(element, (Mapping, tuple, list))
    if alone and column in ("text", 0):  # A row that is nothing but its text.
        return element
    there = range(len(element)) if isinstance(element, (tuple, list)) else element
    if alone or column not in there:
        place_columns(place, [column], ("text",) if alone else there)
    return element[column]
