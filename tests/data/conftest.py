"""Shared code of the tests of token stores: rows, and an encoder that counts its calls."""

import json

import pytest

from keras_transformer.data.token_store import fingerprint, tokenize
from tests.tasks.common import tokenizer

LABELS = ["good", "bad", "neither"]
ROWS = [
    {"text": f"a man rides a bike number {n} " * (n % 4 + 1), "label": LABELS[n % 3]}
    for n in range(9000)
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


class Encoder:
    """Encodes with a tokenizer, and counts the calls."""

    def __init__(self, words=None):
        self.words = words or tokenizer()
        self.calls = 0

    def __call__(self, columns, place):
        self.calls += 1
        ids, segments = self.words.encode_batch_with_segments(*columns)
        return {"ids": ids, "segments": segments}

    def run(self, records, recipe=None, **options):
        recipe = recipe or {"tokenizer": fingerprint(self.words)}
        return tokenize(records, self, recipe, {"ids": "uint16", "segments": "uint8"}, **options)


def stores(cache):
    return [path for path in cache.iterdir() if path.name != "digests"]
