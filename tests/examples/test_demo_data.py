"""The sentences of the demo: all there, balanced, different, not told apart by one word."""

import re
from collections import Counter
from itertools import pairwise
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
    """Kotzias et al. 2015 have 500 of each; four of the 1,000 are there twice."""
    assert Counter(label for _, label in TRAIN) == {0: 372, 1: 374}
    assert Counter(label for _, label in TEST) == {0: 125, 1: 125}


def test_shuffled():
    labels = [label for _, label in TRAIN]
    changes = sum(a != b for a, b in pairwise(labels))
    assert 330 < changes < 420  # 373 expected of a random order


def test_no_text_twice():
    texts = [text for text, _ in TRAIN + TEST]
    assert len(set(texts)) == len(texts) == 996


def test_no_single_word_tells_the_label():
    train, test = ([(words(text), label) for text, label in rows] for rows in (TRAIN, TEST))

    def accuracy(rows, word, label_with):
        hits = sum((label_with if word in found else 1 - label_with) == y for found, y in rows)
        return hits / len(rows)

    vocabulary = frozenset().union(*(found for found, _ in train))
    rules = [(word, label) for word in sorted(vocabulary) for label in (0, 1)]
    best = max(rules, key=lambda rule: accuracy(train, *rule))
    assert accuracy(train, *best) < 0.65
    assert accuracy(test, *best) < 0.65
