"""Columns and data frames of other libraries, known by what they can do and not by import."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def is_frame(data: Any) -> bool:
    """Whether it is a data frame: of pandas, Polars or pyarrow."""
    return hasattr(data, "columns") and hasattr(data, "shape") and hasattr(data, "__getitem__")


def is_table(data: Any) -> bool:
    """Whether it is a `datasets.Dataset`, whose rows have numbers: no stream of rows."""
    return hasattr(data, "select_columns") and hasattr(data, "__len__")


def listed_column(column: Any) -> list:
    """The values of a column of a data frame or a data set, bytes as they are."""
    for method in ("to_list", "to_pylist", "tolist"):
        if hasattr(column, method):
            return getattr(column, method)()
    return list(column)


def undecoded(table: Any, name: str) -> Any:
    """A data set of `datasets` with files as they are, of a column of images or of sound.

    So a file that is damaged is an error of its row, and none is decoded before it is needed.
    """
    features = getattr(table, "features", None) or {}
    feature = features.get(name)
    custom = (getattr(table, "format", None) or {}).get("type") == "custom"  # a user's function
    if custom or not (dataclasses.is_dataclass(feature) and hasattr(feature, "decode")):
        return table
    return table.cast_column(name, dataclasses.replace(feature, decode=False))


class TableColumn(Sequence):
    """A column of a `datasets.Dataset`, whose values are read when they are asked for."""

    def __init__(self, table: Any, name: str):
        self.name = name
        self._table = undecoded(table, name).select_columns([name])

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, place):
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        return self._table[int(place)][self.name]


def class_names(data: Any, column: Any) -> list[str] | None:
    """Names of the classes that a data set numbers in a column of labels, or None.

    Read from a `ClassLabel` of `datasets`, also within a list; from the `class_names` of a data set
    of `keras.utils.text_dataset_from_directory` and similar functions; or from the `classes` of one
    of torchvision, also within a loader of PyTorch.
    """
    features = getattr(data, "features", None)
    feature = features.get(column) if isinstance(features, Mapping) else None
    while hasattr(feature, "feature"):
        feature = feature.feature
    of = getattr(data, "dataset", data)
    known = (getattr(feature, "names", None), *(
        getattr(each, name, None) for each in (data, of) for name in ("class_names", "classes")
    ))  # fmt: skip
    for names in known:
        if names and isinstance(names, Sequence) and not isinstance(names, str):
            return list(names)
    return None


def is_column(values: Any) -> bool:
    """Whether it is one column: of a data frame or a `datasets.Dataset`; or a tensor of strings."""
    known = (str, bytes, list, tuple, np.ndarray)
    if isinstance(values, known) or is_frame(values) or hasattr(values, "column_names"):
        return False
    methods = ("to_list", "to_pylist", "to_numpy")
    named = any(hasattr(values, name) for name in methods) or isinstance(values, Sequence)
    return named or getattr(values, "dtype", None) == "string"


def text_alone(value: Any) -> Any:
    """An array or a tensor that is one string as a `str`; anything else as it is."""
    dtype = getattr(value, "dtype", None)
    if getattr(value, "shape", None) == () and (
        dtype == "string" or getattr(dtype, "kind", "") in ("U", "S")
    ):
        return plain(value, "the text")
    return value


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
