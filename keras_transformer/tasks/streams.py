"""What users hold that is no list of strings: data frames, and data sets that give strings."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import shorten
from keras_transformer.data import BucketedDataset, Records
from keras_transformer.data.record_objects import elements_of, is_column, is_frame, plain
from keras_transformer.distribution import DatasetShard
from keras_transformer.tasks.inputs import check_labels_given

_MULTIPLE = 32  # Batches come one by one: few lengths, since each is a program.
_ROWS = 32  # of a batch, where a data set gives one row after the other
# Keras looks at so many batches of a generator, at most, before the first step.
_LOOKED_AT = 8
_ALL = 2**31 - 1


class TextBatches(keras.utils.PyDataset):
    """The batches of texts of a data set of another library, tokenized as they come.

    Rows, order and shuffling are those of the data set. A batch is padded to a multiple of 32
    tokens.

    Args:
        task: the task that they are for; its `make_dataset` makes the arrays of each batch.
        begin: function to an iterator of `(x, y, sample_weight)`, each a batch.
        num_batches: int, or None for a data set without an end.
        once: bool, whether `begin` may be called once only.
        shuffle: bool, whether what a model learns from is drawn anew each time.
        seed: int, of the drawing; None for one drawn from NumPy.
    """

    def __init__(
        self,
        task,
        begin: Callable[[], Iterator],
        num_batches: int | None,
        once: bool = False,
        shuffle: bool = False,
        seed: int | None = 0,
    ):
        super().__init__()
        self._task, self._begin, self._number, self._once = task, begin, num_batches, once
        self._seed = int(np.random.randint(2**31)) if seed is None else seed
        self._shuffle, self._served = shuffle, 0
        config = task.backbone.config
        # Lengths that are multiples of a divisor of the longest are not longer than that.
        learned = config.position == "learned"
        self._multiple = math.gcd(_MULTIPLE, config.max_sequence_length) if learned else _MULTIPLE
        self._batches, self._next = begin(), 0
        self._looked_at: dict[int, tuple] = {}

    @property
    def num_batches(self) -> int | None:
        return self._number

    def __getitem__(self, index: int):
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
        check_labels_given(self._task, *batch[:2])
        self._next = index + 1
        self._served += 1
        made = self._task.make_dataset(
            *batch,
            shuffle=self._shuffle,
            seed=self._seed + (self._served if self._shuffle else index),
            batch_size=_ALL,
            max_buckets=1,
            multiple=self._multiple,
        )[0]
        if self._once and index < _LOOKED_AT:
            self._looked_at[index] = made
        return made


def held(
    task, data: Any, batch_size: int | None = None, steps: int | None = None, **options
) -> Any:
    """Data as the verbs of a task take it: what gives strings as texts or as `TextBatches`.

    Args:
        task: the task.
        data: what a user gave.
        batch_size: int, rows of a batch of a data set that gives one after the other.
        steps: int, the batches that are asked for, or None for all.
        **options: `shuffle` and `seed` of `TextBatches`.

    Returns:
        Of a data frame its column, or a tuple of its columns; of a data set of strings
        `TextBatches`; anything else as it is.

    Raises:
        ValueError: for a data set whose rows are dicts of strings, or that has no end and no
            `steps`.
    """
    data, source = _opened(data, steps)
    if source is None:
        return data
    rows = batch_size or _ROWS
    if steps is not None:
        return TextBatches(task, lambda: source.batches(rows), None, source.once, **options)
    if source.once:
        batches = list(source.batches(rows))
        return TextBatches(task, lambda: iter(batches), len(batches), **options)
    number = source.size
    if number is None:
        number = sum(1 for _ in source.batches(rows))
    elif source.single:
        number = -(-number // rows)
    return TextBatches(task, lambda: source.batches(rows), number, **options)


def held_texts(data: Any, options: dict[str, Any]) -> Any:
    """As `held`, but the texts of a data set as a list: a prediction is of all its rows.

    The `steps` of the options are those of the data set, and are taken out of them.
    """
    data, source = _opened(data, options.get("steps"))
    if source is None:
        return data
    steps = options.pop("steps", None)
    parts = [x for x, _, _ in itertools.islice(source.batches(_ROWS), steps)]
    if isinstance(parts[0], tuple):
        return tuple(list(itertools.chain(*side)) for side in zip(*parts, strict=True))
    return list(itertools.chain(*parts))


class _Source(NamedTuple):
    """A data set of strings: how to go through it, and what is known of it."""

    begin: Callable[[], Iterator]
    once: bool
    size: int | None  # its elements; None where it is not known
    single: bool  # whether an element is one row and no batch

    def batches(self, rows: int) -> Iterator[tuple]:
        """`(x, y, sample_weight)` of each batch."""
        elements = map(_parts, self.begin())
        if not self.single:
            yield from elements
        while self.single and (some := list(itertools.islice(elements, rows))):
            x, y, weights = map(list, zip(*some, strict=True))
            if isinstance(x[0], tuple):
                x = tuple(map(list, zip(*x, strict=True)))
            yield x, None if y[0] is None else y, None if weights[0] is None else weights


def _opened(data: Any, steps: int | None = None) -> tuple[Any, _Source | None]:
    """The data, a generator of arrays as if not looked into; and as a source if of strings."""
    if is_frame(data) and not ops.is_tensor(data):
        columns = tuple(data[name] for name in getattr(data, "column_names", data))
        return columns[0] if len(columns) == 1 else columns, None
    arrays = (np.ndarray, Mapping, Records, BucketedDataset, DatasetShard, TextBatches)
    known = (str, bytes, list, tuple, *arrays)
    once = hasattr(data, "__next__")
    sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if (
        isinstance(data, known)
        or ops.is_tensor(data)
        or is_column(data)
        or not (once or sized or hasattr(data, "__iter__"))
    ):
        return data, None
    specs = keras.tree.flatten(getattr(data, "element_spec", None))  # of tf.data
    if specs != [None] and not any(getattr(spec, "dtype", None) == "string" for spec in specs):
        return data, None
    elements = elements_of(data)
    first = next(elements, None)
    if once:
        elements = itertools.chain([] if first is None else [first], elements)
    if not _has_text(first):
        return (element for element in elements) if once else data, None
    if isinstance(first, Mapping) or (isinstance(first, tuple) and isinstance(first[0], Mapping)):
        names = sorted(map(str, first if isinstance(first, Mapping) else first[0]))
        raise ValueError(
            f"The rows of the {type(data).__name__} are dicts with {shorten(names)}. Name their "
            'columns, as in data.read(data, x="text", y="label"), or give tuples (x, y).'
        )
    size = None
    if hasattr(data, "cardinality"):
        size = int(data.cardinality())  # -1 without an end, -2 for not known
    elif hasattr(data, "__len__"):
        with contextlib.suppress(TypeError):  # a loader of a PyTorch data set without a length
            size = len(data)
    if size == -1 and steps is None:
        raise ValueError("The data set has no end: give the number of steps.")
    x = _parts(first)[0]
    single = isinstance(x[0] if isinstance(x, tuple) else x, str)
    begin = (lambda: elements) if once else (lambda: elements_of(data))
    return data, _Source(begin, once, size if size is None or size >= 0 else None, single)


def _parts(element: Any) -> tuple[Any, Any, Any]:
    """x, y and weights; x is a string for a single row, and a tuple for a pair of texts."""
    if isinstance(element, list) and element and not isinstance(element[0], str):
        element = tuple(element)  # PyTorch's loaders make a list of a tuple.
    element = element if isinstance(element, tuple) else (element,)
    x, y, weights = (*element, None, None)[:3]
    y, weights = plain(y, "y"), plain(weights, "sample_weight")
    if isinstance(x, (list, tuple)):
        of_strings = all(isinstance(part, str) for part in x)
        # Two strings are a pair if there is one label, and else a batch of two.
        alone = isinstance(x, tuple) and len(x) == 2 and not isinstance(y, list | None)
        sides = isinstance(x, tuple) or not isinstance(x[0], list)
        if alone if of_strings else sides:
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
