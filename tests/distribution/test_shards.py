"""The shares of a dataset, in one process."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data import BucketedDataset
from keras_transformer.distribution import data_parallel, shard_of


def dataset(rows=10, weights=False, **options):
    def make_batch(arrays, masks):
        batch = ({"ids": arrays["ids"]}, arrays["label"])
        return (*batch, masks["ids"].astype("float32")) if weights else batch

    ids = [[i + 1] * (i % 5 + 1) for i in range(rows)]
    return BucketedDataset(
        {"ids": ids}, make_batch, values={"label": np.arange(rows)}, batch_size=4, **options
    )


@pytest.mark.backend_independent
@pytest.mark.parametrize("weights", [False, True])
def test_shares_make_the_batch(weights):
    whole = dataset(weights=weights, shuffle=True, seed=1)
    shards = [shard_of(dataset(weights=weights, shuffle=True, seed=1), i, 3) for i in range(3)]
    for epoch in range(2):
        for each in (whole, *shards):
            each.epoch = epoch
        for place in range(len(whole)):
            x, y = whole[place][:2]
            parts = [shard[place] for shard in shards]
            real = np.concatenate([part[2].reshape(len(part[1]), -1).max(1) > 0 for part in parts])
            ids = np.concatenate([part[0]["ids"] for part in parts])
            assert len({len(part[1]) for part in parts}) == 1
            np.testing.assert_array_equal(ids[real], x["ids"])
            np.testing.assert_array_equal(np.concatenate([p[1] for p in parts])[real], y)
            # A mean over rows with these weights is that over the real ones.
            values = np.concatenate([part[2] for part in parts])
            if not weights:
                assert (values * np.concatenate([p[1] for p in parts])).mean() == pytest.approx(
                    y.mean()
                )
    assert shards[0].num_rows == 10 and shards[1].tokens_per_epoch == whole.tokens_per_epoch


@pytest.mark.backend_independent
def test_tokens_weigh_what_they_weigh_in_the_whole():
    """Their loss is a mean by weight, and by the sum of the weights a batch counts."""

    def make_batch(arrays, masks):
        return {"ids": arrays["ids"]}, arrays["ids"], masks["ids"].astype("float32")

    rows = {"ids": [[i + 1] * (i % 5 + 1) for i in range(4)]}
    whole = BucketedDataset(rows, make_batch, batch_size=4)
    weights = [shard_of(whole, i, 3)[0][2] for i in range(3)]
    assert sum(part.sum() for part in weights) == whole[0][2].sum()


@pytest.mark.backend_independent
def test_one_process_reads_all():
    _, y, weights = shard_of(dataset())[0]
    np.testing.assert_array_equal(y, dataset()[0][1])
    assert weights.tolist() == [1.0] * len(y)


@pytest.mark.backend_independent
def test_epochs_go_on():
    shard = shard_of(dataset(shuffle=True), 0, 2)
    model = keras.Model({"ids": (ids := keras.Input((None,), dtype="int32", name="ids"))}, ids)
    model.compile(loss=lambda y, z: keras.ops.mean(keras.ops.cast(z, "float32"), -1))
    model.fit(shard, epochs=2, shuffle=False, verbose=0)
    assert shard.epoch == 2


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    "arguments, message",
    [
        (([1, 2], 0, 2), "must be a keras.utils.PyDataset, received list"),
        ((None, 2, 2), "`index` must be an integer from 0 to 1, received 2"),
        (
            (None, 1, None),
            "Give both `index` and `count`, or neither; received index=1, count=None",
        ),
    ],
)
def test_bad_shares(arguments, message):
    given, *numbers = arguments
    with pytest.raises(ValueError, match=message):
        shard_of(dataset() if given is None else given, *numbers)


def test_the_engine_of_another_backend(backend):
    task = None
    if backend != "torch":
        with pytest.raises(ValueError, match=f"for PyTorch, but the backend is {backend}"):
            data_parallel(task)
    else:
        with pytest.raises(ValueError, match="init_process_group first"):
            data_parallel(task)
    if backend != "jax":
        engine = "MirroredStrategy" if backend == "tensorflow" else "data_parallel"
        with pytest.raises(ValueError, match=f"on JAX, but the backend is {backend}.*{engine}"):
            kt.distribution.device_mesh()


@pytest.mark.backend_independent
def test_each_row_once_also_after_a_resume_on_another_number():
    """Three processes read up to a batch, two read on: no row twice, none left out."""

    def make_dataset():
        rows = {"ids": [[i + 1] * (1 + i % 5) for i in range(50)]}

        def make_batch(arrays, masks):
            return arrays["ids"], arrays["row"], np.ones(len(arrays["row"]), "float32")

        return BucketedDataset(rows, make_batch, batch_size=7, max_buckets=2, shuffle=True, seed=3)

    for broken in (0, 2, 5):
        read, counted = [], 0.0
        for count, first, last in ((3, 0, broken), (2, broken, None)):
            for index in range(count):
                shard = kt.distribution.shard_of(make_dataset(), index, count)
                shard.epoch, shard.first_batch = 1, first
                places = range(len(shard)) if last is None else range(last)
                for place in places:
                    _, rows, weights = shard[place]
                    read += [int(row) for row, weight in zip(rows, weights, strict=True) if weight]
                    # A share has weights for a mean over rows of the share.
                    counted += float(weights.sum()) / len(weights)
        assert sorted(read) == list(range(50))
        batches = make_dataset().batches_per_epoch
        assert counted == pytest.approx(3 * broken + 2 * (batches - broken))
