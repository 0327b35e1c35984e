"""Texts that are not lists of strings: data frames, and data sets that give strings."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import shorten
from keras_transformer.columns import class_names, is_column, is_frame, plain
from keras_transformer.data import BucketedDataset, Records, read
from keras_transformer.data.record_objects import column_names, elements_of
from keras_transformer.distribution import DatasetShard
from keras_transformer.tasks.class_labels import by_name
from keras_transformer.tasks.inputs import check_labels_given, parts_of

_MULTIPLE = 32  # Batches come one by one: few lengths, since each is a program.
_ROWS = 32  # of a batch, where a data set gives one row after the other
# Keras looks at so many batches of a generator, at most, before the first step.
_LOOKED_AT = 8
_ALL = 2**31 - 1
# The usual columns of texts, the first that are there, and of what is learned.
_TEXTS = (("text", "text_pair"), ("text",), ("question", "context"), ("source",), ("tokens",))
_LABELS = ("label", "labels", "answers", "ner_tags")
_TARGETS = ("target",)


class TextBatches(keras.utils.PyDataset):
    """The batches of a data set of another library; those of texts are tokenized as they come.

    `begin` gives an iterator of `(x, y, sample_weight)`, each a batch, and with `once` only once.
    `num_batches` is None for a data set without an end. Others are options of `make_dataset`.
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
        # Lengths that are multiples of a divisor of the longest are not longer than that.
        learned = config.position == "learned"
        self._multiple = math.gcd(_MULTIPLE, config.max_sequence_length) if learned else _MULTIPLE
        self._batches, self._next = begin(), 0
        self._begun = False
        self._looked_at: dict[int, tuple] = {}
        self.finish: Callable | None = None  # a change of each batch, such as weights

    @property
    def num_batches(self) -> int | None:
        return self._number

    def on_epoch_begin(self):
        self._begun = True

    def __getitem__(self, index: int):
        # On TensorFlow the shapes of the first two batches are those of all, and a size that both
        # have is fixed. They are fetched before the first epoch, to be looked at alone.
        looks = keras.backend.backend() == "tensorflow" and not self._begun
        return _of_other_length(self._batch(index)) if looks and index == 1 else self._batch(index)

    def _batch(self, index: int) -> tuple:
        if index in self._looked_at:
            return self._looked_at[index]
        if index < self._next and not self._once:
            self._batches, self._next = self._begin(), 0
        skipped = 0 if self._once else index - self._next
        batch = next(itertools.islice(self._batches, skipped, None), None)
        if batch is None and not self._once and self._number is None:  # From its beginning.
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
    """The arrays of a batch with one token more, for their shapes."""
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
    """Data as the verbs of a task take it: what gives strings as texts, `Records` or `TextBatches`.

    `batch_size` is for data that gives one row after the other, `steps` the batches asked for.
    """
    columns = _columns_of_table(task, data)
    if columns is not None:
        x, y = columns
        if task.takes_records:
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
    """As `held`, but texts as a list, of all rows or of the `steps` in the options."""
    columns = _columns_of_table(task, data)
    if columns is not None:
        if task.takes_records:
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
    """A data set of strings: how to go through it, and what is known of it."""

    begin: Callable[[], Iterator]  # to `(x, y, sample_weight)` of each element
    once: bool
    size: int | None  # its elements; None where it is not known
    single: bool  # whether an element is one row and no batch
    labelled: bool  # whether its first element has labels

    def batches(self, rows: int) -> Iterator[tuple]:
        """`(x, y, sample_weight)` of each batch."""
        elements = self.begin()
        if not self.single:
            yield from elements
        while self.single and (some := list(itertools.islice(elements, rows))):
            x, y, weights = map(list, zip(*some, strict=True))
            if isinstance(x[0], tuple):
                x = tuple(map(list, zip(*x, strict=True)))
            yield x, y if self.labelled else None, None if weights[0] is None else weights


def is_data_set(data: Any) -> bool:
    """Return whether it is to be gone through: not texts, an array, a mapping or a set."""
    if isinstance(data, WHOLE) or ops.is_tensor(data) or is_column(data):
        return False
    return hasattr(data, "__iter__") and not hasattr(data, "__array__")


def not_texts(name: str) -> ValueError:
    """The error for a data frame where texts are needed."""
    return ValueError(
        f"`{name}` is a data frame. Name a column, as in x=frame['text'], or for pairs two of "
        "them in a tuple; or read it: data.read(frame, x='text', y='label')."
    )


def _opened(task, data: Any, steps: int | None = None) -> tuple[Any, _Source | None]:
    """The data, a generator of arrays as if not looked into; and as a source if of strings."""
    if is_frame(data) and not ops.is_tensor(data):
        columns = _one_or_pair(data[name] for name in column_names(data))
        if isinstance(columns, tuple) and len(columns) > (task.most_texts or len(columns)):
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
    spec = getattr(data, "element_spec", ())  # of tf.data: arrays are not looked into
    dtypes = [getattr(part, "dtype", None) for part in keras.tree.flatten(spec)]
    if dtypes and "string" not in dtypes and not isinstance(spec, Mapping):
        return data, None
    elements = elements_of(data)
    first = next(elements, None)
    if first is None:
        raise ValueError(f"The data is empty: the {type(data).__name__} gives nothing.")
    if once:
        elements = itertools.chain([first], elements)
    if isinstance(first, Mapping):
        parts = _parts_by_name(task, data, first)
    else:
        parts = (lambda element: _parts(task, element)) if _has_text(first) else None
        if parts is not None and isinstance(first, tuple) and isinstance(first[0], Mapping):
            raise _of_other_names(data, first[0])
    if parts is None:
        return (element for element in elements) if once else data, None
    parts = _named_parts(task, data, first, parts)
    x, y, _ = parts(first)
    single = not isinstance(x, Mapping) and isinstance(x[0] if isinstance(x, tuple) else x, str)
    # That a question has no answer is a label too.
    has_label = isinstance(first, tuple) and len(first) > 1
    if isinstance(first, Mapping):
        has_label = not {*_LABELS}.isdisjoint(first)
    labelled = y is not None or (task.answers and has_label)
    begin = (lambda: map(parts, elements)) if once else (lambda: map(parts, elements_of(data)))
    return data, _Source(begin, once, size_of(data, steps), single, labelled)


def _named_parts(task, data: Any, first: Any, parts: Callable) -> Callable:
    """`parts` with labels by name, where the data set says which class a number is."""
    column = next((n for n in _LABELS if n in first), None) if isinstance(first, Mapping) else None
    names, known = class_names(data, column), getattr(task, "labels", None)
    if names is None:
        return parts

    def named(element: Any) -> tuple:
        x, y, weights = parts(element)
        if isinstance(y, list) and all(isinstance(row, list) and len(row) == 1 for row in y):
            y = [label for (label,) in y]  # Keras's label_mode="binary"
        if isinstance(x[0] if isinstance(x, tuple) else x, str):  # a single row
            return x, by_name([y], names, known)[0], weights
        return x, by_name(y, names, known), weights

    return named


def size_of(data: Any, steps: int | None) -> int | None:
    """The number of elements; None where it is not known. ValueError for no end and no steps."""
    size = None
    if hasattr(data, "cardinality"):
        size = int(data.cardinality())  # -1 without an end, -2 for not known
    elif hasattr(data, "__len__"):
        with contextlib.suppress(TypeError):  # a loader of a PyTorch data set without a length
            size = len(data)
    if size == -1 and steps is None:
        raise ValueError("The data set has no end: give the number of steps.")
    return size if size is None or size >= 0 else None


def _columns_of_table(task, data: Any) -> tuple[tuple[str, ...], str | None] | None:
    """The columns of texts and of labels of a `datasets.Dataset`, None for other data."""
    if isinstance(data, Mapping):
        if data and all(hasattr(part, "column_names") for part in data.values()):
            raise ValueError(
                f"Received a {type(data).__name__} with {shorten(list(data))}: give one of its "
                f"data sets, as in data[{next(iter(data))!r}]."
            )
        return None
    table = hasattr(data, "select_columns") and hasattr(data, "__len__")  # no stream
    return _usual_columns(task, data, column_names(data)) if table else None


def _usual_columns(task, data: Any, names) -> tuple[tuple[str, ...], str | None]:
    """Which of the names are those of texts, and which one is of what is learned."""
    if task.usual_columns is not None:
        return task.usual_columns(list(names))
    x = next((usual for usual in _TEXTS if set(usual) <= set(names)), None)
    y = next((n for n in (_LABELS if task.needs_labels else _TARGETS) if n in names), None)
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
    """A column alone, or several in a tuple."""
    columns = tuple(columns)
    return columns[0] if len(columns) == 1 else columns


def _parts_by_name(task, data: Any, first: Mapping) -> Callable | None:
    """Function of a dict such as the first to x, y, weights; None for other dicts of arrays."""
    label = next((name for name in _LABELS if name in first), None)
    if _has_text(first):
        columns, y = _usual_columns(task, data, list(first))

        def named(row: Mapping) -> tuple:
            x = _one_or_pair(row[name] for name in columns)
            return _parts(task, (x, _answer(row.get(y))), pair=len(columns) > 1)

        return named
    ids = {"token_ids", "input_ids"} & first.keys()
    if label is None or not task.needs_labels or not ids or np.ndim(first[min(ids)]) != 2:
        return None

    def split(batch: Mapping) -> tuple:
        x = {name: np.asarray(array) for name, array in batch.items() if name != label}
        y = np.asarray(batch[label])
        if y.dtype.kind != "i":
            return x, y, None
        # Below 0 is Transformers' mark of what does not count. All batches have weights, or none.
        return x, np.maximum(y, 0), (y >= 0).astype("float32")

    return split


def _answer(label: Any) -> Any:
    """A label; of an answer as SQuAD has it where it begins and its text, None for none."""
    if not isinstance(label, Mapping):
        return label
    return next(zip(label["answer_start"], label["text"], strict=True), None)


def _parts(task, element: Any, pair: bool = False) -> tuple[Any, Any, Any]:
    """x, y and weights; x is a string for a single row, and a tuple for a pair of texts."""
    if isinstance(element, list) and element and not isinstance(element[0], str):
        element = tuple(element)  # PyTorch's loaders make a list of a tuple.
    alone = task.answers and isinstance(element, tuple) and isinstance(element[0], (str, bytes))
    element = element if isinstance(element, tuple) and not alone else (element,)
    x, y, weights = parts_of(element, "An element of the data")
    y, weights = plain(y, "y"), plain(weights, "sample_weight")
    if isinstance(x, (list, tuple)):
        of_strings = all(isinstance(part, str) for part in x)
        # Two strings are a pair if there is one label, and else a batch of two.
        single = isinstance(x, tuple) and len(x) == 2 and not isinstance(y, list | None)
        sides = isinstance(x, tuple) or not isinstance(x[0], list)
        if pair or task.answers or (single if of_strings else sides):
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
