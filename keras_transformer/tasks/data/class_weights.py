"""`class_weight` of `fit`: class weights as sample weights, for any kind of batches."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.data import BucketedDataset
from keras_transformer.data.record_objects import elements_of
from keras_transformer.distribution import DatasetShard
from keras_transformer.support.checking import check_number, describe
from keras_transformer.tasks.data.labels import on_host, read_labels
from keras_transformer.tasks.data.streams import TextBatches, size_of


def by_class(class_weight: Mapping, num_classes: int, labels: list[str] | None) -> np.ndarray:
    """Return the weight of each class, float32 `(num_classes,)`. Missing classes get 1.

    Keys are class names or numbers, as for labels. Raises ValueError if a key is unknown.
    """
    keys = list(class_weight)
    numbers = read_labels(
        keys, num_classes, labels, lambda i: "a key of class_weight", "class_weight"
    )
    if len(set(numbers.tolist())) < len(keys):
        raise ValueError(f"`class_weight` has two weights for one class: {class_weight}.")
    table = np.ones(num_classes, "float32")
    table[numbers] = list(class_weight.values())
    return table


class ClassWeights:
    """Callable that multiplies sample weights by the class weights of the targets.

    Args:
        table: float `(classes,)`, the weight of each class.
        multi_label: bool, whether targets are a row of 0 and 1 for each class. The result then has
            a weight for each class, `(batch, classes)`.
    """

    def __init__(self, table: np.ndarray, multi_label: bool = False):
        self.table, self.multi_label = table, multi_label

    def __call__(self, y: Any, sample_weight: Any = None) -> np.ndarray:
        """Return float32 weights; targets are class numbers or rows of class probabilities."""
        if y is None or isinstance(y, Mapping):
            raise ValueError(f"`class_weight` needs class targets, received y={describe(y)}.")
        y = np.asarray(on_host(y))
        if self.multi_label:
            found = np.broadcast_to(self.table, y.shape)
        elif y.ndim == 2 and y.dtype.kind == "f" and y.shape[1] == len(self.table):
            found = y @ self.table  # for soft labels, the expected weight
        else:
            # Targets that do not count, such as -1, already have a sample weight of 0.
            found = self.table[np.clip(y.astype("int64"), 0, len(self.table) - 1)]
        if sample_weight is not None:
            given = np.asarray(on_host(sample_weight), "float32")
            found = found * given.reshape(given.shape + (1,) * (found.ndim - given.ndim))
        return found.astype("float32")

    def of_batch(self, batch: Any) -> tuple:
        """Return a batch, `(x, y)` or `(x, y, sample_weight)`, with its class weights applied."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        return x, y, self(y, sample_weight)


def check_class_weight(class_weight: Any) -> None:
    """Raise ValueError unless `class_weight` is a dict with values of at least 0."""
    if not isinstance(class_weight, Mapping):
        raise ValueError(f"`class_weight` must be a dict, received {describe(class_weight)}.")
    for key, weight in class_weight.items():
        check_number(f"class_weight[{key!r}]", weight, at_least=0)


@contextlib.contextmanager
def weighted(task, x: Any, steps: int | None, weigh: ClassWeights) -> Iterator[Any]:
    """Yield batches of any kind with class weights applied; arrays must already have theirs."""
    dataset = x.dataset if isinstance(x, DatasetShard) else x
    if isinstance(x, Mapping):
        yield x
    elif isinstance(dataset, BucketedDataset):
        # Change the object in place, since callbacks may hold it to count its epochs.
        make_batch = dataset.make_batch
        dataset.make_batch = lambda arrays, masks: weigh.of_batch(make_batch(arrays, masks))
        try:
            yield x
        finally:
            dataset.make_batch = make_batch
    elif isinstance(x, TextBatches):
        x.finish = weigh.of_batch
        yield x
    elif isinstance(x, keras.utils.PyDataset):
        yield _Weighted(x, weigh)
    elif hasattr(x, "__next__"):
        yield (weigh.of_batch(batch) for batch in x)
    else:
        begin = _beginning(x, weigh)
        number = size_of(x, steps) if steps is None else None
        if number is None and steps is None:
            number = sum(1 for _ in begin())
        yield TextBatches(task, begin, number)


def _beginning(data: Any, weigh: ClassWeights) -> Callable[[], Iterator]:
    return lambda: map(weigh.of_batch, elements_of(data))


class _Weighted(keras.utils.PyDataset):
    """The batches of another `PyDataset` with class weights applied."""

    def __init__(self, dataset: keras.utils.PyDataset, weigh: ClassWeights):
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self._dataset, self._weigh = dataset, weigh

    @property
    def num_batches(self) -> int | None:
        return self._dataset.num_batches

    def __getitem__(self, index: int) -> tuple:
        return self._weigh.of_batch(self._dataset[index])

    def on_epoch_begin(self):
        self._dataset.on_epoch_begin()

    def on_epoch_end(self):
        self._dataset.on_epoch_end()
