import threading
import warnings

import keras
import numpy as np
import pytest

from keras_transformer.data import BucketedDataset

pytestmark = pytest.mark.one_backend

BACKEND = keras.backend.backend()


def rows_of(count, low=1, high=60, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 50, size=rng.integers(low, high)).tolist() for _ in range(count)]


def classifier_batch(arrays, masks):
    x = {"token_ids": arrays["token_ids"], "padding_mask": masks["token_ids"]}
    return x, arrays["label"]


def predict_batch(arrays, masks):
    return {"token_ids": arrays["token_ids"], "padding_mask": masks["token_ids"]}


def causal_batch(arrays, masks):
    return arrays["inputs"], arrays["targets"], masks["targets"]


def seq2seq_batch(arrays, masks):
    x = {
        "encoder_token_ids": arrays["source"],
        "encoder_padding_mask": masks["source"],
        "decoder_token_ids": arrays["inputs"],
        "decoder_padding_mask": masks["inputs"],
    }
    return x, arrays["targets"], masks["targets"]


def classifier_data(rows, **options):
    return BucketedDataset(
        {"token_ids": rows}, classifier_batch, values={"label": np.arange(len(rows))}, **options
    )


def seq2seq_data(sources, targets, **options):
    return BucketedDataset(
        {"source": sources},
        seq2seq_batch,
        paired_columns={"inputs": [t[:-1] for t in targets], "targets": [t[1:] for t in targets]},
        **options,
    )


@pytest.mark.parametrize("options", [{"batch_size": 16}, {"batch_tokens": 512}])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_row_comes_once_and_unharmed(options, shuffle):
    rows = rows_of(333)
    data = classifier_data(rows, shuffle=shuffle, **options)
    for epoch in range(2):
        data.epoch = epoch
        seen = []
        for x, y in data:
            ids, mask = x["token_ids"], x["padding_mask"]
            assert ids.dtype == np.int32 and mask.dtype == bool and ids.shape == mask.shape
            assert (ids[~mask] == 0).all()
            for row, real, label in zip(ids, mask, y, strict=True):
                assert row[real].tolist() == rows[label]
            seen += y.tolist()
        assert sorted(seen) == list(range(333))
        assert seen == data.order.tolist()


def test_pad_values_and_columns_that_go_together():
    data = BucketedDataset(
        {"a": [[1, 2], [3]], "b": [[7, 8], [9]]},
        lambda arrays, masks: (arrays["a"], arrays["b"]),
        pad_values={"b": -1},
        buckets=(4,),
    )
    a, b = data[0]
    assert a.tolist() == [[3, 0, 0, 0], [1, 2, 0, 0]]
    assert b.tolist() == [[9, -1, -1, -1], [7, 8, -1, -1]]


def test_shapes_are_few_and_the_same_each_epoch():
    data = classifier_data(rows_of(500), batch_size=32, shuffle=True)
    shapes = []
    for epoch in range(3):
        data.epoch = epoch
        shapes.append(sorted(x["token_ids"].shape for x, _ in data))
    assert shapes[0] == shapes[1] == shapes[2]
    assert len(set(shapes[0])) <= 7  # six buckets and the smaller batch
    assert [rows for rows, _ in shapes[0]].count(32) == len(data) - 1


def test_token_budget():
    data = classifier_data(rows_of(500), batch_tokens=256)
    for x, _ in list(data):
        rows, length = x["token_ids"].shape
        assert rows * length <= 256
        assert rows == 256 // length or length == data.buckets[-1]
    assert {len(y) for _, y in classifier_data(rows_of(9, 40, 50), batch_tokens=8)} == {1}


def test_order_depends_on_seed_and_epoch_alone():
    rows = rows_of(300)
    first, second = (classifier_data(rows, shuffle=True, seed=3) for _ in range(2))
    first.epoch = second.epoch = 4
    assert (first.order == second.order).all()
    second.epoch = 5
    assert not (first.order == second.order).all()
    other = classifier_data(rows, shuffle=True, seed=4)
    other.epoch = 4
    assert not (first.order == other.order).all()
    # The very numbers: the order is the same on every backend and machine.
    small = classifier_data([[1] * n for n in range(1, 13)], shuffle=True, batch_size=3)
    assert small.order.tolist() == [2, 4, 3, 10, 8, 11, 6, 5, 0, 1, 7, 9]


def test_first_two_batches_differ_wherever_batches_do():
    rng = np.random.default_rng(0)
    for trial in range(200):
        count = int(rng.integers(1, 90))
        options = [{"batch_size": 8}, {"batch_tokens": 128}][trial % 2]
        data = seq2seq_data(
            rows_of(count, 1, 50, trial),
            rows_of(count, 2, 50, trial + 1),
            shuffle=trial % 3 > 0,
            max_buckets=4,
            **options,
        )
        shapes = np.array(
            [
                (*x["encoder_token_ids"].shape, x["decoder_token_ids"].shape[1])
                for x, _, _ in list(data)
            ]
        )
        varies = (shapes != shapes[0]).any(axis=0)
        assert ((shapes[:2] != shapes[0]).any(axis=0) == varies).all()


def test_pairs_of_lengths():
    sources, targets = rows_of(200, 5, 40), rows_of(200, 2, 30, seed=1)
    data = seq2seq_data(sources, targets, batch_size=16, max_buckets=8)
    assert len({(x["encoder_token_ids"].shape, y.shape) for x, y, _ in list(data)}) <= 9
    index = iter(data.order)
    positions = 0
    for x, y, mask in list(data):
        positions += x["encoder_token_ids"].size + y.size
        for k, row in enumerate(next(index) for _ in range(len(y))):
            source = x["encoder_token_ids"][k][x["encoder_padding_mask"][k]]
            inputs = x["decoder_token_ids"][k][x["decoder_padding_mask"][k]]
            assert source.tolist() == sources[row]
            assert inputs.tolist() == targets[row][:-1]
            assert y[k][mask[k]].tolist() == targets[row][1:]
    real = sum(map(len, sources)) + sum(len(target) - 1 for target in targets)
    assert data.tokens_per_epoch == real
    assert data.padding_share == pytest.approx(1 - real / positions)


def test_restore_order():
    rows = rows_of(77)
    data = classifier_data(rows, batch_size=8)
    lengths = np.concatenate([x["padding_mask"].sum(axis=1) for x, _ in list(data)])
    assert data.restore_order(lengths).tolist() == [len(row) for row in rows]
    assert data.restore_order(lengths.tolist()) == [len(row) for row in rows]
    with pytest.raises(ValueError, match="Expected 77 outputs, one for each row, got 3"):
        data.restore_order([1, 2, 3])


def test_long_rows_are_truncated_only_if_asked():
    data = classifier_data([[1, 2, 3, 4, 5], [6]], max_length=3)
    assert data.num_truncated == 1
    assert data[0][0]["token_ids"].tolist() == [[6, 0, 0], [1, 2, 3]]
    with pytest.raises(ValueError, match=r"Row 0 has length \[5\].*max_length to truncate"):
        classifier_data([[1, 2, 3, 4, 5], [6]], buckets=(4,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": {"a": []}}, "at least one row"),
        ({"columns": {}}, "at least one row"),
        ({"columns": {"a": [[1]], "b": [[1], [2]]}}, "'a': 1, 'b': 2"),
        ({"columns": {"a": [[1, 2]], "b": [[1]]}}, "Row 0 has 2 ids in column 'a' but 1 in"),
        ({"columns": {"a": [[1]]}, "values": {"y": [1, 2]}}, "'a': 1, 'y': 2"),
        ({"columns": {"a": [[1], []]}}, "Row 1 of column 'a' is empty"),
        ({"columns": {"a": ["text"]}}, "Column 'a' must hold lists of token ids"),
        ({"columns": {"a": [None]}}, "Column 'a' must hold lists of token ids"),
        ({"columns": {"a": [[2**40]]}}, "fit in 32 bits"),
        ({"columns": {"a": [[1]]}, "batch_size": 0}, "`batch_size` must be an integer of"),
        ({"columns": {"a": [[1]]}, "pad_values": {"b": 1}}, r"not columns: \['b'\]"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        BucketedDataset(make_batch=predict_batch, **arguments)


class Recorder(keras.callbacks.Callback):
    """Record of the batches that the dataset served to Keras, by epoch."""

    def __init__(self, data):
        super().__init__()
        self.served = []
        make_batch = data.make_batch

        def record(arrays, masks):
            self.served[-1].append(arrays["label"].tolist()) if self.served else None
            return make_batch(arrays, masks)

        data.make_batch = record

    def on_epoch_begin(self, epoch, logs=None):
        self.served.append([])


class Tiny(keras.Model):
    """Mean embedding of the real tokens, and a classifier on it."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(50, 4)
        self.dense = keras.layers.Dense(1)
        self.shapes = []  # where calls are traced, one entry a trace

    def call(self, inputs):
        self.shapes.append(tuple(inputs["token_ids"].shape))
        mask = keras.ops.cast(inputs["padding_mask"], "float32")[..., None]
        states = self.embedding(inputs["token_ids"]) * mask
        return self.dense(keras.ops.sum(states, axis=1) / keras.ops.sum(mask, axis=1))


@pytest.mark.each_backend
@pytest.mark.parametrize("options", [{"batch_size": 16}, {"batch_tokens": 400}])
def test_fit_evaluate_predict(options):
    rows = rows_of(150)
    options["max_buckets"] = 3  # each is a compilation
    data = classifier_data(rows, shuffle=True, **options)
    expected = []
    for epoch in range(3):
        data.epoch = epoch
        expected.append([y.tolist() for _, y in list(data)])
    data.epoch = 0
    recorder = Recorder(data)
    model = Tiny()
    model.compile("adam", "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.fit(data, epochs=3, shuffle=False, verbose=0, callbacks=[recorder])
    assert data.epoch == 3
    assert recorder.served == expected
    if BACKEND == "tensorflow":
        # One graph for all lengths; another epoch does not trace again.
        assert set(model.shapes) == {(None, None)}
        model.shapes.clear()
        model.fit(data, shuffle=False, verbose=0)
        assert not model.shapes

    test = classifier_data(rows, **options)
    loss = model.evaluate(test, verbose=0)
    predicted = test.restore_order(
        model.predict(BucketedDataset({"token_ids": rows}, predict_batch, **options), verbose=0)
    )
    alone = [
        keras.ops.convert_to_numpy(
            model({"token_ids": np.array([row]), "padding_mask": np.ones((1, len(row)), bool)})
        )[0]
        for row in rows[:20]
    ]
    np.testing.assert_allclose(predicted[:20], alone, atol=1e-5)
    # Keras weighs each batch's loss by its rows.
    np.testing.assert_allclose(loss, np.mean((predicted[:, 0] - np.arange(150)) ** 2), rtol=1e-4)


def test_keras_shuffling_is_noticed():
    data = classifier_data(rows_of(150, high=8), shuffle=True, batch_size=6)
    model = Tiny()
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="pass shuffle=False to fit"):
        model.fit(data, verbose=0)


def test_the_next_batch_is_made_while_this_one_is_used():
    rows, threads = rows_of(64), {}

    def make_batch(arrays, masks):
        threads[tuple(arrays["row"])] = threading.current_thread()
        return classifier_batch(arrays, masks)

    def data_of(make_batch):
        labels = {"label": np.arange(len(rows))}
        return BucketedDataset({"token_ids": rows}, make_batch, values=labels, shuffle=True,
                               batch_size=8)  # fmt: skip

    data, alone = data_of(make_batch), data_of(classifier_batch)
    for epoch in range(2):
        alone.epoch = epoch
        data.on_epoch_begin()
        for place in range(len(data)):
            keras.tree.map_structure(np.testing.assert_array_equal, data[place], alone[place])
        data.on_epoch_end()
    here = sum(thread is threading.current_thread() for thread in threads.values())
    assert here == 2 and len(threads) == 2 * len(data)  # the first batch of each epoch
    # A place out of turn, and another epoch in the middle of a pass.
    data.on_epoch_begin()
    for epoch, place in ((2, 0), (2, 1), (2, 3), (1, 4), (1, 5), (2, 5)):
        data.epoch = alone.epoch = epoch
        with warnings.catch_warnings(action="ignore"):
            batches = data[place], alone[place]
        keras.tree.map_structure(np.testing.assert_array_equal, *batches)


def test_a_batch_that_cannot_be_made_says_so_when_it_is_wanted():
    def make_batch(arrays, masks):
        if 13 in arrays["label"]:
            raise ValueError("row 13")
        return classifier_batch(arrays, masks)

    rows = [[1]] * 16
    data = BucketedDataset({"token_ids": rows}, make_batch, values={"label": np.arange(16)},
                           batch_size=4)  # fmt: skip
    data.on_epoch_begin()
    data[0]
    with pytest.raises(ValueError, match="row 13"):
        data[1]
    assert data[2][1].tolist() == [4, 5, 6, 7]
