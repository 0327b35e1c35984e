"""Datasets of which each process reads its share of every batch."""

from collections.abc import Iterator

import keras
import numpy as np

from keras_transformer.distribution.processes import process_count, process_index
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
        return self._share(self.dataset[place])

    def examples_of_shapes(self) -> Iterator:
        """Yield this process's share of a batch of each shape."""
        yield from map(self._share, self.dataset.examples_of_shapes())

    def _share(self, batch):
        inputs, targets, weights = keras.utils.unpack_x_y_sample_weight(batch)
        rows = len(keras.tree.flatten(inputs)[0])
        size = -(-rows // self.count)
        numbers = np.arange(self.index * size, (self.index + 1) * size)
        real = numbers < rows

        def share(array):
            return np.asarray(array)[numbers % rows]

        inputs = keras.tree.map_structure(share, inputs)
        if targets is None:
            return (inputs,)
        weights = np.ones(rows, "float32") if weights is None else weights

        def weigh(array):
            array = np.asarray(share(array), "float32")
            # A mean over rows also counts the added rows, so that real rows need a larger weight. A
            # mean over tokens divides by the sum of weights, and needs no correction.
            of_tokens = array.ndim > 1 and array.shape == targets_of_share
            scale = np.float32(1.0 if of_tokens else size * self.count / rows)
            return array * (scale * real).reshape(-1, *[1] * (array.ndim - 1)).astype("float32")

        targets = keras.tree.map_structure(share, targets)
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
    dataset: keras.utils.PyDataset, index: int | None = None, count: int | None = None
) -> DatasetShard:
    """Return a dataset of one process's rows of each batch.

    Every process makes the same dataset, with the same seed, and takes its share; together the
    shares are the whole batches. If `count` does not divide the number of rows of a batch, the
    batch is filled up with rows of weight 0.

    Args:
        dataset: a `PyDataset`, such as `make_dataset` of a task returns.
        index: int, number of the share, from 0. Defaults to this process's share, according to the
            current `keras.distribution` or `torch.distributed`.
        count: int, number of shares. Defaults to the number of processes with different shares.

    Returns:
        A `PyDataset` with the same number of batches, for `fit`.

    Raises:
        ValueError: if `dataset` is not a `PyDataset`, a number is out of range, or only one of
            `index` and `count` is given.

    Example:
    ```python
    from keras_transformer.data import BucketedDataset
    from keras_transformer.distribution import shard_of

    rows = {"ids": [[1], [2], [3], [4]]}
    dataset = BucketedDataset(rows, lambda arrays, masks: (arrays["ids"],), batch_size=4)
    assert [row[0] for row in shard_of(dataset, 1, 2)[0][0]] == [3, 4]
    ```
    """
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
        index, count = _of_this_process()
    count = check_int("count", count, at_least=1)
    index = check_int("index", index, at_least=0, at_most=count - 1)
    return DatasetShard(dataset, index, count)


def _of_this_process() -> tuple[int, int]:
    """Return the number of this process's share, from 0, and the number of shares."""
    if keras.backend.backend() == "torch":
        return process_index(), process_count()
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 0, 1
    # Processes that hold parts of one model read the same rows.
    count = min(distribution.num_processes, distribution.num_model_replicas)
    return distribution.data_shard_id, count
