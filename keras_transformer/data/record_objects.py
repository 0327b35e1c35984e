"""Rows of other libraries' data sets, recognized by their methods instead of imported classes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_transformer.data.record_files import place_columns
from keras_transformer.support.checking import describe
from keras_transformer.support.columns import is_frame, plain

_BATCH = 1000  # number of rows read from a `datasets.Dataset` at a time


class ObjectSource:
    """Rows of another library's data set, whose elements are rows or batches of rows.

    An element is a dict, a tuple or a text; a batch is a dict or tuple of lists, or a list of
    texts.
    """

    size = done = 0  # bytes, 0 if unknown
    format = encoding = None

    def __init__(self, data: Any):
        if isinstance(data, Mapping):
            raise ValueError(
                f"Received a {type(data).__name__} with the keys {list(data)[:9]}: give one of "
                "its data sets."
            )
        if hasattr(data, "__next__"):
            raise ValueError(
                f"A {type(data).__name__} can be iterated over only once, but rows may be read "
                "again. Give the data set that it comes from, or an object whose `__iter__` "
                "starts from the beginning."
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
        """Return how error messages name a row."""
        return f"row {number} of the {type(self.data).__name__}"

    def digest(self, notes=None) -> str | None:
        """Return a fingerprint of the content, or None if it would need a pass over the rows."""
        # The fingerprint of `datasets` covers the content and all its transformations.
        fingerprint = getattr(self.data, "_fingerprint", None)
        return fingerprint if isinstance(fingerprint, str) else None

    def read_rows(self, columns: Sequence) -> Iterator[tuple[int, tuple]]:
        """Yield each row's number, from 0, and its values, by column name or tuple index."""
        columns = tuple(columns)
        number = 0
        for element in self._elements(columns):
            place = self.place(number)
            values = [
                plain(_pick(element, c, place), f"{place}: the column {c!r}") for c in columns
            ]
            # A single text, whose label may be a list, or the messages of one conversation.
            if not isinstance(values[0], list) or isinstance((values[0] or [0])[0], Mapping):
                yield number, tuple(values)
                number += 1
                continue
            lengths = [len(v) if isinstance(v, list) else None for v in values]
            if len(set(lengths)) > 1:
                raise ValueError(
                    f"From {place} on, the columns {list(columns)} have {lengths} values (None: "
                    "a single value): give one for each row, or equally many in each batch."
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
    """Return the column names of a data frame or a `datasets.Dataset`, or None if unknown."""
    names = getattr(data, "column_names", None)
    if names is None and is_frame(data):
        names = data.columns
    return None if names is None else list(names)


def elements_of(data: Any) -> Iterator:
    """Iterate over a data set from its beginning."""
    if hasattr(data, "as_numpy_iterator"):  # tf.data
        return data.as_numpy_iterator()
    if hasattr(data, "__iter__"):
        return iter(data)
    return (data[index] for index in range(len(data)))  # torch.utils.data, keras.utils.PyDataset


def _pick(element, column, place):
    alone = not isinstance(element, (Mapping, tuple, list))
    if alone and column in ("text", 0):  # The row is the text itself.
        return element
    there = range(len(element)) if isinstance(element, (tuple, list)) else element
    if alone or column not in there:
        place_columns(place, [column], ("text",) if alone else there)
    return element[column]
