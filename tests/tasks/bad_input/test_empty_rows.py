"""Rows that have nothing to say: refused with their row, or they count for nothing."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.layers.normalization import unit_vectors
from tests.tasks import audio, duals, images
from tests.tasks.bad_input.conftest import (
    check,
    masked_model,
    question_answerer,
    token_classifier,
)
from tests.tasks.common import ENGLISH, classifier, language_model, translator
from tests.tasks.test_image_to_text import task as captioner
from tests.tasks.test_text_embedder import embedder

pytestmark = pytest.mark.one_backend

NOTHING = ["", "  ", " \n\t", "\u200d"]  # the last is dropped by WordPiece's normalizer
# Of a task: rows with nothing in the second, and targets.
TASKS = {
    "classifier": (lambda: classifier(num_classes=2), lambda n: ["dull", n], [0, 1]),
    "pairs": (lambda: classifier(num_classes=2), lambda n: (["dull", n], ["dull", n]), [0, 1]),
    "words": (token_classifier, lambda n: [["dull"], [n]], [["O"], ["O"]]),
    "spans": (token_classifier, lambda n: ["dull", n], [[], []]),
    "embedder": (embedder, lambda n: (["dull", "dull"], ["dull", n]), None),
    "answerer": (question_answerer, lambda n: (["who ?"] * 2, ["dull", n]), [None, None]),
}


@pytest.mark.parametrize("name", TASKS)
def test_texts_that_say_nothing(name):
    make, rows, y = TASKS[name]
    task = make()
    for nothing in NOTHING:
        x = rows(nothing)
        for verb in (task.fit, task.evaluate):
            check(r"\[1\]|pair 1", verb, x, y, verbose=0)
        if not (name == "embedder" and isinstance(x, tuple)):
            check(r"\[1\]|pair 1", task.predict, x, verbose=0)
    if name == "embedder":
        check(r"`x\[1\]` is empty", task.predict, ["dull", ""], verbose=0)
        check(r"`x\[0\]` is empty", task.encode, "")


def test_texts_of_language_models():
    lm, seq2seq = language_model(template="start_end"), translator()
    for nothing in NOTHING[:3]:
        check(r"`x\[1\]` is empty: ", lm.fit, ["dull", nothing])
        check(r"`x\[1\]`, the source, is empty", seq2seq.fit, ["dull", nothing], ["dull"] * 2)
        check(r"`x\[1\]`, the target, is empty", seq2seq.evaluate, ["dull"] * 2, ["dull", nothing])
    masked = masked_model()
    for texts in (["", ""], [" ", "\u200d"], ["[UNK]", "[UNK] [UNK]"]):
        for verb in (masked.fit, masked.evaluate):
            check("`x` has no token that can be masked", verb, texts, verbose=0)
    _, _, weights = masked.make_dataset(["dull", ""])[0]
    assert sorted(weights.sum(axis=1).tolist()) == [0, 1]


def test_rows_of_padding():
    task = classifier(num_classes=2)
    x = {"token_ids": np.array([[2, 5, 3], [2, 6, 3]]), "padding_mask": np.ones((2, 3), bool)}
    x["padding_mask"][1] = False
    for verb in (task.fit, task.evaluate):
        check(r"`padding_mask\[1\]` is False everywhere", verb, x, np.array([0, 1]), verbose=0)
    weights = np.array([1.0, 0.0])
    assert np.isfinite(task.evaluate(x, np.array([0, 1]), sample_weight=weights, verbose=0)).all()


@pytest.mark.each_backend
@pytest.mark.parametrize("loss", ["multiple_negatives_ranking", "cosine_similarity", "cosent"])
def test_vectors_of_zeros_have_no_gradient(loss):
    """As a row that is not there: batches of a data set are not looked into."""
    task = embedder()
    task.compile(keras.optimizers.SGD(0.1), loss)
    texts = (ENGLISH[:3], ENGLISH[1:])
    x, *_ = task.make_dataset(texts, max_buckets=1)[0]
    x["padding_mask"][1, 1] = False  # of which the mean is 0
    scores = np.array([0.1, 0.9, 0.5], "float32")
    task.fit(iter([(x, scores)]), verbose=0)
    assert all(np.isfinite(keras.ops.convert_to_numpy(w)).all() for w in task.weights)


@pytest.mark.each_backend
def test_unit_vectors():
    vectors = np.array([[3.0, 4.0], [0.0, 0.0], [1e-30, 0.0]], "float32")
    found = keras.ops.convert_to_numpy(unit_vectors(keras.ops.convert_to_tensor(vectors)))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [0, 0]], atol=1e-6)
    expected = keras.ops.convert_to_numpy(keras.ops.normalize(vectors[:1]))
    np.testing.assert_array_equal(found[:1], expected)


def test_data_sets_without_anything():
    task = classifier(num_classes=2)

    class Nothing(keras.utils.PyDataset):
        def __len__(self):
            return 0

    for data in (iter([]), (x for x in []), Nothing()):
        check("The data is empty", task.fit, data)
    check("`validation_data`: The data is empty", task.fit, ENGLISH, [0, 1, 0, 1],
          validation_data=iter([]))  # fmt: skip
    for verb in (task.evaluate, task.predict, language_model().fit, question_answerer().fit):
        check("The data is empty", verb, iter([]))


SILENT = [np.zeros(1900, "float32"), np.full(1500, 0.25, "float32")]
BLANK = [np.zeros((12, 16, 3), "uint8"), np.full((12, 16, 3), 255, "uint8")]
# Silence and blank pages are classes like others, and have captions.
ALIKE = {
    "frames": (lambda: audio.classifier(), SILENT, ["low", "high"]),
    "waveform": (lambda: waveforms(), SILENT, ["low", "high"]),
    "samples": (lambda: waveforms(norm="layer"), SILENT, ["low", "high"]),
    "patches": (lambda: images.classifier(), BLANK, ["dark", "bright"]),
    "convolutions": (
        lambda: images.classifier(images.convolutions()), BLANK, ["dark", "bright"]
    ),
    "captions": (lambda: captioner(), BLANK, ["a dark square", "a bright square"]),
    "pairs": (lambda: duals.embedder(), (BLANK, ["dark", "bright"]), None),
}  # fmt: skip


def waveforms(**values):
    backbone = kt.models.Encoder(audio.waveform(**values))
    processor = kt.AudioProcessor("waveform", sampling_rate=audio.RATE)
    return kt.AudioClassifier(backbone, processor, labels=audio.LABELS)


@pytest.mark.each_backend
def test_the_norm_of_silence_is_a_number():
    test_silence_and_blank_images_are_numbers("waveform")


@pytest.mark.parametrize("name", ALIKE)
def test_silence_and_blank_images_are_numbers(name):
    make, x, y = ALIKE[name]
    task = make()
    task.compile(keras.optimizers.SGD(0.1))  # a gradient that is NaN makes the weights NaN
    loss = task.train_on_batch(x, y)
    assert np.isfinite(np.ravel(keras.tree.map_structure(float, loss))).all()
    for weights in task.trainable_variables:
        assert np.isfinite(keras.ops.convert_to_numpy(weights)).all(), weights.path
