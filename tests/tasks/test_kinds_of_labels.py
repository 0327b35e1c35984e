"""One right class, several, probabilities and numbers: losses, metrics, `classify`, presets."""

import json
import logging

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.checkpoints.families import batch, make
from tests.tasks.common import ENGLISH, classifier, config, randomized, tokenizer

pytestmark = pytest.mark.one_backend

TEXTS = ENGLISH * 2
CLASSES = ["food", "film", "travel"]
SEVERAL = [["food", "film"], [], ["travel"], ["film"]] * 2
ROWS = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0]] * 2)


def scores(task, y, **options):
    return task.evaluate(TEXTS, y, verbose=0, return_dict=True, **options)


def softmax(logits):
    exponentials = np.exp(logits.astype("float64"))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def single():
    return classifier(labels=CLASSES)


@pytest.fixture(scope="module")
def several():
    return classifier(labels=CLASSES, multi_label=True)


def test_one_hot_and_soft_labels(single):
    numbers = [0, 2, 1, 1, 2, 0, 0, 1]
    probabilities = softmax(single.predict(TEXTS, verbose=0))
    by_number = scores(single, numbers)
    expected = -np.log(probabilities[np.arange(8), numbers]).mean()
    assert by_number["loss"] == pytest.approx(expected, rel=1e-5)
    right = (probabilities.argmax(axis=-1) == numbers).mean()
    assert by_number["accuracy"] == pytest.approx(right)
    assert scores(single, np.eye(3)[numbers]) == by_number
    assert scores(single, np.eye(3)[numbers].tolist()) == by_number
    soft = np.random.default_rng(0).dirichlet([1, 1, 1], 8)
    found = scores(single, soft)
    assert found["loss"] == pytest.approx(-(soft * np.log(probabilities)).sum(-1).mean(), rel=1e-5)
    right = (probabilities.argmax(axis=-1) == soft.argmax(axis=-1)).mean()
    assert found["accuracy"] == pytest.approx(right)
    history = single.fit(TEXTS, soft, validation_data=(TEXTS, numbers), verbose=0).history
    assert np.isfinite(history["val_loss"]).all()


@pytest.mark.each_backend
def test_several_right_classes(several):
    logits = several.predict(TEXTS, verbose=0).astype("float64")
    probabilities = 1 / (1 + np.exp(-logits))
    losses = -np.log(np.where(ROWS == 1, probabilities, 1 - probabilities))
    expected = {"loss": losses.mean(), "accuracy": ((logits > 0) == ROWS).mean()}
    numbers = [[CLASSES.index(name) for name in names] for names in SEVERAL]
    for y in (SEVERAL, numbers, ROWS, ROWS.tolist(), ROWS.astype(bool), list(map(set, SEVERAL))):
        assert scores(several, y) == pytest.approx(expected, rel=1e-5)
    found = several.classify(TEXTS)
    for row, pairs in zip(probabilities, found, strict=True):
        assert [name for name, _ in pairs] == [CLASSES[i] for i in np.argsort(-row) if row[i] > 0.5]
    (name, share), *_ = several.classify(TEXTS, top_k=1)[0]
    assert (name, share) == (CLASSES[probabilities[0].argmax()],
                             pytest.approx(probabilities[0].max(), abs=1e-5))  # fmt: skip
    history = several.fit(TEXTS, SEVERAL, validation_data=(TEXTS, ROWS), verbose=0).history
    assert np.isfinite(history["val_loss"]).all()


@pytest.mark.each_backend
def test_a_regression():
    task = classifier(num_classes=1)
    numbers = np.linspace(-1, 2, 8)
    outputs = task.predict(TEXTS, verbose=0)[:, 0]
    found = scores(task, numbers)
    assert found["loss"] == pytest.approx(((outputs - numbers) ** 2).mean(), rel=1e-4)
    assert found["mean_absolute_error"] == pytest.approx(abs(outputs - numbers).mean(), rel=1e-4)
    assert scores(task, [str(number) for number in numbers]) == pytest.approx(found, rel=1e-6)
    task.compile(keras.optimizers.Adam(1e-3), task.loss)
    losses = task.fit(TEXTS, numbers[[0, 1, 2, 3] * 2], epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match="This task is a regression"):
        task.classify(TEXTS)
    with pytest.raises(ValueError, match=r"`y\[0\]` must be a number, received 'good'"):
        task.fit(TEXTS, ["good"] * 8)
    with pytest.raises(ValueError, match=r"`y\[7\]` must be a finite number, received nan"):
        task.fit(TEXTS, [1.0] * 7 + [float("nan")])


def test_classify(single):
    probabilities = softmax(single.predict(TEXTS[:2], verbose=0))
    for row, pairs in zip(probabilities, single.classify(TEXTS[:2], top_k=9), strict=True):
        order = np.argsort(-row)
        assert [name for name, _ in pairs] == [CLASSES[i] for i in order]
        assert [share for _, share in pairs] == pytest.approx(row[order].tolist(), abs=1e-6)
    (best, second, _), _ = single.classify(TEXTS[:2], top_k=3)
    alone = single.classify(TEXTS[0])
    assert alone == (best[0], pytest.approx(best[1], abs=1e-5))
    assert [name for name, _ in single.classify(TEXTS[0], top_k=2)] == [best[0], second[0]]
    between = (best[1] + second[1]) / 2
    assert [name for name, _ in single.classify(TEXTS[0], threshold=between)] == [best[0]]
    pair = single.classify((TEXTS[0], TEXTS[1]))
    listed = single.classify(([TEXTS[0]], [TEXTS[1]]))
    assert listed == [(pair[0], pytest.approx(pair[1], abs=1e-5))]
    for wrong in (0, 1.5, "2"):
        with pytest.raises(ValueError, match="`top_k` must be an integer of at least 1"):
            single.classify(TEXTS, top_k=wrong)


def test_labels_mean_the_same_in_files_and_lists(single, several, tmp_path):
    regression = classifier(num_classes=1)
    swapped = classifier(labels=["1", "0"])
    for task, labels in (
        (single, ["1", "0", "film", "2"]),
        (classifier(num_classes=3), ["1", "0", "0", "2"]),
        (swapped, ["1", "0", "0", "1"]),
        (several, [["film", "food"], [], ["2"], "travel"]),
        (regression, ["1.5", "-2", 0, 7]),
        (single, [[0.5, 0.5, 0], [1, 0, 0], [0, 0, 1], [0.25, 0.75, 0]]),
    ):
        path = tmp_path / "rows.jsonl"
        rows = [{"text": t, "y": y} for t, y in zip(TEXTS[:4], labels, strict=True)]
        path.write_text("\n".join(map(json.dumps, rows)))
        expected = task.make_dataset(TEXTS[:4], labels).values["labels"]
        for source in (path, rows):
            for _ in range(2):  # made, and found in the cache
                records = kt.data.read(source, y="y", cache=tmp_path / "cache")
                found = task.make_dataset(records).values["labels"]
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found, expected)
    assert swapped.make_dataset(TEXTS[:2], ["1", "0"]).values["labels"].tolist() == [0, 1]


@pytest.mark.each_backend
def test_metrics_by_name_are_those_of_logits():
    """They are what Keras makes of the probabilities."""
    task = classifier(labels=CLASSES, multi_label=True)
    probabilities = 1 / (1 + np.exp(-task.predict(TEXTS, verbose=0).astype("float64")))
    names = ["accuracy", "binary_accuracy", "binary_crossentropy", "AUC"]
    assert (probabilities > 0.5).any(axis=1).any() and (probabilities < 0.5).any()
    task.compile("sgd", task.loss, metrics=names[:2], weighted_metrics=names[2:])
    found = scores(task, ROWS)
    right = ((probabilities > 0.5) == (ROWS == 1)).mean()
    assert found["accuracy"] == found["binary_accuracy"] == pytest.approx(right)
    by_probabilities = (keras.metrics.BinaryCrossentropy(), keras.metrics.AUC())
    for name, metric in zip(names[2:], by_probabilities, strict=True):
        metric.update_state(ROWS, probabilities.astype("float32"))
        assert found[name] == pytest.approx(float(metric.result()), rel=1e-4)

    task = classifier(labels=CLASSES)
    numbers = [0, 2, 1, 1, 2, 0, 0, 1]
    before = scores(task, numbers)
    task.compile("sgd", task.loss, metrics=["accuracy", "sparse_categorical_crossentropy"])
    found = scores(task, numbers)
    assert found["accuracy"] == before["accuracy"]
    assert found["sparse_categorical_crossentropy"] == pytest.approx(before["loss"], rel=1e-5)


def test_the_loss_says_how_labels_come():
    task = classifier(labels=CLASSES)
    soft = [[0.5, 0.5, 0.0]] * 8
    task.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
    rows = task.make_dataset(TEXTS, ["film"] * 8).values["labels"]
    assert rows.tolist() == [[0, 1, 0]] * 8
    assert task.make_dataset(TEXTS, soft).values["labels"].tolist() == soft
    task.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    assert task.make_dataset(TEXTS, ROWS).values["labels"].tolist() == ROWS.tolist()
    task.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert task.make_dataset(TEXTS, [[0, 1, 0]] * 8).values["labels"].tolist() == [1] * 8
    with pytest.raises(ValueError, match="takes class numbers, but `y` has probabilities"):
        task.make_dataset(TEXTS, soft)


def test_labels_that_cannot_be_meant(single, several):
    for task, y, message in (
        (single, [[0.5, 0.2, 0.1]] * 8, r"`y\[0\]` is .* adds up to 0.8.*multi_label=True"),
        (single, ROWS, r"`y\[0\]` is \[1.0, 1.0, 0.0\], and adds up to 2"),
        (single, np.full((8, 3), np.nan), r"`y\[0\]` has values that are not finite"),
        (several, [["food"], ["fod"], *SEVERAL[2:]], r"`y\[1\]\[0\]` is 'fod', which is not among"),
        (several, [[3]] * 8, r"Labels must be from 0 to 2, but `y\[0\]\[0\]` is 3"),
        (several, SEVERAL[:7], "`y` must be a list with the labels of each text, 8 in all"),
        (several, "food", "`y` must be a list with the labels of each text"),
    ):
        with pytest.raises(ValueError, match=message):
            task.make_dataset(TEXTS, y)
    with pytest.warns(UserWarning, match="no example of 1 of the 3 classes: 'travel'"):
        several.head.check_training_set(several.make_dataset(TEXTS, [["food", "film"]] * 8))
    with pytest.raises(
        ValueError, match="needs tasks that predict classes or tokens, which TextClassifier"
    ):
        kt.training.Distiller(kt.training.smaller(several, 1), several)


def test_presets(several, tmp_path):
    several.save_to_preset(tmp_path / "ours")
    loaded = kt.TextClassifier.from_preset(tmp_path / "ours")
    assert loaded.multi_label and type(loaded.loss) is keras.losses.BinaryCrossentropy
    for ours, theirs in zip(loaded.classify(TEXTS), several.classify(TEXTS), strict=True):
        assert [name for name, _ in ours] == [name for name, _ in theirs]
        assert [p for _, p in ours] == pytest.approx([p for _, p in theirs], abs=1e-5)
    with pytest.raises(ValueError, match="was trained as TextClassifier with multi_label=True"):
        kt.TextClassifier.from_preset(tmp_path / "ours", multi_label=False)


@pytest.mark.parametrize("options", [{"labels": CLASSES, "multi_label": True}, {"num_classes": 1}])
def test_published_kinds_of_problems(options, tmp_path):
    transformers = pytest.importorskip("transformers")
    words = tokenizer(lowercase=True)
    backbone = kt.models.Encoder(
        config("encoder", words, segment_vocabulary_size=2, pooler=True, position="learned",
               max_sequence_length=64, activation="gelu", embedding_normalization=True)
    )  # fmt: skip
    task = randomized(kt.TextClassifier(backbone, words, **options))
    kt.export_to_huggingface(task, tmp_path)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    several = "multi_label" in options
    assert theirs.problem_type == ("multi_label_classification" if several else "regression")
    assert theirs.num_labels == task.num_classes
    loaded = kt.TextClassifier.from_preset(tmp_path)
    assert (loaded.multi_label, loaded.num_classes) == (several, task.num_classes)
    for name, variable in task.head.items():
        np.testing.assert_array_equal(
            *map(keras.ops.convert_to_numpy, (variable, loaded.head[name]))
        )


@pytest.mark.parametrize(
    ("problem", "count"), [("multi_label_classification", 3), ("regression", 1)]
)
def test_a_published_problem_has_its_loss(problem, count, tmp_path):
    torch = pytest.importorskip("torch")
    labels = {str(i): f"label {i}" for i in range(count)}
    model = make("bert", 0, "ForSequenceClassification", problem_type=problem, id2label=labels)
    model.save_pretrained(tmp_path)
    task = kt.TextClassifier.from_preset(tmp_path)
    ids, mask = batch()
    targets = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 0]] if count == 3 else [[0.5], [-2.0], [1.0]])
    theirs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    expected = model(
        **theirs, labels=torch.tensor(targets).float().squeeze(-1 if count == 1 else 0)
    )
    ours = {"token_ids": ids, "padding_mask": mask}
    np.testing.assert_allclose(
        task.predict(ours, verbose=0), expected.logits.detach().numpy(), atol=1e-4
    )
    loss = task.evaluate(ours, targets.astype("float32"), verbose=0, return_dict=True)["loss"]
    assert loss == pytest.approx(float(expected.loss.detach()), rel=1e-4)


def test_a_regression_of_several_numbers_is_named(tmp_path, caplog):
    model = make("bert", 0, "ForSequenceClassification", problem_type="regression")
    model.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        assert kt.TextClassifier.from_preset(tmp_path).num_classes == 2
    assert "problem_type='regression' with 2 labels cannot be trained" in caplog.text


def test_other_labels_than_those_of_a_saved_head(single, tmp_path, caplog):
    single.save_to_preset(tmp_path / "named")
    kernel = keras.ops.convert_to_numpy(single.head["output/kernel"])

    def load(name, labels):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "keras_transformer"):
            task = kt.TextClassifier.from_preset(tmp_path / name, labels=labels)
        kept = np.array_equal(keras.ops.convert_to_numpy(task.head["output/kernel"]), kernel)
        assert task.labels == labels
        return kept, caplog.text

    assert load("named", CLASSES) == (True, "")
    assert load("named", ["Food", "Film", "Travel"]) == (True, "")
    kept, said = load("named", ["sport", "film", "news"])
    assert not kept and "Its own head knows the classes ['food', 'film', 'travel']" in said
    with pytest.raises(ValueError, match="'travel' belongs to another class"):
        load("named", CLASSES[::-1])
    single.labels, before = None, single.labels
    single.save_to_preset(tmp_path / "bare")
    kept, said = load("bare", ["sport", "film", "news"])
    assert kept and "have no names. They are assumed to be" in said
    single.labels = before
    with pytest.raises(ValueError, match="Received 2 labels for num_classes=3"):
        single.labels = ["a", "b"]
    with pytest.raises(ValueError, match="at least two names in `labels`, or `multi_label=True`"):
        kt.TextClassifier(single.backbone, labels=["a"])


def test_all_windows_of_a_long_text_are_learned():
    words = tokenizer(lowercase=True)
    encoder = kt.models.Encoder(config("encoder", words, max_sequence_length=64))
    task = kt.TokenClassifier(encoder, words, labels=["O", "B-X", "I-X"])
    row = " ".join(ENGLISH * 5).split()
    labels = [("O", "B-X", "I-X")[n % 3] for n in range(len(row))]
    dataset = task.make_dataset([row, row[:4]], [labels, labels[:4]], sample_weight=[2.0, 1.0])
    assert dataset.num_rows > 4
    seen = []
    for index in range(len(dataset)):
        inputs, targets, weights = dataset[index]
        assert inputs["token_ids"].shape[1] <= 64 and set(np.unique(weights)) <= {0, 1, 2}
        seen += targets[weights == 2].tolist()
    counts = np.bincount([task.labels.index(label) for label in labels])
    assert np.bincount(seen).tolist() == counts.tolist()  # each word once
    assert len(task.make_dataset([row, row[:4]])[0][0]["token_ids"]) == 2  # `predict`: a row each
