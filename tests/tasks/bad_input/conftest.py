"""Shared code of tests of bad input: small tasks, good arrays, and checks of error messages."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tasks.common import classifier, config, language_model, tokenizer, translator

NAN, INF = float("nan"), float("inf")
TEXTS = ["a warm and funny film", "dull", "never dull"]
IDS = np.array([[2, 5, 3], [2, 6, 3]])
GOOD = {"token_ids": IDS, "padding_mask": np.ones((2, 3), bool)}


def token_classifier():
    words = tokenizer(lowercase=True)
    encoder = kt.models.Encoder(config("encoder", words, max_sequence_length=64))
    return kt.TokenClassifier(encoder, words, labels=["O", "B-PER", "I-PER"])


def question_answerer():
    words = tokenizer(lowercase=True)
    encoder = kt.models.Encoder(config("encoder", words, max_sequence_length=64))
    return kt.QuestionAnswerer(encoder, words)


def masked_model():
    words = tokenizer(lowercase=True)
    return kt.MaskedLM(kt.models.Encoder(config("encoder", words)), words)


def learned(**values):
    """An encoder with learned positions for 8 tokens and two segments."""
    sizes = {"position": "learned", "max_sequence_length": 8, "segment_vocabulary_size": 2}
    return kt.models.Encoder(config("encoder", tokenizer(lowercase=True), **{**sizes, **values}))


def check(message, function, *args, **kwargs):
    with pytest.raises(ValueError, match=message) as error:
        function(*args, **kwargs)
    text = str(error.value)
    assert (len(text) < 600 and text.isprintable()) or "\n" in text
    text.encode()


def numpy(x):
    return keras.ops.convert_to_numpy(x)


@pytest.fixture(scope="module")
def task():
    return classifier(num_classes=3)


@pytest.fixture(scope="module")
def masked():
    return masked_model()


@pytest.fixture(scope="module")
def mt():
    return translator()


@pytest.fixture(scope="module")
def named():
    return classifier(labels=["bad", "good", "mixed"])


@pytest.fixture(scope="module")
def words_task():
    return token_classifier()


@pytest.fixture(scope="module")
def answerer():
    return question_answerer()


@pytest.fixture(scope="module")
def lm():
    return language_model()
