"""Data sets of images and sound as one argument: which columns are inputs, texts and labels."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from keras import ops

from keras_transformer.checking import shorten
from keras_transformer.columns import (
    TableColumn,
    class_names,
    is_column,
    is_frame,
    is_table,
    listed_column,
    plain,
    undecoded,
)
from keras_transformer.data import Records
from keras_transformer.data.record_objects import column_names, elements_of
from keras_transformer.processors.media import array_of, is_tensor
from keras_transformer.tasks.class_labels import by_name
from keras_transformer.tasks.streams import WHOLE, TextBatches, size_of

_ROWS = 32  # of a batch, where a data set gives one row after the other


class TakesTables:
    """Mixin of a task whose inputs are images or sound.

    A data set of `datasets`, a data frame or what `data.read` makes has a column for each thing
    that the task learns from. That of the inputs is the one of images or sound, or has a usual
    name; `beside` are the usual names of what goes with an input, `learned` those of what is
    learned.
    """

    beside: ClassVar[tuple[str, ...]] = ()  # of texts that go with an input, such as questions
    learned: ClassVar[tuple[str, ...]] = ("label", "labels")
    needs_beside: ClassVar[bool] = False  # Whether there is nothing to learn without them.

    def held(self, data: Any, batch_size=None, steps=None, **options) -> Any:
        """Such data as batches to learn from or to score; anything else as it is."""
        self._refuse_several(data)
        if _is_stream(data):
            return self._streamed(data, batch_size, steps, **options)
        columns = self._columns(data)
        if columns is None:
            data, source = self._opened(data)
            return data if source is None else source.batched(batch_size, steps, **options)
        x, beside, y = columns
        self._check_there(data, beside, y)
        if options.get("seed", 0) is None:
            options["seed"] = int(np.random.randint(2**31))
        x = x if beside is None else (x, beside)
        return self.make_dataset(x, y, batch_size=batch_size, **options)

    def held_inputs(self, data: Any, options: dict[str, Any]) -> Any:
        """The inputs of such data; anything else as it is."""
        self._refuse_several(data)
        if _is_stream(data):
            name = self._names_of(data)[0]
            rows = iter(undecoded(data, name))
            if options.get("steps") is not None:
                rows = itertools.islice(rows, options.pop("steps") * _ROWS)
            return [row[name] for row in rows]
        columns = self._columns(data)
        if columns is not None:
            return columns[0]
        data, source = self._opened(data)
        if source is None:
            return data
        batches = itertools.islice(source.batches(_ROWS), options.pop("steps", None))
        return [row for x, *_ in batches for row in x]

    def _columns(self, data: Any) -> tuple | None:
        """The columns of inputs, of what goes with them and of what is learned, or None."""
        if isinstance(data, Records):
            columns = data.held()
            x, beside, *_ = (*columns[: len(data.x)], None)
            y = None if data.y is None else list(columns[-1])
            y = self._by_name(getattr(data.sources[0], "data", None), data.y, y)
            if beside is None and self.needs_beside and y is not None:
                beside, y = y, None
            return x, None if beside is None else list(beside), y
        table = is_table(data)
        if not table and (not is_frame(data) or ops.is_tensor(data)):
            return None
        name, beside, y = self._names_of(data)
        x = TableColumn(data, name) if table else listed_column(data[name])
        beside, labels = (None if n is None else listed_column(data[n]) for n in (beside, y))
        return x, beside, self._by_name(data, y, labels)

    def _names_of(self, data: Any) -> tuple[str, str | None, str | None]:
        names = column_names(data)
        names = list(next(iter(data), {})) if names is None else names  # of a stream
        kind = getattr(self.processor_class, "source_class", self.processor_class)
        features = getattr(data, "features", None) or {}
        typed = [n for n in names if type(features.get(n)).__name__ == kind.feature]
        usual = [n for n in kind.column_names if n in names]
        if len(typed) == 1 or usual:
            name = typed[0] if len(typed) == 1 else usual[0]
            return name, *(
                next((n for n in known if n in names and n != name), None)
                for known in (self.beside, self.learned)
            )
        raise ValueError(
            f"The {type(data).__name__} has the columns {shorten(names)}, none of which is that of "
            f"the {kind.raw}. Name it, data.read(data, x='...', y='...'), or rename it: "
            f"{kind.column_names[0]!r}."
        )

    def _by_name(self, data: Any, name: str | None, labels: list | None) -> list | None:
        """Numbers of classes by their names in the data set, if these are the task's."""
        return by_name(labels, class_names(data, name), getattr(self, "labels", None))

    def _streamed(self, data: Any, batch_size, steps, **options) -> TextBatches:
        """The batches of a data set that is gone through from its beginning."""
        names, size = self._names_of(data), batch_size or _ROWS
        self._check_there(data, *names[1:])

        def batches() -> Iterator[tuple]:
            rows = iter(undecoded(data, names[0]))
            while some := list(itertools.islice(rows, size)):
                x, beside, y = (
                    None if name is None else [row[name] for row in some] for name in names
                )
                y = self._by_name(data, names[2], y)
                yield x if beside is None else (x, beside), y, None

        count = steps if steps is not None else sum(1 for _ in batches())
        return TextBatches(self, batches, None if steps is not None else count, **options)

    def _opened(self, data: Any) -> "tuple[Any, _Elements | None]":
        """Return the data, a generator unconsumed, and its elements if they hold inputs."""
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
        if not of_inputs and not hasattr(x, "row_splits"):  # ragged, of TensorFlow
            return ((element for element in elements) if once else data), None
        return data, _Elements(self, data, first, elements if once else None)

    def _check_there(self, data: Any, beside: Any, y: Any) -> None:
        """ValueError for data without what is learned."""
        texts, labels = self.needs_beside and beside is None, self.needs_labels and y is None
        if texts or labels:
            names = " or ".join(map(repr, self.beside if texts else self.learned))
            raise ValueError(
                f"{type(self).__name__} learns from {'texts' if texts else 'labels'}, and the "
                f"{type(data).__name__} has no column {names}. Name it: "
                "data.read(data, x=..., y=...)."
            )

    def _refuse_several(self, data: Any) -> None:
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
    """A data set that gives arrays or images of Pillow, one or a batch, alone or with labels.

    Such are those of `keras.utils.image_dataset_from_directory` and `audio_dataset_from_directory`,
    and of PyTorch's loaders and folders.

    Args:
        task: a `TakesTables`.
        data: the data set.
        first: its first element.
        elements: the iterator of one that can be gone through once, None for others.
    """

    def __init__(self, task: Any, data: Any, first: Any, elements: Iterator | None):
        self._task, self._data, self._elements = task, data, elements
        kind = task.processor_class
        self._kind = getattr(kind, "source_class", kind)
        self._names = class_names(data, None)
        x, y, _ = _parts(first)
        self._first, self._has_labels = _on_host(x), y is not None
        # An array of samples (time, channels) may be one or a batch: labels tell.
        of_each = y is None or (np.ndim(y) > 0 and len(y) == len(self._first))
        self._single = self._kind.is_one(self._first) or not of_each

    def batches(self, rows: int) -> Iterator[tuple]:
        """Yield `(x, y, sample_weight)` by batch; single rows are collected by `rows`."""
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
        """Return batches to learn from or to score."""
        given = self._has_labels or None
        beside = given if self._task.needs_beside else None
        self._task._check_there(self._data, beside, given)
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

    def _made(self, x: Any, y: Any, weights: Any) -> tuple:
        y = self._labels(y)
        return ((x, y), None, weights) if self._task.needs_beside else (x, y, weights)

    def _like_first(self, x: Any) -> Any:
        return self._kind.like(_on_host(x), self._first)

    def _labels(self, y: Any) -> Any:
        """Return labels, by the data set's class names if these are the task's."""
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
        right = y.ndim == 2 and y.shape[1] == len(names)  # a row with a number for each class
        return np.asarray(by_name(y.astype("float32").tolist(), names, known)) if right else y


def _parts(element: Any) -> tuple:
    """Split an element of a data set into `(x, y, sample_weight)`."""
    element = element if isinstance(element, (tuple, list)) else (element,)
    return (*element, None, None, None)[:3]


def _on_host(x: Any) -> Any:
    """Return an array, a list of arrays for a ragged batch, or a Pillow image as it is."""
    if hasattr(x, "row_splits"):
        return [np.asarray(row, "float32") for row in x.to_list()]
    return x if hasattr(x, "getbands") else array_of(x)


def _is_stream(data: Any) -> bool:
    """Whether it is an `IterableDataset` of `datasets`."""
    return hasattr(data, "select_columns") and hasattr(data, "iter") and not is_table(data)
