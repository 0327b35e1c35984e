"""Data sets of images or audio as one argument: finding columns of inputs, texts and labels.

A `datasets` data set, a data frame or the result of `data.read` has a column of inputs, and may
have columns of texts and targets. The input column has the type of images or audio, or a usual
name. The head's `beside` has the usual names of columns of texts that accompany inputs, and its
`learned` the usual names of columns of targets.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.data import Records
from keras_transformer.data.record_objects import column_names, elements_of
from keras_transformer.processors.media import array_of, is_tensor
from keras_transformer.support.checking import shorten
from keras_transformer.support.columns import (
    TableColumn,
    class_names,
    is_column,
    is_frame,
    is_table,
    listed_column,
    plain,
    undecoded,
)
from keras_transformer.tasks.data.labels import by_name
from keras_transformer.tasks.data.streams import WHOLE, TextBatches, size_of

_ROWS = 32  # batch size for data sets that yield single rows


def held(task, data: Any, batch_size=None, steps=None, **options) -> Any:
    """Convert a data set of images or audio to batches to learn; return other data as it is."""
    _refuse_several(task, data)
    if _is_stream(data):
        return _streamed(task, data, batch_size, steps, **options)
    columns = _columns(task, data)
    if columns is None:
        data, source = _opened(task, data)
        return data if source is None else source.batched(batch_size, steps, **options)
    x, beside, y = columns
    _check_there(task, data, beside, y)
    if options.get("seed", 0) is None:
        options["seed"] = int(np.random.randint(2**31))
    x = x if beside is None else (x, beside)
    return task.make_dataset(x, y, batch_size=batch_size, **options)


def held_inputs(task, data: Any, options: dict[str, Any]) -> Any:
    """Return the inputs of a data set of images or audio; return other data as it is."""
    _refuse_several(task, data)
    if _is_stream(data):
        name = _names_of(task, data)[0]
        rows = iter(undecoded(data, name))
        if options.get("steps") is not None:
            rows = itertools.islice(rows, options.pop("steps") * _ROWS)
        return [row[name] for row in rows]
    columns = _columns(task, data)
    if columns is not None:
        return columns[0]
    data, source = _opened(task, data)
    if source is None:
        return data
    batches = itertools.islice(source.batches(_ROWS), options.pop("steps", None))
    return [row for x, *_ in batches for row in x]


def _columns(task, data: Any) -> tuple | None:
    """Return the columns of inputs, accompanying texts and targets, or None."""
    if isinstance(data, Records):
        columns = data.held()
        x, beside, *_ = (*columns[: len(data.x)], None)
        y = None if data.y is None else list(columns[-1])
        y = _by_name(task, getattr(data.sources[0], "data", None), data.y, y)
        if beside is None and task.head.needs_beside and y is not None:
            beside, y = y, None
        return x, None if beside is None else list(beside), y
    table = is_table(data)
    if not table and (not is_frame(data) or ops.is_tensor(data)):
        return None
    name, beside, y = _names_of(task, data)
    x = TableColumn(data, name) if table else listed_column(data[name])
    beside, labels = (None if n is None else listed_column(data[n]) for n in (beside, y))
    return x, beside, _by_name(task, data, y, labels)


def _names_of(task, data: Any) -> tuple[str, str | None, str | None]:
    names = column_names(data)
    names = list(next(iter(data), {})) if names is None else names  # of a stream
    kind = getattr(task.processor_class, "source_class", task.processor_class)
    features = getattr(data, "features", None) or {}
    typed = [n for n in names if type(features.get(n)).__name__ == kind.feature]
    usual = [n for n in kind.column_names if n in names]
    if len(typed) == 1 or usual:
        name = typed[0] if len(typed) == 1 else usual[0]
        return name, *(
            next((n for n in known if n in names and n != name), None)
            for known in (task.head.beside, task.head.learned)
        )
    raise ValueError(
        f"The {type(data).__name__} has the columns {shorten(names)}, none of which is known to "
        f"hold {kind.raw}. Name the column, as in data.read(data, x='...', y='...'), or rename it "
        f"to {kind.column_names[0]!r}."
    )


def _by_name(task, data: Any, name: str | None, labels: list | None) -> list | None:
    """Replace class numbers by the data set's class names if they are the task's labels."""
    return by_name(labels, class_names(data, name), getattr(task, "labels", None))


def _streamed(task, data: Any, batch_size, steps, **options) -> TextBatches:
    """Return the batches of a data set that can be iterated from its beginning."""
    names, size = _names_of(task, data), batch_size or _ROWS
    _check_there(task, data, *names[1:])

    def batches() -> Iterator[tuple]:
        rows = iter(undecoded(data, names[0]))
        while some := list(itertools.islice(rows, size)):
            x, beside, y = (None if name is None else [row[name] for row in some] for name in names)
            y = _by_name(task, data, names[2], y)
            yield x if beside is None else (x, beside), y, None

    count = steps if steps is not None else sum(1 for _ in batches())
    return TextBatches(task, batches, None if steps is not None else count, **options)


def _opened(task, data: Any) -> "tuple[Any, _Elements | None]":
    """Return the data with all elements of generators, and `_Elements` if it yields inputs."""
    once, known = hasattr(data, "__next__"), isinstance(data, WHOLE) or is_column(data)
    sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    known = known or is_tensor(data) or hasattr(data, "getbands")
    if known or not (once or sized or hasattr(data, "__iter__")):
        return data, None
    elements = elements_of(data)
    first = next(elements, None)
    if once:
        elements = itertools.chain([] if first is None else [first], elements)
    x, *_ = _parts(first)
    of_inputs = isinstance(x, np.ndarray) or is_tensor(x) or hasattr(x, "getbands")
    if not of_inputs and not hasattr(x, "row_splits"):  # a ragged tensor of TensorFlow
        return ((element for element in elements) if once else data), None
    return data, _Elements(task, data, first, elements if once else None)


def _check_there(task, data: Any, beside: Any, y: Any) -> None:
    """Raise ValueError if the data lacks the texts or labels to learn from."""
    texts, labels = task.head.needs_beside and beside is None, task.head.needs_labels and y is None
    if texts or labels:
        names = " or ".join(map(repr, task.head.beside if texts else task.head.learned))
        raise ValueError(
            f"{type(task).__name__} learns from {'texts' if texts else 'labels'}, and the "
            f"{type(data).__name__} has no column {names}. Name it: "
            "data.read(data, x=..., y=...)."
        )


def _refuse_several(task, data: Any) -> None:
    if (
        isinstance(data, Mapping)
        and data
        and all(hasattr(part, "column_names") for part in data.values())
    ):
        raise ValueError(
            f"Received a {type(data).__name__} with {shorten(list(data))}: give one of its "
            f"data sets, as in data[{next(iter(data))!r}]."
        )


class _Elements:
    """A data set that yields arrays or Pillow images, single or in batches, with or without labels.

    Examples are `keras.utils.image_dataset_from_directory` and `audio_dataset_from_directory`, and
    PyTorch's loaders and folders.

    Args:
        task: a task of images or audio.
        data: the data set.
        first: its first element.
        elements: its iterator if it can be iterated only once, None otherwise.
    """

    def __init__(self, task: Any, data: Any, first: Any, elements: Iterator | None):
        self._task, self._data, self._elements = task, data, elements
        kind = task.processor_class
        self._kind = getattr(kind, "source_class", kind)
        self._names = class_names(data, None)
        x, y, _ = _parts(first)
        self._first, self._has_labels = _on_host(x), y is not None
        # An array (time, channels) may be one recording or a batch: the number of labels tells.
        of_each = y is None or (np.ndim(y) > 0 and len(y) == len(self._first))
        self._single = self._kind.is_one(self._first) or not of_each

    def batches(self, rows: int) -> Iterator[tuple]:
        """Yield `(x, y, sample_weight)` by batch; `rows` single rows make a batch."""
        elements = elements_of(self._data) if self._elements is None else self._elements
        given = map(_parts, elements)
        while self._single and (some := list(itertools.islice(given, rows))):
            x, y, weights = (None if c[0] is None else list(c) for c in zip(*some, strict=True))
            yield [self._like_first(row) for row in x], self._labels(y), weights
        for x, y, weights in given:
            yield (
                self._like_first(x),
                self._labels(y),
                None if weights is None else array_of(weights),
            )

    def batched(self, batch_size: int | None, steps: int | None, **options) -> TextBatches:
        """Return batches for training or evaluation."""
        given = self._has_labels or None
        beside = given if self._task.head.needs_beside else None
        _check_there(self._task, self._data, beside, given)
        size, count = batch_size or _ROWS, size_of(self._data, steps)
        if self._elements is not None and steps is None:
            held = list(self.batches(size))
            return TextBatches(self._task, lambda: iter(held), len(held), **options)
        if steps is not None:
            count = None
        elif count is None:
            count = sum(1 for _ in self.batches(size))
        elif self._single:
            count = -(-count // size)
        once = self._elements is not None
        return TextBatches(self._task, lambda: self.batches(size), count, once, **options)

    def _like_first(self, x: Any) -> Any:
        return self._kind.like(_on_host(x), self._first)

    def _labels(self, y: Any) -> Any:
        """Return labels, replaced by the data set's class names if they are the task's."""
        if y is None:
            return None
        y = np.asarray([array_of(label) for label in y]) if isinstance(y, list) else array_of(y)
        if y.dtype.kind in "OSU":
            return plain(y.tolist(), "y")
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        names, known = self._names, getattr(self._task, "labels", None)
        if names is None or known is None or set(names) != set(known) or y.dtype.kind not in "iuf":
            return y
        if y.ndim == 1:
            return by_name(y.tolist(), names, known)
        right = y.ndim == 2 and y.shape[1] == len(names)  # a number for each class
        return np.asarray(by_name(y.astype("float32").tolist(), names, known)) if right else y


def _parts(element: Any) -> tuple:
    """Split an element of a data set into `(x, y, sample_weight)`."""
    element = element if isinstance(element, (tuple, list)) else (element,)
    return (*element, None, None, None)[:3]


def _on_host(x: Any) -> Any:
    """Convert a tensor to an array and a ragged batch to a list of arrays; keep Pillow images."""
    if hasattr(x, "row_splits"):
        return [np.asarray(row, "float32") for row in x.to_list()]
    return x if hasattr(x, "getbands") else array_of(x)


def _is_stream(data: Any) -> bool:
    """Return True if `data` is an `IterableDataset` of `datasets`."""
    return hasattr(data, "select_columns") and hasattr(data, "iter") and not is_table(data)
