"""Tiny tasks of every kind with data for a few steps of training."""

import keras_transformer as kt
from tests.tasks import audio, images, series
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
from tests.tasks.test_text_embedder import embedder

LABELS = [1, 0, 1, 0]


def texts(**values):
    words = tokenizer(lowercase=True)
    backbone = kt.models.Encoder(config("encoder", words, max_sequence_length=64, **values))
    return randomized(kt.TextClassifier(backbone, words, num_classes=2))


def masked():
    words = tokenizer(lowercase=True)
    backbone = kt.models.Encoder(config("encoder", words, max_sequence_length=64))
    return randomized(kt.MaskedLM(backbone, words))


def answers():
    return kt.QuestionAnswerer(classifier(num_classes=2).backbone, tokenizer())


def disentangled():
    options = {"disentangled": "shared", "relative_max_distance": 8, "relative_num_buckets": 8}
    return texts(position="none", **options)


# By name: how the task is made, what it learns from, and options of `fit`.
KINDS = {
    "classifier": (texts, (ENGLISH, LABELS), {}),
    "packed": (
        lambda: language_model(max_sequence_length=32),
        (ENGLISH * 3,),
        {"pack_length": 32},
    ),
    "translator": (translator, ((ENGLISH[:3], GERMAN),), {"steps": 10}),
    "masked": (masked, (ENGLISH,), {}),
    "answers": (answers, ((["who ?"] * 4, ["a man"] * 4), [(0, "a")] * 4), {}),
    "embedder": (embedder, ((ENGLISH[:3], GERMAN),), {}),
    "images": (images.classifier, images.pictures(8), {"steps": 10}),
    "sound": (audio.classifier, audio.recordings(8), {"steps": 10}),
    "series": (series.forecaster, (series.waves(60),), {"steps": 2}),  # of many windows
    "experts": (
        lambda: language_model(num_experts=4, experts_per_token=2, expert_dim=8),
        (ENGLISH,),
        {},
    ),
    "window and rotary": (
        lambda: language_model(window=4, position="rotary", num_key_value_heads=1),
        (ENGLISH,),
        {},
    ),
    "relative": (lambda: translator(position="relative"), ((ENGLISH[:3], GERMAN),), {}),
    "disentangled": (disentangled, (ENGLISH, LABELS), {}),
    "global": (lambda: texts(window=4, global_tokens=1), (ENGLISH, LABELS), {}),
}
# One for each way through the layers; the others are of the thorough run.
FEW = ("classifier", "packed", "translator", "images", "sound", "series", "experts")
