"""Columns of data frames, and data sets of strings of other libraries, through the verbs."""

import itertools

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.tasks.data.streams import held
from tests.tasks.common import ENGLISH, GERMAN, classifier, config, tokenizer, translator

pytestmark = pytest.mark.one_backend

TEXTS = [ENGLISH[n % 4] + " ," * (n % 3) for n in range(8)]
NAMES = ["good", "bad", "bad", "good"] * 2
NUMBERS = [("bad", "good").index(name) for name in NAMES]


@pytest.fixture(scope="module")
def task():
    return classifier(labels=["bad", "good"])


def test_columns_are_lists(task, tmp_path):
    pd, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    pa = pytest.importorskip("pyarrow")
    # Rows by place, whatever the index says.
    frame = pd.DataFrame({"text": TEXTS, "label": NAMES}, index=range(8, 0, -1))
    rows = datasets.Dataset.from_dict({"text": TEXTS, "label": NAMES})
    table = pa.table({"text": TEXTS, "label": NAMES})
    expected = task.evaluate(TEXTS, NAMES, verbose=0)
    for x, y in (
        (frame["text"], frame["label"]),
        (frame["text"].values, frame["label"].astype("category")),
        (frame[["text"]], pd.Series(NUMBERS)),
        (rows["text"], rows["label"]),
        (table["text"], table["label"]),
        (kt.data.read(frame, x="text", y="label", cache=tmp_path), None),
        (kt.data.read(table, x="text", y="label", cache=tmp_path), None),
    ):
        assert task.evaluate(x, y, verbose=0) == expected
    assert task.classify(frame["text"]) == task.classify(TEXTS)
    pairs = task.predict((TEXTS, NAMES), verbose=0)
    np.testing.assert_array_equal(task.predict(frame[["text", "label"]], verbose=0), pairs)
    history = task.fit(
        frame["text"], frame["label"], validation_data=(frame["text"], frame["label"]), verbose=0
    ).history
    assert np.isfinite(history["val_loss"]).all()
    for wrong, message in (
        (lambda: kt.data.read(frame, x="texts"), "The DataFrame has no column 'texts'"),
        (lambda: frame, "`x` is a data frame. Name a column"),
        (lambda: frame.assign(more=NAMES), "`x` is a data frame. Name a column"),
        (lambda: frame["text"].where(frame["label"] == "bad"), r"`x\[0\]` must be a string"),
    ):
        with pytest.raises(ValueError, match=message):
            task.make_dataset(wrong())
    with pytest.raises(ValueError, match="`x` is a data frame. Name a column"):
        task.classify(frame.assign(more=NAMES))


def test_columns_of_other_tasks():
    pd = pytest.importorskip("pandas")
    lm = translator()
    sources, targets = pd.Series(GERMAN), pd.Series(ENGLISH[:3])
    assert lm.generate(sources, max_new_tokens=2) == lm.generate(GERMAN, max_new_tokens=2)
    for ours, theirs in zip(
        lm.make_dataset(sources, targets)[0], lm.make_dataset(GERMAN, ENGLISH[:3])[0], strict=True
    ):
        keras.tree.map_structure(np.testing.assert_array_equal, ours, theirs)


def batched(rows=4):
    for start in range(0, 8, rows):
        yield TEXTS[start : start + rows], NAMES[start : start + rows]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return [*batched()][index]


def data_sets():
    """Each kind of data set of strings, by name: functions to one with and one without labels."""
    yield "generator", batched, lambda: (x for x, _ in batched())
    yield "rows", lambda: zip(TEXTS, NAMES, strict=True), lambda: iter(TEXTS)
    yield "weights", lambda: ((x, y, [1.0] * 4) for x, y in batched()), lambda: iter([TEXTS])
    yield "PyDataset", Batches, Batches
    torch = pytest.importorskip("torch").utils.data
    pairs = [*zip(TEXTS, NUMBERS, strict=True)]
    yield "loader", lambda: torch.DataLoader(pairs, 4), lambda: torch.DataLoader(TEXTS, 3)
    yield "names", lambda: torch.DataLoader([*zip(TEXTS, NAMES, strict=True)], 4), None

    class Rows(torch.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return TEXTS[index], NAMES[index]  # no IndexError at the end

    yield "Dataset", Rows, Rows
    if keras.backend.backend() == "torch":
        return  # TensorFlow's memory, and one start of it is enough.
    tf = pytest.importorskip("tensorflow").data.Dataset.from_tensor_slices
    yield "tf", lambda: tf((TEXTS, NUMBERS)).batch(4), lambda: tf(TEXTS).batch(4)
    yield "tf rows", lambda: tf((TEXTS, NAMES)), lambda: tf(TEXTS)
    known = tf((TEXTS, NAMES)).filter(lambda x, y: x != "").batch(4)
    yield "tf of a number not known", lambda: known, None


@pytest.mark.each_backend
def test_data_sets_of_strings(task):
    loss, accuracy = task.evaluate(TEXTS, NAMES, verbose=0)
    outputs = task.predict(TEXTS, verbose=0)
    for name, labelled, bare in data_sets():
        found = task.evaluate(labelled(), batch_size=4, verbose=0)
        assert found == pytest.approx([loss, accuracy], rel=1e-5), name
        if bare is not None:
            np.testing.assert_allclose(task.predict(bare(), verbose=0), outputs, atol=1e-5)
    pairs = [((x, y), 1) for x, y in zip(TEXTS, NAMES, strict=True)]
    expected = task.evaluate((TEXTS, NAMES), [1] * 8, verbose=0)
    assert task.evaluate(iter(pairs), verbose=0) == pytest.approx(expected, rel=1e-5)


@pytest.mark.each_backend
def test_fit_takes_the_batches_as_they_come():
    """The weights are those of training on the same batches one by one."""
    losses = []
    for stream in (True, False):
        keras.utils.set_random_seed(0)
        task = classifier(labels=["bad", "good"], dropout=0.0)
        task.compile("sgd", task.loss)
        if stream:
            losses.append(task.fit(batched(), epochs=2, verbose=0).history["loss"])
            assert int(task.optimizer.iterations.numpy()) == 4
            continue
        epochs = []
        for _ in range(2):
            steps = [task.fit(x, y, batch_size=4, verbose=0).history["loss"] for x, y in batched()]
            epochs.append(np.mean(steps))
        losses.append(epochs)
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_steps(task):
    def endless():
        return itertools.cycle(batched())

    before = int(task.optimizer.iterations.numpy())
    history = task.fit(
        endless(), steps_per_epoch=3, epochs=2, validation_data=endless(), validation_steps=2,
        verbose=0,
    ).history  # fmt: skip
    assert int(task.optimizer.iterations.numpy()) == before + 6
    expected = task.evaluate(TEXTS, NAMES, verbose=0)
    assert history["val_loss"][-1] == pytest.approx(expected[0], rel=1e-5)
    assert task.evaluate(endless(), steps=2, verbose=0) == pytest.approx(expected, rel=1e-5)
    assert task.predict((x for x, _ in endless()), steps=3, verbose=0).shape == (12, 2)
    with pytest.raises(Exception, match="The data ended after 2 batches. Give fewer steps"):
        task.fit(batched(), steps_per_epoch=3, verbose=0)


def test_a_batch_is_its_rows(task):
    data = held(task, batched(), seed=0)
    assert data.num_batches == 2
    for index in (1, 0, 1):
        inputs, labels = data[index]
        x, y = [*batched()][index]
        assert inputs["token_ids"].shape == (4, 32)
        rows = {tuple(row[mask]) for row, mask in zip(inputs["token_ids"], inputs["padding_mask"],
                                                     strict=True)}  # fmt: skip
        assert rows == set(map(tuple, task.tokenizer.encode_batch(x)))
        assert sorted(labels.tolist()) == sorted(("bad", "good").index(name) for name in y)


@pytest.mark.one_backend("tensorflow")
def test_first_batches_of_one_length_and_a_later_one_of_another():
    """TensorFlow takes the shapes of the first two for those of all; 64 is the longest here."""
    words = tokenizer(lowercase=True)
    values = config("encoder", words, position="learned", max_sequence_length=64)
    short, long = ["never dull", "dull"], [" ".join(["never dull"] * 25)] * 2
    for make, y, order in (
        (kt.TextClassifier, ["B", "O"], (short, short, long)),
        (kt.TokenClassifier, [[(0, 5, "B")], []], (long, long, short)),
    ):
        task = make(kt.models.Encoder(values), words, labels=["O", "B"])
        history = task.fit(iter([(texts, y) for texts in order]), verbose=0).history
        assert np.isfinite(history["loss"]).all()


def test_other_tokens_are_hidden_each_time():
    words = tokenizer(lowercase=True)
    masked = kt.MaskedLM(kt.models.Encoder(config("encoder", words)), words)
    texts = [" ".join(ENGLISH)] * 4
    for shuffle in (True, False):
        data = held(masked, iter([(texts,)]), shuffle=shuffle, seed=3)
        first, second = (data[0][0]["mask_positions"].tolist() for _ in range(2))
        assert (first != second) is shuffle


def test_data_sets_that_cannot_be_meant(task):
    with pytest.raises(ValueError, match="learns from labels: give `y`"):
        task.fit(x for x, _ in batched())
    with pytest.raises(ValueError, match=r"dicts with \['label', 'review'\]. Name their columns"):
        task.fit({"review": text, "label": 1} for text in TEXTS)
    with pytest.raises(ValueError, match=r"`y\[0\]` is 'fine', which is not among the labels"):
        task.fit(iter([(TEXTS, ["fine"] * 8)]))
    arrays = (({"token_ids": np.ones((2, 3), "int32")},) for _ in range(2))
    assert task.predict(arrays, verbose=0).shape == (4, 2)  # as Keras takes them


@pytest.mark.one_backend("tensorflow")
def test_tensors_and_data_sets_of_tensorflow(task, tmp_path):
    tf = pytest.importorskip("tensorflow")
    expected = task.classify(ENGLISH)
    slices = tf.data.Dataset.from_tensor_slices(ENGLISH)
    for texts in (tf.constant(ENGLISH), slices, slices.batch(3), slices.map(lambda x: (x, 1))):
        assert [name for name, _ in task.classify(texts)] == [name for name, _ in expected]
    for text in (tf.constant(ENGLISH[0]), np.array(ENGLISH[0])):  # one text, not a list of them
        assert task.classify(text) == task.classify(ENGLISH[0])
    mt = translator()
    written = mt.generate(ENGLISH, max_new_tokens=3)
    for prompts in (slices.batch(3), tf.constant(ENGLISH), (text for text in ENGLISH)):
        assert mt.generate(prompts, max_new_tokens=3) == written
    with pytest.raises(ValueError, match="The data set has no end"):
        mt.generate(slices.repeat(), max_new_tokens=3)

    for name, count in (("good", 3), ("bad", 1)):  # Keras sorts them, and numbers them so
        (tmp_path / name).mkdir()
        for place, text in enumerate(ENGLISH[:count]):
            (tmp_path / name / f"{place}.txt").write_text(text)
    swapped = classifier(labels=["good", "bad"])
    for mode in ("int", "binary", "categorical"):
        data = keras.utils.text_dataset_from_directory(
            tmp_path, batch_size=4, label_mode=mode, verbose=False
        )
        assert sorted(held(swapped, data)[0][1].tolist()) == [0, 0, 0, 1]
