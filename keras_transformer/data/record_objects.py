"""Rows of the data sets of other libraries, which are known by what they can do, not by import."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.checking import describe
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


def is_frame(data: Any) -> bool:
    """Whether it is a data frame: of pandas, Polars or pyarrow."""
    return hasattr(data, "columns") and hasattr(data, "shape") and hasattr(data, "__getitem__")


def is_column(values: Any) -> bool:
    """Whether it is one column: of a data frame or a `datasets.Dataset`; or a tensor of strings."""
    known = (str, bytes, list, tuple, np.ndarray)
    if isinstance(values, known) or is_frame(values) or hasattr(values, "column_names"):
        return False
    methods = ("to_list", "to_pylist", "to_numpy")
    named = any(hasattr(values, name) for name in methods) or isinstance(values, Sequence)
    return named or getattr(values, "dtype", None) == "string"


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


def plain(value: Any, place: str) -> Any:
    """A value of Python, or a list of them for a batch; `place` is what errors call it."""
    if hasattr(value, "numpy") and not hasattr(value, "tolist"):  # TensorFlow's
        value = value.numpy()
    # Arrays, their numbers, PyTorch's tensors, columns of pandas; of pyarrow; of Polars.
    for method in ("tolist", "to_pylist", "to_list"):
        if hasattr(value, method):
            value = getattr(value, method)()
            break
    if isinstance(value, (list, tuple)):
        return [plain(part, place) for part in value]
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{place} is not UTF-8: {error}.") from None
    return value
