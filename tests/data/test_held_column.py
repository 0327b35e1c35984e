"""Columns of bytes that are read once: they come back in any order, from the disk."""

import concurrent.futures

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data.held_column import HeldColumn

pytestmark = pytest.mark.backend_independent


def test_values_come_back():
    column = HeldColumn()
    given = [b"abc", {"bytes": b"de", "path": None}, "a.png", None, b"", {"path": "b.png"}, 7]
    for value in given:
        column.append(value)
    expected = [b"abc", b"de", "a.png", None, b"", {"path": "b.png"}, 7]
    assert len(column) == 7 and list(column) == expected
    assert column[-1] == 7 and column[np.int64(1)] == b"de" and column[::2] == expected[::2]
    with pytest.raises(IndexError):
        column[7]


def test_threads_read_at_once():
    column, random = HeldColumn(), np.random.default_rng(0)
    given = [random.bytes(int(n)) for n in random.integers(1, 5000, 300)]
    for value in given:
        column.append(value)
    places = random.permutation(300).tolist() * 5
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(column.__getitem__, places))
    assert found == [given[i] for i in places]


def test_paths_are_from_the_folder_of_their_file(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("rows.csv", "a/more.csv"):
        (tmp_path / name).write_text("file,label\n1.png,x\n/abs/2.png,y\n")
    records = kt.data.read([tmp_path / "rows.csv", tmp_path / "a" / "more.csv"], "file", "label")
    paths, labels = map(list, records.held())
    wanted = [tmp_path / "1.png", "/abs/2.png", tmp_path / "a" / "1.png", "/abs/2.png"]
    assert paths == list(map(str, wanted)) and labels == ["x", "y"] * 2
