"""Shared code of the tests of tasks: tiny tasks with their own tokenizers."""

import functools
import json
import tempfile
from pathlib import Path

import keras
import numpy as np

import keras_transformer as kt
from tests.generation.common import compiled

ENGLISH = [
    "a warm and funny film , from start to end",
    "never dull",
    "a man rides a bike .",
    "two dogs run on the grass .",
]
GERMAN = ["ein mann fährt fahrrad .", "zwei hunde laufen auf dem gras .", "nie langweilig"]


# A vocabulary of WordPiece, and one of lowercased texts, as `tokenizer` learned them once: equally
# frequent pieces come in any order, so that a run would have other ids than the one before.
WORDPIECES = Path(__file__).with_name("wordpieces.txt").read_text().splitlines()


@functools.cache
def tokenizer(kind="wordpiece", **options):
    size = {"wordpiece": 120, "bpe": 330}[kind]
    found = kt.Tokenizer.train([*ENGLISH, *GERMAN] * 4, kind, vocabulary_size=size, **options)
    if kind == "bpe":
        return found
    pieces = WORDPIECES[options.get("lowercase", False)].split()
    with tempfile.TemporaryDirectory() as folder:
        found.save(folder)
        path = Path(folder) / "tokenizer.json"
        content = json.loads(path.read_text())
        content["model"]["vocab"] = {piece: place for place, piece in enumerate(pieces)}
        path.write_text(json.dumps(content))
        return kt.Tokenizer.from_files(folder)


def config(kind, words, **values):
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 24}
    return kt.TransformerConfig(
        kind=kind, vocabulary_size=words.vocabulary_size, **{**sizes, **values}
    )


def randomized(task, seed=0):
    """The task with weights that make its outputs differ from text to text."""
    random = np.random.default_rng(seed)
    for variable in task.weights:
        offset = 1.0 if variable.name in ("gamma", "scale") else 0.0
        variable.assign(offset + random.normal(size=variable.shape, scale=0.3))
    return task


def classifier(seed=0, **options):
    words = tokenizer(lowercase=True)
    values = config("encoder", words, segment_vocabulary_size=2, max_sequence_length=64)
    return randomized(kt.TextClassifier(kt.models.Encoder(values), words, **options), seed)


def translator(seed=0, **values):
    words = tokenizer("bpe", add_prefix_space=True)
    backbone = kt.models.Seq2Seq(config("seq2seq", words, **values))
    return randomized(kt.Seq2SeqLM(backbone, words), seed)


def language_model(seed=0, template="end", **values):
    words = tokenizer("bpe", add_prefix_space=True, template=template)
    backbone = kt.models.Decoder(config("decoder", words, **values))
    return randomized(kt.CausalLM(backbone, words), seed)


def predictions_alone(task, texts):
    """The outputs of each text in a call of its own, without padding."""
    rows = [np.array([row], "int32") for row in task.tokenizer.encode_batch(texts)]
    outputs = compiled(lambda row: task({"token_ids": row}), task)  # else each operation is
    return np.concatenate([keras.ops.convert_to_numpy(outputs(row)) for row in rows])
