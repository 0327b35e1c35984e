"""`compile(pack_weights=True)`: `predict` gives the same, traced on PyTorch or as it is."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tasks import audio, images, series
from tests.tasks.common import ENGLISH, GERMAN, classifier, config, randomized, tokenizer

pytestmark = pytest.mark.each_backend
ON_TORCH = keras.backend.backend() == "torch"
MIXED = [*ENGLISH, "a", "a man rides a bike . " * 3]  # of several lengths


def embedder(dtype=None):
    words = tokenizer(lowercase=True)
    backbone = kt.models.Encoder(config("encoder", words), dtype=dtype)
    return randomized(kt.TextEmbedder(backbone, words))


def outputs(task, x):
    return [np.asarray(a, "float32") for a in keras.tree.flatten(task.predict(x, verbose=0))]


def check(task, x, atol=1e-5):
    """Whether packed weights give what the weights as they are gave, and are traced once."""
    before = outputs(task, x)
    task.compile(pack_weights=True)
    for _ in range(2):
        for one, other in zip(outputs(task, x), before, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=atol)
    assert (task._traced is not None) == ON_TORCH
    task.compile(pack_weights=False)
    for one, other in zip(outputs(task, x), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert task._traced is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_vectors(dtype):
    task = embedder(None if dtype == "int8" else dtype)
    if dtype == "int8":
        task.quantize("int8")
    # A number of int8 or bfloat16 that is rounded the other way.
    check(task, MIXED, atol=1e-5 if dtype == "float32" else 0.02)


@pytest.mark.parametrize("made", ["classifier", "images", "audio", "series", "answers", "masks"])
@pytest.mark.one_backend
def test_other_tasks(made):
    words = tokenizer(lowercase=True)
    encoder = kt.models.Encoder(config("encoder", words, segment_vocabulary_size=2))
    given = {"token_ids": np.array([[5, 6, 7, 8], [9, 3, 0, 0]], "int32")}
    given["padding_mask"] = given["token_ids"] > 0
    if made == "classifier":
        task, x = classifier(labels=["bad", "good"]), MIXED
    elif made == "images":
        task, x = images.classifier(), images.pictures(3)[0]
    elif made == "audio":
        task, x = audio.classifier(), audio.recordings(2)[0]
    elif made == "series":
        task, x = series.forecaster(), series.waves()
    else:
        task, x = (kt.QuestionAnswerer if made == "answers" else kt.MaskedLM)(encoder), given
    check(randomized(task), x)


@pytest.mark.parametrize("make", [None, kt.training.transformer_adam])
def test_a_batch_and_what_is_trained_behind_it(make):
    """An optimizer without a decay of weights changes each of them by one operation alone."""
    task = classifier(labels=["bad", "good"])
    if make is not None:
        task.compile(make(1e-3), task.loss)
    task.compile(pack_weights=True)
    rows, labels = [*ENGLISH, *GERMAN], [0] * len(ENGLISH) + [1] * len(GERMAN)
    before = task.predict(rows, verbose=0)
    np.testing.assert_allclose(task.predict_on_batch(rows), before, atol=1e-5)
    task.fit(rows, labels, verbose=0)
    after = task.predict(rows, verbose=0)
    assert np.abs(after - before).max() > 1e-4
    task.compile(pack_weights=False)
    np.testing.assert_allclose(after, task.predict(rows, verbose=0), atol=1e-5)


@pytest.mark.one_backend
def test_it_is_kept_and_checked():
    task = classifier(labels=["bad", "good"])
    with pytest.raises(ValueError, match="`pack_weights` must be True or False"):
        task.compile(pack_weights="yes")
    assert not task.pack_weights
    task.compile(pack_weights=True)
    task.compile("sgd")
    assert task.pack_weights
    again = keras.models.clone_model(task)
    again.compile(**task.compile_values())
    assert again.pack_weights
