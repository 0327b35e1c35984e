"""Text data other than lists of strings: data frames, and data sets that yield strings."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.data import BucketedDataset, Records, read
from keras_transformer.data.record_objects import column_names, elements_of
from keras_transformer.distribution import DatasetShard
from keras_transformer.kernels.batches import infers_shapes_from_batches
from keras_transformer.support.checking import shorten
from keras_transformer.support.columns import class_names, is_column, is_frame, plain
from keras_transformer.tasks.data.arguments import check_labels_given, parts_of
from keras_transformer.tasks.data.labels import by_name

_MULTIPLE = 32  # Batches arrive one by one: use few lengths, since each is compiled.
_ROWS = 32  # batch size for data sets that yield single rows
# The most batches of a generator that Keras inspects before the first step.
_LOOKED_AT = 8
_ALL = 2**31 - 1
# Usual column names of texts (the first match is used), and of labels and targets.
_TEXTS = (("text", "text_pair"), ("text",), ("question", "context"), ("source",), ("tokens",))
_LABELS = ("label", "labels", "answers", "ner_tags")
_TARGETS = ("target",)


class TextBatches(keras.utils.PyDataset):
    """The batches of another library's data set; batches of texts are tokenized as they come.

    `begin` returns an iterator of batches `(x, y, sample_weight)`; with `once` it can be called
    only once. `num_batches` is None if the data set is endless. Further arguments are options of
    `make_dataset`.
    """

    def __init__(
        self,
        task,
        begin: Callable[[], Iterator],
        num_batches: int | None,
        once: bool = False,
        shuffle: bool = False,
        seed: int | None = 0,
        **processing,
    ):
        super().__init__()
        self._task, self._begin, self._number, self._once = task, begin, num_batches, once
        self._seed = int(np.random.randint(2**31)) if seed is None else seed
        self._shuffle, self._served, self._processing = shuffle, 0, processing
        config = task.backbone.config
        # Multiples of a divisor of the maximum length never exceed it.
        learned = config.position == "learned"
        self._multiple = math.gcd(_MULTIPLE, config.max_sequence_length) if learned else _MULTIPLE
        self._batches, self._next = begin(), 0
        self._begun = False
        self._looked_at: dict[int, tuple] = {}
        self.finish: Callable | None = None  # applied to each batch, such as for weights

    @property
    def num_batches(self) -> int | None:
        return self._number

    def on_epoch_begin(self):
        self._begun = True

    def __getitem__(self, index: int):
        looks = infers_shapes_from_batches() and not self._begun
        return _of_other_length(self._batch(index)) if looks and index == 1 else self._batch(index)

    def _batch(self, index: int) -> tuple:
        if index in self._looked_at:
            return self._looked_at[index]
        if index < self._next and not self._once:
            self._batches, self._next = self._begin(), 0
        skipped = 0 if self._once else index - self._next
        batch = next(itertools.islice(self._batches, skipped, None), None)
        if batch is None and not self._once and self._number is None:  # Start over.
            self._batches = self._begin()
            batch = next(self._batches, None)
        if batch is None:
            raise ValueError(
                f"The data ended after {self._served} batches. Give fewer steps, or more data."
            )
        self._next = index + 1
        self._served += 1
        if isinstance(batch[0], Mapping):
            made = tuple(part for part in batch if part is not None)
        else:
            check_labels_given(self._task, *batch[:2])
            drawn = self._seed + (self._served if self._shuffle else index)
            options = {"seed": drawn, "multiple": self._multiple, **self._processing}
            options |= {"shuffle": self._shuffle, "batch_size": _ALL, "max_buckets": 1}
            made = self._task.make_dataset(*batch, **options)[0]
        made = made if self.finish is None else self.finish(made)
        if self._once and index < _LOOKED_AT:
            self._looked_at[index] = made
        return made


def _of_other_length(batch: tuple) -> tuple:
    """Lengthen the arrays of a batch by one token, to show that their length varies."""
    x, *others = keras.tree.map_structure(np.asarray, batch)
    is_ids = {name: 1 < a.ndim < 4 and a.dtype.kind in "iub" for name, a in x.items()}
    lengths = {array.shape[-1] for name, array in x.items() if is_ids[name]}

    def longer(array: np.ndarray) -> np.ndarray:
        return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, 1)])

    x = {name: longer(array) if is_ids[name] else array for name, array in x.items()}
    return x, *(longer(a) if a.ndim > 1 and a.shape[-1] in lengths else a for a in others)


def held(
    task, data: Any, batch_size: int | None = None, steps: int | None = None, **options
) -> Any:
    """Prepare data for `fit` or `evaluate`: data sets of strings become batches or `Records`.

    Other data is returned as it is. `batch_size` is for data that yields single rows; `steps` is
    the number of batches requested.
    """
    columns = _columns_of_table(task, data)
    if columns is not None:
        x, y = columns
        if task.head.takes_records:
            return read(data, x=x, y=y)
        texts = _one_or_pair(list(data[name]) for name in x)
        labels = None if y is None else list(map(_answer, data[y]))
        labels = by_name(labels, class_names(data, y), getattr(task, "labels", None))
        check_labels_given(task, texts, labels)
        if options.get("seed", 0) is None:
            options["seed"] = int(np.random.randint(2**31))
        return task.make_dataset(texts, labels, batch_size=batch_size, **options)
    data, source = _opened(task, data, steps)
    if source is None:
        return data
    rows, number = batch_size or _ROWS, source.size
    if steps is not None:
        number = None
    elif source.once:
        batches = list(source.batches(rows))
        return TextBatches(task, lambda: iter(batches), len(batches), **options)
    elif number is None:
        number = sum(1 for _ in source.batches(rows))
    elif source.single:
        number = -(-number // rows)
    return TextBatches(task, lambda: source.batches(rows), number, source.once, **options)


def held_texts(task, data: Any, options: dict[str, Any]) -> Any:
    """Prepare data for `predict`: a list of all texts, or of the texts of `steps` batches."""
    columns = _columns_of_table(task, data)
    if columns is not None:
        if task.head.takes_records:
            return read(data, x=columns[0])
        return _one_or_pair(list(data[name]) for name in columns[0])
    data, source = _opened(task, data, options.get("steps"))
    if source is None:
        return data
    steps = options.pop("steps", None)
    parts = [x for x, _, _ in itertools.islice(source.batches(_ROWS), steps)]
    if isinstance(parts[0], Mapping):
        return TextBatches(task, lambda: ((x,) for x in parts), len(parts))
    if isinstance(parts[0], tuple):
        return tuple(list(itertools.chain(*side)) for side in zip(*parts, strict=True))
    return list(itertools.chain(*parts))


WHOLE = (str, bytes, list, tuple, set, np.ndarray, Mapping, Records, BucketedDataset, DatasetShard,
          TextBatches)  # fmt: skip


class _Source(NamedTuple):
    """A data set of strings: how to iterate over it, and what is known about it."""

    begin: Callable[[], Iterator]  # returns an iterator of `(x, y, sample_weight)`
    once: bool  # whether it can be iterated only once
    size: int | None  # number of elements, None if unknown
    single: bool  # whether an element is a single row rather than a batch
    labelled: bool  # whether its first element has labels

    def batches(self, rows: int) -> Iterator[tuple]:
        """Yield `(x, y, sample_weight)` by batch."""
        elements = self.begin()
        if not self.single:
            yield from elements
        while self.single and (some := list(itertools.islice(elements, rows))):
            x, y, weights = map(list, zip(*some, strict=True))
            if isinstance(x[0], tuple):
                x = tuple(map(list, zip(*x, strict=True)))
            yield x, y if self.labelled else None, None if weights[0] is None else weights


def is_data_set(data: Any) -> bool:
    """Return True for an iterable data set, rather than texts, an array, a mapping or a set."""
    if isinstance(data, WHOLE) or ops.is_tensor(data) or is_column(data):
        return False
    return hasattr(data, "__iter__") and not hasattr(data, "__array__")


def not_texts(name: str) -> ValueError:
    """Return the error for a data frame where texts are expected."""
    return ValueError(
        f"`{name}` is a data frame. Name a column, as in x=frame['text'], or for pairs two of "
        "them in a tuple; or read it: data.read(frame, x='text', y='label')."
    )


def _opened(task, data: Any, steps: int | None = None) -> tuple[Any, _Source | None]:
    """Return the data with all elements of generators, and a `_Source` if it yields strings."""
    if data is None:
        return None, None
    if not isinstance(data, WHOLE) and is_frame(data) and not ops.is_tensor(data):
        columns = _one_or_pair(data[name] for name in column_names(data))
        if isinstance(columns, tuple) and len(columns) > (task.head.most_texts or len(columns)):
            raise not_texts("x")
        return columns, None
    once = hasattr(data, "__next__")
    sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if (
        isinstance(data, WHOLE)
        or ops.is_tensor(data)
        or is_column(data)
        or not (once or sized or hasattr(data, "__iter__"))
    ):
        return data, None
    spec = getattr(data, "element_spec", ())  # of tf.data: skip arrays without reading them
    dtypes = [getattr(part, "dtype", None) for part in keras.tree.flatten(spec)]
    if dtypes and "string" not in dtypes and not isinstance(spec, Mapping):
        return data, None
    elements = elements_of(data)
    first = next(elements, None)
    if first is None:
        raise ValueError(f"The data is empty: the {type(data).__name__} yields nothing.")
    if once:
        elements = itertools.chain([first], elements)
    if isinstance(first, Mapping):
        parts = _parts_by_name(task, data, first)
    else:
        parts = (lambda element: _parts(task, element)) if _has_text(first) else None
        if parts is not None and isinstance(first, tuple) and isinstance(first[0], Mapping):
            parts = _parts_of_columns(task, data, first[0])
    if parts is None:
        return (element for element in elements) if once else data, None
    parts = _named_parts(task, data, first, parts)
    x, y, _ = parts(first)
    single = not isinstance(x, Mapping) and isinstance(x[0] if isinstance(x, tuple) else x, str)
    # "No answer" to a question is a label too.
    has_label = isinstance(first, tuple) and len(first) > 1
    if isinstance(first, Mapping):
        has_label = not {*_LABELS}.isdisjoint(first)
    labelled = y is not None or (task.head.learns_spans and has_label)
    begin = (lambda: map(parts, elements)) if once else (lambda: map(parts, elements_of(data)))
    return data, _Source(begin, once, size_of(data, steps), single, labelled)


def _named_parts(task, data: Any, first: Any, parts: Callable) -> Callable:
    """Wrap `parts` to give labels by name, if the data set has class names."""
    column = next((n for n in _LABELS if n in first), None) if isinstance(first, Mapping) else None
    names, known = class_names(data, column), getattr(task, "labels", None)
    if names is None:
        return parts

    def named(element: Any) -> tuple:
        x, y, weights = parts(element)
        if isinstance(y, list) and all(isinstance(row, list) and len(row) == 1 for row in y):
            y = [label for (label,) in y]  # from Keras's label_mode="binary"
        if isinstance(x[0] if isinstance(x, tuple) else x, str):  # a single row
            return x, by_name([y], names, known)[0], weights
        return x, by_name(y, names, known), weights

    return named


def size_of(data: Any, steps: int | None) -> int | None:
    """Return the number of elements or None. Raises ValueError if endless and without steps."""
    size = None
    if hasattr(data, "cardinality"):
        size = int(data.cardinality())  # -1 means endless, -2 unknown
    elif hasattr(data, "__len__"):
        with contextlib.suppress(TypeError):  # a PyTorch loader of a data set without a length
            size = len(data)
    if size == -1 and steps is None:
        raise ValueError("The data set has no end: give the number of steps.")
    return size if size is None or size >= 0 else None


def _columns_of_table(task, data: Any) -> tuple[tuple[str, ...], str | None] | None:
    """Return the columns of texts and labels of a `datasets.Dataset`; None if it is not one."""
    if isinstance(data, Mapping):
        if data and all(hasattr(part, "column_names") for part in data.values()):
            raise ValueError(
                f"Received a {type(data).__name__} with {shorten(list(data))}: give one of its "
                f"data sets, as in data[{next(iter(data))!r}]."
            )
        return None
    table = hasattr(data, "select_columns") and hasattr(data, "__len__")  # not a stream
    return _usual_columns(task, data, column_names(data)) if table else None


def _usual_columns(task, data: Any, names) -> tuple[tuple[str, ...], str | None]:
    """Return the column names of texts, and of the labels or targets."""
    if task.head.usual_columns is not None:
        return task.head.usual_columns(list(names))
    x = next((usual for usual in _TEXTS if set(usual) <= set(names)), None)
    y = next((n for n in (_LABELS if task.head.needs_labels else _TARGETS) if n in names), None)
    if x is None:
        raise _of_other_names(data, names)
    return x, y


def _of_other_names(data: Any, names) -> ValueError:
    return ValueError(
        f"The rows of the {type(data).__name__} are dicts with {shorten(sorted(names))}. Name "
        'their columns, as in data.read(data, x="review", y="stars"), or rename them: texts are '
        "in 'text', a second one in 'text_pair', labels in 'label'."
    )


def _one_or_pair(columns: Iterable) -> Any:
    """Return a single column as it is, several as a tuple."""
    columns = tuple(columns)
    return columns[0] if len(columns) == 1 else columns


def _parts_by_name(task, data: Any, first: Mapping) -> Callable | None:
    """Return a function from dicts like `first` to x, y and weights; None if it holds arrays."""
    label = next((name for name in _LABELS if name in first), None)
    if _has_text(first):
        columns, y = _usual_columns(task, data, list(first))

        def named(row: Mapping) -> tuple:
            x = _one_or_pair(row[name] for name in columns)
            return _parts(task, (x, _answer(row.get(y))), pair=len(columns) > 1)

        return named
    ids = {"token_ids", "input_ids"} & first.keys()
    if label is None or not task.head.needs_labels or not ids or np.ndim(first[min(ids)]) != 2:
        return None

    def split(batch: Mapping) -> tuple:
        x = {name: np.asarray(array) for name, array in batch.items() if name != label}
        y = np.asarray(batch[label])
        if y.dtype.kind != "i":
            return x, y, None
        # Transformers marks targets to ignore with negative values. Either all batches have
        # weights or none.
        return x, np.maximum(y, 0), (y >= 0).astype("float32")

    return split


def _parts_of_columns(task, data: Any, columns: Mapping) -> Callable:
    """Return a function from `(columns, labels)`, as TensorFlow reads CSV files, to x, y, weights.

    Raises ValueError if the columns have not the usual names of texts.
    """
    names, _ = _usual_columns(task, data, list(columns))

    def parts(element: tuple) -> tuple:
        x = _one_or_pair(element[0][name] for name in names)
        return _parts(task, (x, *element[1:]), pair=len(names) > 1)

    return parts


def _answer(label: Any) -> Any:
    """Return a label; for a SQuAD answer its start and text, or None without an answer."""
    if not isinstance(label, Mapping):
        return label
    return next(zip(label["answer_start"], label["text"], strict=True), None)


def _parts(task, element: Any, pair: bool = False) -> tuple[Any, Any, Any]:
    """Split an element into x, y and weights; x is a string for one row, a tuple for a pair."""
    if isinstance(element, list) and element and not isinstance(element[0], str):
        element = tuple(element)  # PyTorch's loaders turn tuples into lists.
    alone = (
        task.head.learns_spans
        and isinstance(element, tuple)
        and isinstance(element[0], (str, bytes))
    )
    element = element if isinstance(element, tuple) and not alone else (element,)
    x, y, weights = parts_of(element, "An element of the data")
    y, weights = plain(y, "y"), plain(weights, "sample_weight")
    if isinstance(x, (list, tuple)):
        of_strings = all(isinstance(part, str) for part in x)
        # Two strings are a pair if there is one label, otherwise a batch of two.
        single = isinstance(x, tuple) and len(x) == 2 and not isinstance(y, list | None)
        sides = isinstance(x, tuple) or not isinstance(x[0], list)
        if pair or task.head.learns_spans or (single if of_strings else sides):
            return tuple(plain(part, "x") for part in x), y, weights
    return plain(x, "x"), y, weights


def _has_text(element: Any) -> bool:
    if isinstance(element, (str, bytes)):
        return True
    if isinstance(element, Mapping):
        return any(map(_has_text, element.values()))
    if isinstance(element, (list, tuple)):
        return any(map(_has_text, element[:2]))
    if isinstance(element, np.ndarray):
        return element.dtype.kind in "OUS"
    return getattr(element, "dtype", None) == "string"
