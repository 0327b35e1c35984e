"""`SequenceClassifier` and `SequenceLabeler`: rows of symbols, the verbs, presets by both names."""

import keras
import numpy as np
import pytest

import keras_transformer as kt

ROWS = ["".join(np.random.default_rng(i).choice(list("ACGT"), size=12)) for i in range(16)]
STRONG, WEAK = str.maketrans("AT", "CG"), str.maketrans("CG", "AT")
SMALL = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 32}


def rows_of_classes():
    rows = [row.translate(WEAK if i % 2 else STRONG) for i, row in enumerate(ROWS)]
    return rows, ["strong", "weak"] * 8


def classifier(rows=ROWS, **options):
    keras.utils.set_random_seed(0)
    options = {"labels": ["strong", "weak"], "config": SMALL} | options
    return kt.SequenceClassifier.for_rows(rows, **options)


def labeler(rows=ROWS, **options):
    keras.utils.set_random_seed(0)
    options = {"labels": ["O", "B-strong", "I-strong"], "config": SMALL} | options
    return kt.SequenceLabeler.for_rows(rows, **options)


def bonds(row):
    return ["O" if base in "AT" else "B-strong" for base in row]


def reloaded(task, folder):
    task.save_to_preset(folder / "preset")
    task.save(folder / "model.keras")
    return [kt.Task.from_preset(folder / "preset"), keras.models.load_model(folder / "model.keras")]


def test_a_class_of_each_sequence(tmp_path):
    rows, labels = rows_of_classes()
    task = classifier()
    task.compile(keras.optimizers.Adam(1e-2))
    task.fit(rows, labels, epochs=15, batch_size=8, verbose=0, validation_data=(rows, labels))
    assert task.evaluate(rows, labels, verbose=0, return_dict=True)["accuracy"] == 1
    assert [label for label, _ in task.classify(rows)] == labels
    assert task.classify(rows[1])[0] == "weak"
    lists = [list(row) for row in rows]
    expected = task.predict(rows, verbose=0)
    np.testing.assert_array_equal(task.predict(lists, verbose=0), expected)
    for again in reloaded(task, tmp_path):
        assert type(again) is kt.SequenceClassifier and again.labels == task.labels
        np.testing.assert_allclose(again.predict(rows, verbose=0), expected, atol=1e-5)
    plain = kt.TextClassifier.from_preset(tmp_path / "preset")
    np.testing.assert_allclose(plain.predict(rows, verbose=0), expected, atol=1e-5)
    plain.save_to_preset(tmp_path / "plain")
    again = kt.SequenceClassifier.from_preset(tmp_path / "plain")
    np.testing.assert_allclose(again.predict(rows, verbose=0), expected, atol=1e-5)


def test_a_label_of_each_symbol(tmp_path):
    task = labeler()
    task.compile(keras.optimizers.Adam(1e-2), task.loss, weighted_metrics=["accuracy"])
    labels = [bonds(row) for row in ROWS]
    task.fit(ROWS, labels, epochs=15, batch_size=4, verbose=0)
    assert task.label(ROWS) == labels
    assert task.label("ATGAC") == task.label([list("ATGAC")])[0] == bonds("ATGAC")
    results = task.evaluate(ROWS, labels, verbose=0, return_dict=True)
    assert results["accuracy"] == 1
    found = task.recognize("ATGAC")
    assert [(x.text, x.start, x.label) for x in found] == [("G", 2, "strong"), ("C", 4, "strong")]
    expected = task.predict(ROWS, verbose=0)
    for again in reloaded(task, tmp_path):
        assert type(again) is kt.SequenceLabeler
        np.testing.assert_allclose(again.predict(ROWS, verbose=0), expected, atol=1e-5)
        assert again.label(ROWS[0]) == labels[0]
    plain = kt.TokenClassifier.from_preset(tmp_path / "preset")
    np.testing.assert_allclose(plain.predict(ROWS, verbose=0), expected, atol=1e-5)


def test_labels_of_one_character_and_long_rows():
    long = "".join(np.random.default_rng(0).choice(list("ACGT"), size=40))
    config = {**SMALL, "max_sequence_length": 16}
    task = labeler(labels=["W", "S"], config=config)
    labels = ["".join("W" if base in "AT" else "S" for base in row) for row in [long, *ROWS]]
    task.compile(keras.optimizers.Adam(1e-2), task.loss)
    task.fit([long, *ROWS], labels, epochs=15, batch_size=4, verbose=0)
    assert "".join(task.label(long)) == labels[0]  # in windows
    assert task.fit([list(row) for row in ROWS], labels[1:], verbose=0).history["loss"]


@pytest.mark.parametrize("make", [classifier, labeler])
def test_adapters_and_mixed_precision(make):
    task = make(dtype="mixed_bfloat16")
    task.enable_lora(rank=2)
    y = ["strong", "weak"] * 8 if make is classifier else [bonds(row) for row in ROWS]
    before = [np.array(v) for v in task.backbone.non_trainable_weights]
    assert np.isfinite(task.fit(ROWS, y, verbose=0).history["loss"][0])
    for old, new in zip(before, task.backbone.non_trainable_weights, strict=True):
        assert (old == np.array(new)).all()


@pytest.mark.one_backend
def test_alphabets_of_the_data():
    tunes = [[60, 64, 67], np.array([60, 63, 67, 72]), (9, -1)]
    task = classifier(tunes, labels=["major", "minor"])
    vocabulary = task.tokenizer.get_vocabulary()
    symbols = sorted(vocabulary, key=vocabulary.get)[-7:]
    assert symbols == ["-1", "9", "60", "63", "64", "67", "72"]
    assert task.predict(tunes, verbose=0).shape == (3, 2)
    assert task.predict(["60 64 67"], verbose=0) == pytest.approx(
        task.predict([[60, 64, 67]], verbose=0), abs=1e-6
    )
    words = classifier(["C4 E4", "G4"], labels=["a", "b"])
    assert {"C4", "E4", "G4"} <= set(words.tokenizer.get_vocabulary())
    spaced = classifier(["A C", "G T"], labels=["a", "b"])
    assert spaced.tokenizer.encode("ACGT") == spaced.tokenizer.encode("A C G T")
    with pytest.raises(ValueError, match="row 1 has 'N' at 3"):
        classifier().classify(["ACGT", "ACGN"])
    assert classifier(unknown=True).classify("ACGN")[0] in ("strong", "weak")
    wide = classifier(config={"hidden_dim": 32}, num_classes=2, labels=None)
    assert wide.backbone.config.hidden_dim == 32 and wide.backbone.config.num_layers == 2


@pytest.mark.one_backend
def test_splice_sites_and_export(tmp_path):
    task = kt.SequenceClassifier.from_preset("splice_sites")
    plain = kt.TextClassifier.from_preset("splice_sites")
    rows = ["ACGT" * 15, "GGCA" * 15]
    np.testing.assert_array_equal(task.predict(rows, verbose=0), plain.predict(rows, verbose=0))
    assert task.labels == plain.labels
    with pytest.raises(ValueError, match="No published architecture fits"):
        kt.export_to_huggingface(task, tmp_path / "splice")
    config = {**SMALL, "position": "learned", "segment_vocabulary_size": 2, "pooler": True}
    config |= {"embedding_normalization": True, "max_sequence_length": 64}
    made = classifier(config={**config, "activation": "gelu"})
    kt.export_to_huggingface(made, tmp_path / "bert", family="bert")
    again = kt.SequenceClassifier.from_preset(tmp_path / "bert")
    np.testing.assert_allclose(
        again.predict(ROWS, verbose=0), made.predict(ROWS, verbose=0), atol=1e-5
    )


@pytest.mark.one_backend
def test_wrong_input():
    for rows, message in (
        ([], "`rows` is empty"),
        (["ACGT", ""], r"`rows\[1\]` has no symbols"),
        (["ACGT", 5], r"`rows\[1\]` must be a string or a list of symbols"),
        ([["A", None]], r"A symbol of `rows\[0\]` must be a string without spaces or an integer"),
        ([["A", "C G"]], r"A symbol of `rows\[0\]`"),
    ):
        with pytest.raises(ValueError, match=message):
            kt.SequenceClassifier.for_rows(rows, labels=["a", "b"])
    task = labeler()
    with pytest.raises(ValueError, match="must be a list of sequences.*put it in"):
        task.fit("ACGT", ["OOOO"], verbose=0)
    with pytest.raises(ValueError, match="y"):
        task.fit(["ACGT"], [["O", "O"]], verbose=0)
    with pytest.raises(ValueError, match="has 'N' at 1"):
        task.label(["ACG", "ANG"])
