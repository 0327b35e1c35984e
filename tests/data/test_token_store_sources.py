"""Sources of a token store: labels and texts of every kind, and rows without a hash."""

import numpy as np
import pytest

from keras_transformer.data import read
from tests.data.conftest import LABELS, ROWS, Encoder, stores
from tests.tasks.common import tokenizer

pytest.importorskip("pyarrow")

pytestmark = pytest.mark.backend_independent


def test_labels_that_are_not_known(path, cache):
    def check(label):
        if label not in LABELS[:2]:
            raise ValueError(f"{label} is not known")

    records = read(path, y="label", cache=cache)
    encoder = Encoder()
    with pytest.raises(ValueError, match="rows.jsonl, line 3: neither is not known"):
        encoder.run(records, with_labels=True, check_label=check)
    assert encoder.calls == 0  # before the work
    encoder.run(records, with_labels=True)
    with pytest.raises(ValueError, match="rows.jsonl, line 3: neither is not known"):
        encoder.run(records, with_labels=True, check_label=check)  # of the store


def test_values_of_labels(cache):
    values = [1, "1", True, 0, "1"]
    rows = [{"text": "a film", "label": value} for value in values]
    stored = Encoder().run(read(rows, y="label", cache=cache), with_labels=True)
    assert [stored.labels[n] for n in stored.label_numbers] == [1, "1", 1, 0, "1"]
    for right in (0.5, ["good"]):
        rows[3]["label"] = right
        stored = Encoder().run(read(rows, y="label", cache=cache), with_labels=True)
        kept = tuple(right) if isinstance(right, list) else right
        assert stored.labels[stored.label_numbers[3]] == kept
    for wrong in (None, float("nan"), [None], {}):
        rows[3]["label"] = wrong
        with pytest.raises(ValueError, match="row 3 of the list: a label must be a string, a num"):
            Encoder().run(read(rows, y="label", cache=cache), with_labels=True)


def test_texts_that_are_none(cache):
    for wrong, message in (
        (None, "row 1 of the list: the column 'text' must be a text, but is None"),
        (7, "row 1 of the list: the column 'text' must be a text, but is 7 of type int"),
        ("", "row 1 of the list: the column 'text' is empty"),
        ("\ud800", "row 1 of the list: the text is not valid Unicode"),
    ):
        with pytest.raises(ValueError, match=message):
            Encoder().run(read([{"text": "a film"}, {"text": wrong}], cache=cache))
    with pytest.raises(ValueError, match="has no rows"):
        Encoder().run(read([{"text": "a"}][:0] or iter_nothing(), cache=cache))


class iter_nothing:
    def __iter__(self):
        return iter(())


def test_rows_are_the_content(cache):
    rows = [dict(row) for row in ROWS[:5000]]
    for expected_calls in (True, False):
        encoder = Encoder()
        encoder.run(read(rows, cache=cache))
        assert bool(encoder.calls > 1) == expected_calls
    rows[17]["text"] = "another film"
    stored = Encoder().run(read(rows, cache=cache))
    assert stored.columns["ids"][17].tolist() == tokenizer().encode("another film")
    assert len(stores(cache)) == 2


def test_rows_in_another_order_each_time(cache):
    class Shuffled:
        random = np.random.default_rng(0)

        def __iter__(self):
            return iter([ROWS[index] for index in self.random.permutation(50)])

    with pytest.warns(UserWarning, match="gives different rows each time"):
        stored = Encoder().run(read(Shuffled(), cache=cache))
    expected = sorted(tokenizer().encode_batch([row["text"] for row in ROWS[:50]]))
    assert sorted(row.tolist() for row in stored.columns["ids"]) == expected
