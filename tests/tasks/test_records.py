"""Tasks on files: the numbers are those of the same texts in memory; and bad input to training."""

import json
import re
import warnings

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data import read
from tests.tasks.common import (
    ENGLISH,
    GERMAN,
    classifier,
    config,
    language_model,
    randomized,
    tokenizer,
    translator,
)

pytestmark = pytest.mark.one_backend

TEXTS = [ENGLISH[n % 4] + " ," * (n % 5) for n in range(40)]
TARGETS = [GERMAN[n % 3] + " ." * (n % 4) for n in range(40)]
NAMES = [("bad", "good")[n % 2] for n in range(40)]
# Of one length, where a model is compiled.
SHORT = ["dull", "warm", "funny", "a film"] * 6


@pytest.fixture
def records(tmp_path):
    """`records(y=..., x=...)` of a file that holds the texts, their targets and their labels."""
    path = tmp_path / "rows.jsonl"
    rows = zip(TEXTS, TARGETS, NAMES, strict=True)
    lines = [json.dumps({"text": t, "target": g, "label": n}) for t, g, n in rows]
    path.write_text("\n".join(lines))
    return lambda **options: read(path, cache=tmp_path / "cache", **options)


@pytest.fixture
def short(tmp_path):
    """As `records`, of texts that are short."""
    path = tmp_path / "short.tsv"
    path.write_text("\n".join(f"{t}\t{n}" for t, n in zip(SHORT, NAMES, strict=False)))
    return lambda **options: read(path, x=0, cache=tmp_path / "cache", **options)


def masked_lm():
    words = tokenizer(lowercase=True)
    values = config("encoder", words, segment_vocabulary_size=2, max_sequence_length=64)
    return randomized(kt.MaskedLM(kt.models.Encoder(values), words))


def assert_same_batches(ours, theirs):
    assert len(ours) == len(theirs) > 2
    for epoch in (0, 3):
        ours.epoch = theirs.epoch = epoch
        for index in (2, 0, len(ours) - 1):
            flat = zip(*map(keras.tree.flatten, (ours[index], theirs[index])), strict=True)
            for one, two in flat:
                assert one.dtype == two.dtype
                np.testing.assert_array_equal(one, two)


def test_batches_are_those_of_texts_in_memory(records):
    options = {"shuffle": True, "seed": 2, "batch_size": 8}
    for task, columns, texts in (
        (classifier(labels=["bad", "good"]), {"y": "label"}, (TEXTS, NAMES)),
        (classifier(num_classes=2), {"x": ("text", "target")}, ((TEXTS, TARGETS),)),
        (masked_lm(), {}, (TEXTS,)),
        (language_model(), {}, (TEXTS,)),
        (language_model(), {"x": "target"}, (TARGETS,)),
        (translator(), {"y": "target"}, (TEXTS, TARGETS)),
        (translator(), {"x": ("text", "target")}, ((TEXTS, TARGETS),)),
    ):
        for more in ({}, {"max_length": 9}):
            ours = task.make_dataset(records(**columns), **options, **more)
            assert_same_batches(ours, task.make_dataset(*texts, **options, **more))


@pytest.mark.each_backend
def test_keras_verbs(short):
    histories, scores, outputs = [], [], []
    for x, y in ((short(y=1), None), (SHORT, NAMES[: len(SHORT)])):
        task = classifier(labels=["bad", "good"], dropout=0.0)
        validation = x if y is None else (x, y)
        options = {"batch_size": 8, "epochs": 2, "seed": 1, "verbose": 0}
        history = task.fit(x, y, validation_data=validation, **options).history
        histories.append(history)
        scores.append(task.evaluate(x, y, batch_size=8, verbose=0))
        outputs.append(task.predict(x, batch_size=8, verbose=0))
    assert histories[0] == histories[1] and len(histories[0]["val_loss"]) == 2
    assert scores[0] == scores[1] and scores[0][0] == pytest.approx(histories[0]["val_loss"][1])
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize("make", [language_model, masked_lm, translator])
def test_language_models_fit(make, short):
    task = make()
    task.compile(keras.optimizers.Adam(3e-3), task.loss)
    data = short(y=1) if make is translator else short()
    losses = task.fit(data, epochs=3, batch_size=8, verbose=0, validation_data=data).history
    assert losses["val_loss"][2] < losses["val_loss"][0]


def test_labels_of_files(records, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,label\na warm film,1\ndull,0\nnever dull,2\nfunny,good\n")
    rows = read(path, y="label", cache=tmp_path)
    unknown = (
        "rows.csv, line {}: the label {} is not known. Known labels are {}, or the numbers from"
    )
    for task, found in (
        (classifier(num_classes=2), (4, "'2'", "'0', '1'")),
        (classifier(num_classes=3), (5, "'good'", "'0', '1', '2'")),
        (classifier(labels=["good", "bad"]), (4, "'2'", "'good', 'bad'")),
    ):
        with pytest.raises(ValueError, match=re.escape(unknown.format(*found))):
            task.make_dataset(rows)
    dataset = classifier(labels=["bad", "fair", "good"]).make_dataset(rows, batch_size=4)
    assert dataset.restore_order(dataset[0][1]).tolist() == [1, 0, 2, 2]


def test_a_class_without_an_example(short):
    task = classifier(labels=["bad", "good", "fair"])
    with pytest.warns(UserWarning, match="no example of 1 of the 3 classes: 'fair'"):
        task.fit(short(y=1), verbose=0)
    with pytest.warns(UserWarning, match="no example of 2 of the 3 classes: 'bad', 'fair'"):
        task.fit(SHORT, ["good"] * len(SHORT), verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        task.fit(SHORT, ["good", "bad", "fair"] * 8, verbose=0)
        task.evaluate(short(y=1), verbose=0)  # nothing is learned from it


def test_records_that_do_not_fit(records):
    words = tokenizer(lowercase=True)
    encoder = kt.models.Encoder(config("encoder", words))
    for task in (
        kt.TokenClassifier(encoder, words, num_classes=2),
        kt.QuestionAnswerer(encoder, words),
        kt.TextEmbedder(encoder, words),
    ):
        with pytest.raises(ValueError, match="must be a list of strings here: the result of"):
            task.make_dataset(records(y="label"))
    with pytest.raises(ValueError, match="name their column, y=, in read"):
        classifier(num_classes=2).fit(records())
    with pytest.raises(ValueError, match="`y` is a column of the data of `data.read`"):
        classifier(num_classes=2).fit(records(y="label"), NAMES)
    with pytest.raises(ValueError, match="must have one column of texts and no `y`"):
        masked_lm().fit(records(y="label"))
    with pytest.raises(ValueError, match="Seq2SeqLM needs sources and targets: read"):
        translator().fit(records())


def test_texts_that_are_too_short(tmp_path):
    words = kt.Tokenizer.train(["a man"] * 2, vocabulary_size=300, template="none")
    words._roles["end"] = None
    lm = kt.CausalLM(kt.models.Decoder(config("decoder", words)), words)
    (tmp_path / "rows.txt").write_text("a man\na man\na\n")
    with pytest.raises(ValueError, match=r"rows.txt, line 3 is too short: there is no next token"):
        lm.make_dataset(read(tmp_path / "rows.txt", cache=tmp_path))


def padding(task, rows=4, length=8):
    """Arrays of nothing but padding, as a batch of the task."""
    mask, ids = np.zeros((rows, length), bool), np.zeros((rows, length), "int32")
    weights = np.zeros((rows, length), "float32")
    if isinstance(task, kt.Seq2SeqLM):
        sides = ("encoder", "decoder")
        inputs = {f"{side}_token_ids": ids for side in sides}
        return inputs | {f"{side}_padding_mask": mask for side in sides}, ids, weights
    inputs = {"token_ids": ids, "padding_mask": mask}
    if isinstance(task, kt.TextClassifier):
        return inputs, ids[:, 0], weights[:, 0]
    if isinstance(task, kt.MaskedLM):
        inputs["mask_positions"] = ids[:, :2]
        return inputs, ids[:, :2], weights[:, :2]
    return inputs, ids, weights


@pytest.mark.parametrize("make", [lambda: classifier(num_classes=2), masked_lm, language_model,
                                  translator])  # fmt: skip
def test_a_batch_of_only_padding(make):
    """It has no loss, and changes no weight but by weight decay, which is left out here."""
    task = make()
    task.compile(keras.optimizers.SGD(0.1, momentum=0.9), task.loss, weighted_metrics=[])
    before = task.get_weights()
    inputs, targets, weights = padding(task)
    history = task.fit(inputs, targets, sample_weight=weights, batch_size=4, verbose=0).history
    assert history["loss"] == [0.0]
    for name, old, new in zip(
        [w.path for w in task.weights], before, task.get_weights(), strict=True
    ):
        if "seed" not in name:
            np.testing.assert_array_equal(old, new, err_msg=name)
    assert np.isfinite(task.predict(inputs, verbose=0)).all()
