"""The sentences of the demo: enough, balanced, different, and not told apart by one word."""

import re
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path

import pytest

pytestmark = pytest.mark.backend_independent

FOLDER = Path(__file__).parents[2] / "examples" / "data"


def read(name):
    """The rows of a file as (text, label)."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    assert all(len(row) == 2 for row in rows)
    return [(text, int(label)) for text, label in rows]


TRAIN = read("reviews_train.tsv")
TEST = read("reviews_test.tsv")


def words(text):
    return frozenset(re.findall(r"[a-z']+", text.lower()))


def test_size_and_balance():
    assert Counter(label for _, label in TRAIN) == {0: 110, 1: 110}
    assert Counter(label for _, label in TEST) == {0: 40, 1: 40}


def test_shuffled():
    labels = [label for _, label in TRAIN]
    changes = sum(a != b for a, b in pairwise(labels))
    assert 90 < changes < 130  # 110 expected of a random order


def test_lengths_vary():
    lengths = [len(text.split()) for text, _ in TRAIN + TEST]
    assert min(lengths) >= 4
    assert max(lengths) <= 36
    assert sum(length <= 8 for length in lengths) >= 20
    assert sum(length >= 18 for length in lengths) >= 30


def test_no_text_twice_or_nearly():
    bags = [(words(text), text) for text, _ in TRAIN + TEST]
    for (first, a), (second, b) in combinations(bags, 2):
        overlap = len(first & second) / len(first | second)
        assert overlap <= 0.5, f"{a!r} and {b!r} share {overlap:.0%} of their words"


def test_no_single_word_tells_the_label():
    def accuracy(rows, word, label_with):
        hits = sum((label_with if word in words(text) else 1 - label_with) == y for text, y in rows)
        return hits / len(rows)

    vocabulary = frozenset().union(*(words(text) for text, _ in TRAIN))
    rules = [(word, label) for word in sorted(vocabulary) for label in (0, 1)]
    best = max(rules, key=lambda rule: accuracy(TRAIN, *rule))
    assert accuracy(TRAIN, *best) < 0.65
    assert accuracy(TEST, *best) < 0.65
