"""Columns and data frames of other libraries, recognized by their methods without an import."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def is_frame(data: Any) -> bool:
    """Return whether the data is a data frame of pandas or Polars, or a table of pyarrow."""
    return hasattr(data, "columns") and hasattr(data, "shape") and hasattr(data, "__getitem__")


def is_table(data: Any) -> bool:
    """Return whether the data is a `datasets.Dataset` with numbered rows, not a stream of rows."""
    return hasattr(data, "select_columns") and hasattr(data, "__len__")


def listed_column(column: Any) -> list:
    """Return the values of a column of a data frame or a data set as a list; bytes stay bytes."""
    for method in ("to_list", "to_pylist", "tolist"):
        if hasattr(column, method):
            return getattr(column, method)()
    return list(column)


def undecoded(table: Any, name: str) -> Any:
    """Switch off decoding for a column of a `datasets.Dataset`: images, audio, or lists of them.

    Its values are then encoded files, which are decoded when they are needed, and a damaged file
    is an error of its own row.
    """
    features = getattr(table, "features", None)
    feature = _encoded(features.get(name)) if isinstance(features, Mapping) else None
    if feature is None:
        return table
    custom = (getattr(table, "format", None) or {}).get("type") == "custom"  # a user's function
    return table if custom else table.cast_column(name, feature)


def _encoded(feature: Any) -> Any:
    """Return a feature of `datasets` whose values stay encoded files; None if it decodes none."""
    if not dataclasses.is_dataclass(feature):
        return None
    if hasattr(feature, "decode"):
        return dataclasses.replace(feature, decode=False)
    inner = _encoded(getattr(feature, "feature", None))  # of a list
    return None if inner is None else dataclasses.replace(feature, feature=inner)


class TableColumn(Sequence):
    """A column of a `datasets.Dataset`, whose values are read on access."""

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
    """Return the names of the classes that a label column holds as numbers, or None if unknown.

    The names are read from a `ClassLabel` of `datasets`, also within a list; from the `class_names`
    of a data set of `keras.utils.text_dataset_from_directory` and similar functions; or from the
    `classes` of a torchvision data set, also within a PyTorch loader.
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
    """Return whether the values are a column of a data frame or a data set, or a string tensor."""
    known = (str, bytes, list, tuple, np.ndarray)
    if isinstance(values, known) or is_frame(values) or hasattr(values, "column_names"):
        return False
    methods = ("to_list", "to_pylist", "to_numpy")
    named = any(hasattr(values, name) for name in methods) or isinstance(values, Sequence)
    return named or getattr(values, "dtype", None) == "string"


def text_alone(value: Any) -> Any:
    """Convert an array or tensor that holds one string to a `str`; return other values as is."""
    dtype = getattr(value, "dtype", None)
    if getattr(value, "shape", None) == () and (
        dtype == "string" or getattr(dtype, "kind", "") in ("U", "S")
    ):
        return plain(value, "the text")
    return value


def plain(value: Any, place: str) -> Any:
    """Convert arrays, tensors and columns to Python values; errors name the value `place`."""
    if hasattr(value, "numpy") and not hasattr(value, "tolist"):  # a TensorFlow tensor
        value = value.numpy()
    # Arrays, NumPy numbers, PyTorch tensors and pandas columns; pyarrow; Polars.
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
            raise ValueError(
                f"{place} is not UTF-8: {error}. Give a string, or UTF-8 bytes."
            ) from None
    return value
