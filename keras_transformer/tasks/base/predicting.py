"""`predict` for batches made by this package, without host synchronization between batches."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np

from keras_transformer.data import BucketedDataset
from keras_transformer.data.batches import in_order
from keras_transformer.kernels.batches import PendingOutputs
from keras_transformer.kernels.device import device
from keras_transformer.kernels.step_functions import computes_batches_apart

# Characters that are tokenized at a time, for each token that a batch can hold. English text then
# fills at least half of a batch, which keeps a GPU as busy as a full batch.
_CHARACTERS = 2


def is_served(model: keras.Model, options: dict[str, Any]) -> bool:
    """Return True if `predicted` can replace `keras.Model.predict` for these options."""
    plain = options.get("steps") is None and model.steps_per_execution == 1
    return plain and computes_batches_apart()


def predicted(model: keras.Model, datasets: Iterable[BucketedDataset], options: dict[str, Any]):
    """Return outputs for the batches of data sets in order, as `keras.Model.predict` does.

    Keras copies the outputs of each batch to the host separately, and spends more time in Python
    for a batch than a GPU takes to compute it. Each data set is requested once the batches of the
    previous one are queued: the device computes them while the next texts are tokenized.

    Args:
        model: a built `models.Runtime`.
        datasets: the data sets, iterated once. Progress and callbacks require a single data set.
        options: `verbose` and `callbacks` of `keras.Model.predict`.
    """
    outputs, callbacks = PendingOutputs(), None
    told = bool(options.get("callbacks")) or options.get("verbose", "auto") != 0
    compute = model.batch_function()
    model.stop_predicting = False
    for place, (count, batch) in enumerate(_batches(datasets)):
        if not told:  # Keras would start a thread even without callbacks.
            outputs.add(compute(batch))
            continue
        if callbacks is None:
            callbacks = _callbacks(model, count, options)
            callbacks.on_predict_begin()
        callbacks.on_predict_batch_begin(place)
        found = compute(batch)
        outputs.add(found)
        callbacks.on_predict_batch_end(place, {"outputs": found})
        if model.stop_predicting:
            break
    if callbacks is not None:
        callbacks.on_predict_end()
    return outputs.arrays()


def _batches(datasets: Iterable[BucketedDataset]) -> Iterator[tuple[int, Any]]:
    """Yield the number of batches of a data set and each batch, for all data sets in turn."""
    for dataset in datasets:
        dataset.on_epoch_begin()
        try:
            for place in range(len(dataset)):
                yield len(dataset), dataset[place]
        finally:
            dataset.on_epoch_end()


def _callbacks(model: keras.Model, count: int, options: dict[str, Any]):
    callbacks, verbose = options.get("callbacks"), options.get("verbose", "auto")
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=count, model=model
    )


class TextParts:
    """Texts split into several data sets, shortest texts first, each tokenized when requested.

    Args:
        rows: the texts of each row, a list of strings or a tuple of such lists.
        make: function from texts to their data set.

    Attributes:
        tokens: number of tokens of the data sets made so far.
    """

    def __init__(self, rows: list[str] | tuple[list[str], ...], make: Callable):
        self._rows = rows
        self._make = make
        self._order: list[np.ndarray] = []
        self.tokens = 0

    def __iter__(self) -> Iterator[BucketedDataset]:
        for numbers in self._numbers():
            dataset = self._dataset(numbers)
            self._order.append(numbers[dataset.order])
            self.tokens += dataset.tokens_per_epoch
            yield dataset

    def restored(self, outputs):
        """Return the outputs of all batches in the order of the texts."""
        order = np.concatenate(self._order)
        return keras.tree.map_structure(lambda array: in_order(array, order), outputs)

    def _numbers(self) -> list[np.ndarray]:
        """Return the row indices of each part."""
        columns = self._rows if isinstance(self._rows, tuple) else (self._rows,)
        lengths = sum(np.fromiter(map(len, column), "int64") for column in columns)
        order = np.argsort(lengths, kind="stable")
        most = _CHARACTERS * device().batch_tokens
        parts = (np.cumsum(lengths[order]) - 1) // most
        return np.split(order, np.flatnonzero(np.diff(parts)) + 1)

    def _dataset(self, numbers: np.ndarray) -> BucketedDataset:
        if isinstance(self._rows, tuple):
            part: Any = tuple([column[i] for i in numbers] for column in self._rows)
        else:
            part = [self._rows[i] for i in numbers]
        try:
            return self._make(part)
        except ValueError:
            self._make(self._rows)  # raises the error with the text's index among all texts
            raise


def comes_in_parts(x: Any, options: dict[str, Any]) -> bool:
    """Return True if texts are to be tokenized in parts, while the device computes.

    This needs a `predict` without progress or callbacks, and a device other than the CPU, where
    tokenizing and computing would compete for the same cores.
    """
    shown = options.get("verbose", "auto") != 0 or options.get("callbacks")
    columns = x if isinstance(x, tuple) else (x,)
    texts = all(isinstance(column, list) for column in columns)
    return device().batch_tokens is not None and not shown and texts and _are_strings(columns)


def _are_strings(columns: tuple) -> bool:
    equal = len({len(column) for column in columns}) == 1
    return equal and all(type(text) is str for column in columns for text in column)
