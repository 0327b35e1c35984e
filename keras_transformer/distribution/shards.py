"""Datasets of which each process reads its share of every batch."""

from collections.abc import Callable, Iterator

import keras
import numpy as np

from keras_transformer.distribution.engines import ENGINE
from keras_transformer.distribution.together import prepared_together
from keras_transformer.support.checking import check_int, shorten


def _of_whole(name: str) -> property:
    return property(
        lambda shard: getattr(shard.dataset, name),
        lambda shard, value: setattr(shard.dataset, name, value),
        doc="See the same attribute of the whole dataset.",
    )


class DatasetShard(keras.utils.PyDataset):
    """The rows of one process in each batch of a dataset, see `shard_of`."""

    def __init__(self, dataset: keras.utils.PyDataset, index: int, count: int):
        super().__init__()
        self.dataset, self.index, self.count = dataset, index, count

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, place):
        if hasattr(self.dataset, "fetch"):
            return self.dataset.fetch(place, self._made)
        return self._share(self.dataset[place])

    def examples_of_shapes(self) -> Iterator:
        """Yield this process's share of a batch of each shape."""
        yield from self.dataset.examples_of_shapes(self._made)

    def _numbers(self, rows: int) -> np.ndarray:
        """Return which rows of a batch the share has; those from `rows` on fill it up."""
        size = -(-rows // self.count)
        return np.arange(self.index * size, (self.index + 1) * size)

    def _made(self, shape, rows):
        """Make the share of a batch of a `BucketedDataset`, and no other rows if it may."""
        if not self.dataset.rowwise:
            return self._share(self.dataset.make_rows(shape, rows))
        numbers = self._numbers(len(rows))
        return self._weighed(self.dataset.make_rows(shape, rows[numbers % len(rows)]), len(rows))

    def _share(self, batch):
        """Take the share out of a whole batch."""
        rows = len(keras.tree.flatten(keras.utils.unpack_x_y_sample_weight(batch)[0])[0])
        places = self._numbers(rows) % rows
        batch = keras.tree.map_structure(
            lambda array: None if array is None else np.asarray(array)[places], batch
        )
        return self._weighed(batch, rows)

    def _weighed(self, batch, rows: int):
        """Return a share of a batch of `rows` rows, with the weights that its rows have in it."""
        inputs, targets, weights = keras.utils.unpack_x_y_sample_weight(batch)
        if targets is None:
            return (inputs,)
        numbers = self._numbers(rows)
        real, size = numbers < rows, len(numbers)
        weights = np.ones(size, "float32") if weights is None else weights

        def weigh(array):
            array = np.asarray(array, "float32")
            # A mean over rows also counts the added rows, so that real rows need a larger weight. A
            # mean over tokens divides by the sum of weights, and needs no correction.
            of_tokens = array.ndim > 1 and array.shape == targets_of_share
            scale = np.float32(1.0 if of_tokens else size * self.count / rows)
            return array * (scale * real).reshape(-1, *[1] * (array.ndim - 1)).astype("float32")

        integers = isinstance(targets, np.ndarray) and targets.dtype.kind in "iu"
        targets_of_share = targets.shape if integers else None
        return inputs, targets, keras.tree.map_structure(weigh, weights)

    def on_epoch_begin(self):
        self.dataset.on_epoch_begin()

    def on_epoch_end(self):
        self.dataset.on_epoch_end()

    # Attributes of the whole dataset: the position in it, and the rows and tokens that all
    # processes read together.
    epoch, first_batch, batches_per_epoch, description = map(
        _of_whole, ("epoch", "first_batch", "batches_per_epoch", "description")
    )
    num_rows, mean_lengths, padding_share, tokens_per_epoch = map(
        _of_whole, ("num_rows", "mean_lengths", "padding_share", "tokens_per_epoch")
    )


def shard_of(
    dataset: keras.utils.PyDataset | Callable[[], keras.utils.PyDataset],
    index: int | None = None,
    count: int | None = None,
) -> DatasetShard:
    """Return a dataset of one process's rows of each batch.

    Every process makes the same dataset, with the same seed, and takes its share; together the
    shares are the whole batches. If `count` does not divide the number of rows of a batch, the
    batch is filled up with rows of weight 0. Of a dataset that a task makes, a process reads and
    pads its own rows only, and reads only its own images.

    Given a function that makes the dataset, the processes of a run also tokenize together: each a
    part of the texts, once. They exchange the ids of texts in memory, and write the ids of
    `data.read` into one file of its cache, if they see the same folder. The batches are the same.

    Args:
        dataset: a `PyDataset`, such as `make_dataset` of a task returns; or a function without
            arguments that makes it, which all processes call together, with the same texts.
        index: int, number of the share, from 0. Defaults to this process's share, according to the
            current `keras.distribution` or `torch.distributed`.
        count: int, number of shares. Defaults to the number of processes with different shares.

    Returns:
        A `PyDataset` with the same number of batches, for `fit`.

    Raises:
        ValueError: if `dataset` is not a `PyDataset`, a number is out of range, or only one of
            `index` and `count` is given; with a function, in all processes, if they have other
            texts, or one of them cannot prepare its part.

    Example:
    ```python
    from keras_transformer.data import BucketedDataset
    from keras_transformer.distribution import shard_of

    rows = {"ids": [[1], [2], [3], [4]]}
    dataset = BucketedDataset(rows, lambda arrays, masks: (arrays["ids"],), batch_size=4)
    assert [row[0] for row in shard_of(dataset, 1, 2)[0][0]] == [3, 4]
    assert len(shard_of(lambda: dataset)) == 1
    ```
    """
    if callable(dataset):
        with prepared_together():
            dataset = dataset()
    if not isinstance(dataset, keras.utils.PyDataset):
        raise ValueError(
            f"`dataset` must be a keras.utils.PyDataset, received {type(dataset).__name__}. "
            "`make_dataset` of a task makes one from strings."
        )
    if (index is None) != (count is None):
        raise ValueError(
            f"Give both `index` and `count`, or neither; received index={shorten(index)}, "
            f"count={shorten(count)}."
        )
    if index is None:
        index, count = ENGINE.share_of_data()
    count = check_int("count", count, at_least=1)
    index = check_int("index", index, at_least=0, at_most=count - 1)
    return DatasetShard(dataset, index, count)
