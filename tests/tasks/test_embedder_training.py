"""TextEmbedder learns from pairs, triplets and scores, a step as sentence-transformers makes it."""

import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import export_to_huggingface
from keras_transformer.training import (
    BatchHardTripletLoss,
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from tests.checkpoints.conftest import assert_same_values, values_of
from tests.checkpoints.test_sentence_transformers import embedder as bert
from tests.tasks.common import ENGLISH, GERMAN
from tests.tasks.test_text_embedder import embedder

pytestmark = pytest.mark.one_backend

ANCHORS, POSITIVES = ENGLISH[:3], GERMAN
NEGATIVES = [ENGLISH[3], *ENGLISH[:2]]
ROWS = {
    "multiple_negatives_ranking": ((ANCHORS, POSITIVES, NEGATIVES, NEGATIVES[::-1]), None),
    "cosent": ((ANCHORS, POSITIVES), [0.1, 0.7, 0.4]),
    "cosine_similarity": ((ANCHORS, POSITIVES), [0.1, 0.7, 0.4]),
    "triplet": ((ANCHORS, POSITIVES, NEGATIVES), None),
    "margin_mse": ((ANCHORS, POSITIVES, NEGATIVES), [[0.1, 0.3], [0.7, -0.2], [0.4, 0.0]]),
    # Two rows at a time, and one.
    "cached": ((ANCHORS, POSITIVES, NEGATIVES), None),
}
CLASSES = {
    "triplet": "TripletLoss",
    "margin_mse": "MarginMSELoss",
    "cached": "CachedMultipleNegativesRankingLoss",
    "multiple_negatives_ranking": "MultipleNegativesRankingLoss",
    "cosent": "CoSENTLoss",
    "cosine_similarity": "CosineSimilarityLoss",
}


@pytest.mark.parametrize("loss", ROWS)
def test_a_step_is_that_of_sentence_transformers(tmp_path, loss):
    """Plain gradient descent: the weights after a step are the gradient of it."""
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("sentence_transformers")
    keras.utils.set_random_seed(0)
    mine = bert(dense=[{"units": 6, "activation": "tanh"}], max_length=9)
    export_to_huggingface(mine, tmp_path / "before")
    theirs = library.SentenceTransformer(str(tmp_path / "before"), device="cpu").eval()
    texts, scores = ROWS[loss]
    cached = CachedMultipleNegativesRankingLoss(mini_batch_size=2)
    mine.compile(keras.optimizers.SGD(8.0), cached if loss == "cached" else loss)
    value = mine.train_on_batch(texts, None if scores is None else np.array(scores))

    criterion = getattr(library.sentence_transformer.losses, CLASSES[loss])(theirs)
    columns = [theirs.preprocess(list(part)) for part in texts]
    labels = None if scores is None else torch.tensor(scores)
    expected = criterion(columns, labels)
    expected.backward()
    with torch.no_grad():
        for weight in theirs.parameters():
            if weight.grad is not None:
                weight -= 8.0 * weight.grad
    theirs.save(str(tmp_path / "after"))
    assert float(value) == pytest.approx(expected.item(), rel=1e-4)
    after = kt.TextEmbedder.from_preset(tmp_path / "after")
    # A gradient of 1 to a few parts in a million, eight times.
    assert_same_values(mine, after, atol=2e-5)
    # The error is a small share of a step that is far larger.
    before = values_of(kt.TextEmbedder.from_preset(tmp_path / "before"))
    step, error = (
        max(np.abs(x - y).max() for x, y in zip(values_of(mine), other, strict=True))
        for other in (before, values_of(after))
    )
    assert step > 2e-5 and error <= 0.02 * step


@pytest.mark.each_backend
def test_rows_of_more_texts_and_larger_batches_in_parts(monkeypatch):
    """One model for each in turn, though TensorFlow leaves both open once they differ."""
    parts, module = [], "keras_transformer.tasks.text.text_embedder"
    counted = sys.modules[module].recomputed
    monkeypatch.setattr(
        f"{module}.recomputed", lambda *given: parts.append(given) or counted(*given)
    )
    task = embedder()
    texts = [list(ENGLISH), [f"{text} nie" for text in ENGLISH], ENGLISH[1:] + ENGLISH[:1]]
    losses = []
    for mini_batch_size in (None, 2):
        task.set_weights(embedder().get_weights())
        loss = CachedMultipleNegativesRankingLoss(mini_batch_size=mini_batch_size or 9)
        task.compile(keras.optimizers.SGD(0.5), loss)
        losses.append([])
        for count, rows in ((2, 3), (3, 3), (3, 4)):
            given = tuple(part[:rows] for part in texts[:count])
            history = task.fit(given, batch_size=rows, epochs=2, seed=0, verbose=0).history
            losses[-1] += [*history["loss"], task.evaluate(given, verbose=0)]
            assert task.predict(given, verbose=0).shape == (rows, count, 16)
        assert bool(parts) == bool(mini_batch_size)
    np.testing.assert_allclose(*losses, rtol=1e-3)
    assert all(given[2][0]["token_ids"].shape[1] in (2, 3) for given in parts)


@pytest.mark.each_backend
def test_texts_in_batches_are_those_alone():
    """Padded to one length with the others of their row, and rows of several lengths."""
    task = embedder()
    texts = (ANCHORS, POSITIVES, NEGATIVES)
    found = task.predict(texts, batch_size=2, verbose=0)
    assert found.shape == (3, 3, 16)
    for place, part in enumerate(texts):
        np.testing.assert_allclose(found[:, place], task.predict(part, verbose=0), atol=1e-5)


def test_an_epoch_has_every_row_once_and_no_other():
    dataset = embedder().make_dataset((ENGLISH * 3, ENGLISH[::-1] * 3), batch_size=5, shuffle=True)
    batches = [dataset[place] for place in range(len(dataset))]
    assert sorted(len(scores) for _, scores in batches) == [2, 5, 5]
    rows = np.concatenate([x["padding_mask"].sum(axis=-1) for x, _ in batches])
    lengths = [len(ids) for ids in embedder().tokenizer.encode_batch(ENGLISH)]
    pairs = list(zip(lengths, lengths[::-1], strict=True)) * 3
    assert sorted(map(tuple, rows.tolist())) == sorted(pairs)


def test_it_learns_which_texts_belong_together():
    task = embedder()
    task.compile(keras.optimizers.Adam(0.01))
    pairs = (ANCHORS, POSITIVES)
    other = (ENGLISH[:3], [f"{text} nie" for text in GERMAN])
    seen = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    history = task.fit(
        pairs, batch_size=3, epochs=8, verbose=0, seed=0, validation_data=(other,),
        callbacks=[callback], sample_weight=np.ones(3),
    ).history  # fmt: skip
    assert history["loss"][-1] < history["loss"][0] / 2
    assert len(history["val_loss"]) == len(seen) == 8
    assert task.evaluate(pairs, verbose=0) < history["loss"][0]
    anchors, positives = np.swapaxes(task.predict(pairs, verbose=0), 0, 1)
    assert (np.argmax(anchors @ positives.T, axis=1) == np.arange(3)).all()


def test_texts_that_must_repeat_in_a_batch_are_told(caplog):
    task = embedder()
    texts = (ENGLISH[:2] * 4, GERMAN[:2] * 4)
    task.compile(loss=kt.training.TripletLoss())
    task.make_dataset((*texts, ENGLISH[2:] * 4))  # of its own row alone
    task.compile(loss=MultipleNegativesRankingLoss())
    task.make_dataset(texts, batch_size=2)
    assert not caplog.text
    task.make_dataset(texts, batch_size=4)
    assert "Only 2 of 8 texts differ, fewer than the 4 rows of a batch." in caplog.text


def test_data_sets_frames_adapters_and_parts_for_validation():
    datasets = pytest.importorskip("datasets")
    task = embedder()
    task.enable_lora(rank=2)
    columns = {"anchor": ANCHORS * 2, "positive": POSITIVES * 2, "negative": NEGATIVES * 2}
    rows = datasets.Dataset.from_dict(columns)
    fitted = (rows, rows.to_iterable_dataset(), rows.to_pandas())
    before = task.predict(ENGLISH, verbose=0)
    for data in fitted:
        task.fit(data, batch_size=3, verbose=0)
    assert np.abs(task.predict(ENGLISH, verbose=0) - before).max() > 0
    task.compile(loss="cosent")
    scored = datasets.Dataset.from_dict(
        {"sentence1": ANCHORS, "sentence2": POSITIVES, "score": [0.1, 0.5, 0.9]}
    )
    task.fit(scored, verbose=0)
    history = task.fit((ANCHORS * 2, POSITIVES * 2), [0.1, 0.5] * 3, verbose=0,
                       validation_split=0.5, batch_tokens=64).history  # fmt: skip
    assert np.isfinite(history["val_loss"]).all()
    assert task.train_on_batch((ANCHORS, POSITIVES), np.array([0.1, 0.5, 0.9])) > 0


@pytest.mark.each_backend
def test_in_half_precision(tmp_path):
    embedder(dense=[{"units": 6}]).save_to_preset(tmp_path / "preset")
    task = kt.TextEmbedder.from_preset(tmp_path / "preset", dtype="mixed_bfloat16")
    task.compile(loss=MultipleNegativesRankingLoss(matryoshka_dims=[6, 3]))
    loss = task.fit((ANCHORS, POSITIVES), verbose=0).history["loss"][0]
    assert np.isfinite(loss)
    task.save(tmp_path / "task.keras")
    again = keras.models.load_model(tmp_path / "task.keras")
    assert again.loss.matryoshka_dims == [6, 3]
    np.testing.assert_array_equal(
        again.predict(ENGLISH, verbose=0), task.predict(ENGLISH, verbose=0)
    )


def test_what_cannot_be_meant_says_what_to_do():
    task = embedder()
    for given, message in (
        ((ENGLISH,), r"learns from a tuple of lists of texts, received .*fit\(\(anchors, positi"),
        (((ENGLISH,),), "A tuple must have two or more lists of texts"),
        (((ENGLISH, GERMAN),), r"`x\[0\]` has 4 texts and `x\[1\]` 3"),
        (((ENGLISH, "text"),), r"`x\[1\]` must be a list of strings, received one string"),
        (((ENGLISH, ENGLISH), [1.0] * 4), 'takes no scores, .*compile with loss="cosent"'),
        (({"token_ids": np.ones((2, 3), "int32")}, np.ones(2)), "takes the vectors of 2 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(*given, verbose=0)
    with pytest.raises(ValueError, match="`pack_length` needs single texts"):
        task.fit((ENGLISH, ENGLISH), pack_length=16)
    with pytest.raises(ValueError, match="no loss 'cosnt'. Did you mean 'cosent'"):
        task.compile(loss="cosnt")
    with pytest.raises(ValueError, match="has 32, but the vectors have only 16 numbers"):
        task.compile(loss=MultipleNegativesRankingLoss(matryoshka_dims=[32]))
    task.compile(loss="cosine_similarity")
    with pytest.raises(ValueError, match="learns from scores: give `y`"):
        task.fit((ENGLISH, ENGLISH))
    with pytest.raises(ValueError, match="takes the vectors of 2 texts a row"):
        task.fit((ENGLISH, ENGLISH, ENGLISH), [1.0] * 4, verbose=0)
    for wrong, message in (
        ({"dense": [{"unit": 3}]}, r"`dense\[0\]` must be a dict with `units`"),
        ({"dense": [{"units": 3, "activation": "tan"}]}, "Unknown activation 'tan'"),
        ({"prompts": ["query: "]}, "`prompts` must be a dict of texts by name"),
        ({"default_prompt_name": "query"}, "no prompt 'query', it has none. Give `prompts`"),
    ):
        with pytest.raises(ValueError, match=message):
            embedder(**wrong)


def test_it_learns_from_labels_of_single_texts():
    task = embedder()
    loss = BatchHardTripletLoss(margin=0.5)
    task.compile(keras.optimizers.Adam(1e-2), loss)
    texts, labels = [*ENGLISH, *GERMAN], ["en"] * 4 + ["de"] * 3
    vectors = task.predict(texts, verbose=0)
    expected = float(loss(np.array([0] * 4 + [1] * 3), vectors))
    assert task.evaluate(texts, labels, verbose=0) == pytest.approx(expected, rel=1e-4)
    stream = [(texts[:4], labels[:4]), (texts[4:], labels[4:])]
    assert np.isfinite(task.evaluate(iter(stream), verbose=0))
    weights = [1.0] * 6 + [0.0]
    options = {"epochs": 20, "seed": 0, "verbose": 0, "sample_weight": weights}
    task.fit(texts, labels, validation_data=(texts, labels), **options)
    assert task.evaluate(texts, labels, sample_weight=weights, verbose=0) < expected / 2
    for given, message in (
        ((texts,), r"learns from single texts and their labels: give `y`"),
        (((ENGLISH, ENGLISH), labels[:4]), r"call fit\(texts, labels\) with a list of texts"),
        ((texts, labels[:3]), "`y` must be one label a text, 7 in all"),
        ((texts, [*labels[:6], None]), r"`y\[6\]` is None: a label is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(*given, verbose=0)
    task.compile(loss="cosent")
    with pytest.raises(ValueError, match='labels compile\\(loss="batch_hard_triplet"'):
        task.fit(texts, labels)
