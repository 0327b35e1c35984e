"""The texts of ListOps: values that another reading gives, lengths and shares as published."""

import importlib.util
import statistics
from pathlib import Path

import pytest

pytestmark = pytest.mark.backend_independent

FILE = Path(__file__).parents[2] / "examples" / "listops.py"


@pytest.fixture(scope="module")
def listops():
    spec = importlib.util.spec_from_file_location("listops", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def value(text):
    """Read from the left, with a stack: the other way round than they are made."""
    stack = [[]]
    operations = {
        "[MIN": min,
        "[MAX": max,
        "[SM": lambda numbers: sum(numbers) % 10,
        "[MED": lambda numbers: int(statistics.median(numbers)),
    }
    for symbol in text.split():
        if symbol in operations:
            stack.append([symbol])
        elif symbol == "]":
            operator, *numbers = stack.pop()
            assert 2 <= len(numbers) <= 10
            stack[-1].append(operations[operator](numbers))
        else:
            stack[-1].append(int(symbol))
    (found,) = stack.pop()
    assert not stack
    return found


def test_an_example_by_hand():
    assert value("[MAX 2 [MED 1 4 9 8 ] [MIN 4 7 ] 0 [SM 8 9 ] ]") == 7  # the median is 6.5, cut


def test_texts_and_values(listops):
    texts, labels = listops.examples(300, seed=1)
    assert list(map(value, texts)) == labels
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) > 500 and max(lengths) < 2000
    assert 900 < statistics.mean(lengths) < 1200  # 1,040 of many
    assert len(set(texts)) == 300 and set(" ".join(texts).split()) == set(listops.SYMBOLS)
    assert listops.examples(20, seed=1) == (texts[:20], labels[:20])
    assert not set(listops.examples(50, seed=2)[0]) & set(texts)


def test_short_texts(listops):
    texts, labels = listops.examples(300, seed=1, least=10, most=150, depth=7)
    assert list(map(value, texts)) == labels
    assert all(10 < len(text.split()) < 150 for text in texts)
    opened = [
        max(text[:i].count("[") - text[:i].count("]") for i in range(len(text))) for text in texts
    ]
    assert max(opened) == 3  # of ten levels the last four, the last of which is digits
