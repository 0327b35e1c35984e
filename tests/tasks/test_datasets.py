"""The library `datasets`, and rows and batches that are dicts, through the verbs of the tasks."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.tasks.data.streams import TextBatches, held, held_texts
from tests.tasks.common import ENGLISH, GERMAN, classifier, config, tokenizer, translator

datasets = pytest.importorskip("datasets")

TEXTS = [ENGLISH[n % 4] + " ," * (n % 3) for n in range(8)]
NAMES = ["good", "bad", "bad", "good"] * 2
NUMBERS = [("bad", "good").index(name) for name in NAMES]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def task():
    return classifier(labels=["bad", "good"])


def table(**columns):
    return datasets.Dataset.from_dict(columns or {"id": [*range(8)], "text": TEXTS, "label": NAMES})


def answerer():
    words = tokenizer(lowercase=True)
    values = config("encoder", words, segment_vocabulary_size=2, max_sequence_length=64)
    return kt.QuestionAnswerer(kt.models.Encoder(values), words)


def assert_same(ours, theirs):
    for one, two in zip(
        map(keras.tree.flatten, ours), map(keras.tree.flatten, theirs), strict=True
    ):
        for left, right in zip(one, two, strict=True):
            np.testing.assert_array_equal(left, right)


def test_fit_takes_a_dataset():
    """The losses are those of the same lists; a stream trains on its batches as they come."""
    histories = []
    for x, y in ((table(), None), (TEXTS, NAMES)):
        task = classifier(labels=["bad", "good"], dropout=0.0)
        validation = x if y is None else (x, y)
        options = {"batch_size": 4, "epochs": 2, "seed": 1, "verbose": 0}
        histories.append(task.fit(x, y, validation_data=validation, **options).history)
    assert histories[0] == histories[1] and len(histories[0]["val_loss"]) == 2
    stream = table().to_iterable_dataset()
    task.fit(stream, batch_size=4, epochs=2, verbose=0)
    assert int(task.optimizer.iterations.numpy()) == 8
    expected = task.evaluate(TEXTS, NAMES, verbose=0)
    assert task.evaluate(stream, batch_size=4, verbose=0) == pytest.approx(expected, rel=1e-5)
    outputs = task.predict(TEXTS, verbose=0)
    for data in (table(), stream):
        np.testing.assert_allclose(task.predict(data, verbose=0), outputs, atol=1e-5)


@pytest.mark.one_backend
def test_a_run_on_a_dataset_goes_on_within_an_epoch(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations.numpy()) == 3:
                raise KeyboardInterrupt

    def fit(*folder_and_stop):
        keras.utils.set_random_seed(0)
        task = classifier(labels=["bad", "good"])
        data = table(text=["dull", "warm", "funny", "a film"] * 4, label=NAMES * 2)
        batches = task.make_dataset(
            kt.data.read(data, y="label"), batch_size=4, shuffle=True, seed=5
        )
        run = [kt.training.ResumableRun(folder_and_stop[0], batches, every=1)]
        run = [*folder_and_stop[1:], *run]
        return task.fit(batches, epochs=2, verbose=0, callbacks=run).history["loss"], task

    whole, expected = fit(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "run", Stop())  # before the third step is saved
    rest, task = fit(tmp_path / "run")
    np.testing.assert_allclose(rest, whole, rtol=1e-6)
    for one, two in zip(task.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)


@pytest.mark.backend_independent
def test_columns_by_their_usual_names(task):
    frame = table(text=TEXTS, text_pair=NAMES, labels=NUMBERS)
    records = held(task, frame)
    assert records.x == ("text", "text_pair") and records.y == "labels"
    seq2seq = translator()
    pairs = held(seq2seq, table(source=GERMAN, target=ENGLISH[:3], id=[1, 2, 3]))
    assert_same(seq2seq.make_dataset(pairs)[0], seq2seq.make_dataset(GERMAN, ENGLISH[:3])[0])
    assert held_texts(task, table(), {}).columns == ("text",)
    review = {"review": "a", "label": 1}
    for rows in (table(review=TEXTS, label=NAMES), iter([review]), iter([(review, 1)])):
        with pytest.raises(ValueError, match=r"are dicts with \['label', 'review'\].*data.read\("):
            task.fit(rows)
    for several in (datasets.DatasetDict, datasets.IterableDatasetDict):
        with pytest.raises(ValueError, match=r"Received a \w+DatasetDict|Received a DatasetDict"):
            task.fit(several({"train": table()}))
    with pytest.raises(ValueError, match=r"as in data\['train'\]"):
        task.predict(datasets.DatasetDict({"train": table(), "test": table()}))
    with pytest.raises(ValueError, match="learns from labels: name their column"):
        task.fit(table(text=TEXTS))


@pytest.mark.backend_independent
def test_rows_and_batches_that_are_dicts(task):
    expected = held(task, iter([(TEXTS, NAMES)]), seed=0)[0]
    rows = [{"text": text, "labels": name} for text, name in zip(TEXTS, NAMES, strict=True)]
    columns = {"id": [*range(8)], "text": TEXTS}
    for data in (
        iter(rows),
        iter([{"text": TEXTS, "labels": NAMES}]),
        iter([(columns, NAMES)]),  # as `tf.data.experimental.make_csv_dataset` yields
        iter([({"text": text}, name) for text, name in zip(TEXTS, NAMES, strict=True)]),
    ):
        assert_same(held(task, data, batch_size=8, seed=0)[0], expected)
    weighted = held(task, iter([(columns, NAMES, [0.5] * len(TEXTS))]), seed=0)[0]
    assert_same(weighted[:2], expected[:2])
    assert (np.asarray(weighted[2]) == 0.5).all()
    pairs = held(task, iter([({"text": TEXTS, "text_pair": TEXTS[::-1]}, NAMES)]), seed=0)[0]
    assert_same(pairs, held(task, iter([((TEXTS, TEXTS[::-1]), NAMES)]), seed=0)[0])


def test_loaders_of_arrays_with_labels(task):
    """As a collator of Transformers gives them: ids, a mask and labels in one dict."""
    torch = pytest.importorskip("torch")
    inputs, labels = task.make_dataset(TEXTS, NAMES, batch_size=8, max_buckets=1)[0]
    rows = [
        {"input_ids": ids, "attention_mask": mask.astype("int64"), "labels": label}
        for ids, mask, label in zip(
            inputs["token_ids"].astype("int64"), inputs["padding_mask"], labels, strict=True
        )
    ]
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    expected = task.evaluate(TEXTS, NAMES, batch_size=8, verbose=0)
    assert task.evaluate(loader, verbose=0) == pytest.approx(expected, rel=1e-4)
    assert np.isfinite(task.fit(loader, epochs=2, verbose=0).history["loss"]).all()
    assert task.predict(loader, verbose=0).shape == (8, 2)


@pytest.mark.backend_independent
def test_what_transformers_leaves_out_weighs_nothing(task):
    batch = {"input_ids": np.ones((2, 3), "int32"), "labels": np.array([[1, -100, 0]] * 2)}
    (_, labels, weights) = held(task, iter([batch]))[0]
    assert labels.tolist() == [[1, 0, 0]] * 2 and weights.tolist() == [[1.0, 0.0, 1.0]] * 2


def test_questions_row_by_row():
    task = answerer()
    questions = ["who rides a bike ?", "where do dogs run ?", "who sleeps ?"]
    contexts = ["a man rides a bike .", "two dogs run on the grass .", "never dull"]
    answers = [None, (13, "on the grass"), None]
    whole = task.make_dataset((questions, contexts), answers, batch_size=3, max_buckets=1,
                              multiple=32)[0]  # fmt: skip
    pairs = [*zip(questions, contexts, strict=True)]
    rows = zip(pairs, answers, strict=True)
    squad = {
        "question": questions,
        "context": contexts,
        "answers": [
            {"text": [answer[1]] if answer else [], "answer_start": [answer[0]] if answer else []}
            for answer in answers
        ],
    }
    stream = table(**squad).to_iterable_dataset()
    for data in (rows, iter([((questions, contexts), answers)]), stream):
        batches = held(task, data, batch_size=3)
        assert isinstance(batches, TextBatches)
        assert_same(batches[0], whole)
    columns = held(task, table(**squad), batch_size=3)
    assert columns.num_rows == 3 and sorted(map(tuple, columns[0][1])) == sorted(
        map(tuple, whole[1])
    )
    task.fit(table(**squad), verbose=0)  # shuffled, of a seed of its own
    assert held_texts(task, iter(pairs), {}) == (questions, contexts)
    assert held_texts(task, table(**squad), {}) == (questions, contexts)


@pytest.mark.backend_independent
def test_columns_of_polars(task):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"text": TEXTS, "label": NAMES})
    lists = task.make_dataset(TEXTS, NAMES)
    records = kt.data.read(frame, x="text", y="label")
    for x, y in ((frame["text"], frame["label"]), (records, None)):
        assert_same(task.make_dataset(x, y), lists)
    assert held(task, frame.select("text")).to_list() == TEXTS
    with pytest.raises(ValueError, match="The DataFrame has no column 'texts'"):
        next(kt.data.read(frame, x="texts").chunks())


@pytest.mark.backend_independent
def test_nothing_is_imported_until_data_is_read():
    code = (
        "import sys, keras_transformer as kt\n"
        "task = kt.data.BucketedDataset({'ids': [[1]]}, lambda arrays, masks: (arrays['ids'],))\n"
        "assert not {'datasets', 'pyarrow', 'tqdm'} & sys.modules.keys() - before"
    )
    code = "import sys, keras, tokenizers, huggingface_hub\nbefore = {*sys.modules}\n" + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
