"""The store on disk: the ids of all texts at once, made once, whole or not at all."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data import BucketedDataset, read
from keras_transformer.data.token_store import fingerprint
from tests.data.conftest import LABELS, ROWS, Encoder, stores
from tests.tasks.common import tokenizer

pyarrow = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.backend_independent


def test_ids_are_those_of_all_texts_at_once(path, cache):
    encoder = Encoder()
    stored = encoder.run(read(path, y="label", cache=cache), with_labels=True)
    assert encoder.calls >= 3  # chunks
    expected = tokenizer().encode_batch([row["text"] for row in ROWS])
    assert [row.tolist() for row in stored.columns["ids"]] == expected
    assert stored.columns["ids"].ids.dtype == np.uint16
    assert [len(row) for row in stored.columns["segments"]] == list(map(len, expected))
    assert stored.labels == LABELS
    assert [stored.labels[n] for n in stored.label_numbers] == [row["label"] for row in ROWS]
    # On disk: what there is in memory of the ids is the map of a file.
    assert stored.columns["ids"].ids.nbytes <= stores(cache)[0].stat().st_size
    assert not stored.columns["ids"].ids.flags.owndata
    assert pyarrow.total_allocated_bytes() < 2**16


def test_a_store_is_a_file_of_datasets(path, cache):
    datasets = pytest.importorskip("datasets")
    stored = Encoder().run(read(path, y="label", cache=cache), with_labels=True)
    data = datasets.Dataset.from_file(str(stores(cache)[0]))
    assert data.column_names == ["ids", "segments", "label"] and len(data) == len(ROWS)
    assert data[8999]["ids"] == stored.columns["ids"][8999].tolist()
    assert list(data["label"]) == stored.label_numbers.tolist()


def test_pairs(path, cache):
    stored = Encoder().run(read(path, x=("text", "label"), cache=cache))
    first, second = ([row[name] for row in ROWS] for name in ("text", "label"))
    ids, segments = tokenizer().encode_batch_with_segments(first, second)
    assert [row.tolist() for row in stored.columns["ids"]] == ids
    assert [row.tolist() for row in stored.columns["segments"]] == segments


def test_batches_are_those_of_lists(path, cache):
    def make_batch(arrays, masks):
        return arrays["ids"], masks["ids"]

    options = {"shuffle": True, "seed": 3, "batch_tokens": 512, "max_length": 30}
    stored = Encoder().run(read(path, cache=cache)).columns["ids"]
    lists = tokenizer().encode_batch([row["text"] for row in ROWS])
    ours = BucketedDataset({"ids": stored}, make_batch, **options)
    theirs = BucketedDataset({"ids": lists}, make_batch, **options)
    assert len(ours) == len(theirs) > 100
    for epoch in (0, 5):
        ours.epoch = theirs.epoch = epoch
        for index in (0, 1, 57, len(ours) - 1):  # any batch, in any order: nothing is gone through
            for one, two in zip(ours[index], theirs[index], strict=True):
                assert one.dtype == two.dtype
                np.testing.assert_array_equal(one, two)


def test_a_store_is_found_again(path, cache):
    first = Encoder()
    first.run(read(path, cache=cache))
    again = Encoder()
    moved = path.rename(path.with_name("moved.jsonl"))
    stored = again.run(read(moved, cache=cache))
    assert first.calls > 0 and again.calls == 0
    assert len(stored.columns["ids"]) == len(ROWS) and len(stores(cache)) == 1


@pytest.mark.parametrize("change", ["content", "column", "recipe", "tokenizer", "labels"])
def test_a_store_is_of_one_content_and_recipe(change, path, cache):
    Encoder().run(read(path, cache=cache))
    options, column, recipe, words = {}, {}, None, tokenizer()
    if change == "content":
        path.write_text(path.read_text().replace("rides", "rode", 1))
    elif change == "column":
        column = {"x": "label"}
    elif change == "recipe":
        recipe = {"tokenizer": fingerprint(words), "max_length": 8}
    elif change == "tokenizer":
        words = tokenizer(lowercase=True)
    else:
        column, options = {"y": "label"}, {"with_labels": True}
    other = Encoder(words)
    other.run(read(path, cache=cache, **column), recipe, **options)
    assert other.calls > 0 and len(stores(cache)) == 2


def test_fingerprint_is_of_all_that_ids_depend_on():
    texts = ["a man rides a bike ."] * 2
    options = ({}, {"lowercase": True}, {"template": "none"}, {"add_prefix_space": False})
    prints = [fingerprint(kt.Tokenizer.train(texts, vocabulary_size=300, **o)) for o in options]
    assert len(set(prints)) == 4
    assert fingerprint(kt.Tokenizer.train(texts, vocabulary_size=300)) == prints[0]


@pytest.mark.parametrize("damage", ["cut", "end", "gone", "offsets", "empty"])
def test_a_damaged_store_is_made_anew(damage, path, cache):
    # A mapped file must not be cut while it is looked at: what is expected is of memory.
    expected = tokenizer().encode_batch([row["text"] for row in ROWS])
    Encoder().run(read(path, cache=cache))
    (store,) = stores(cache)
    content = store.read_bytes()
    store.unlink()
    if damage == "cut":
        store.write_bytes(content[: len(content) // 2])
    elif damage == "end":  # the batch that says how many rows there are, and no more
        store.write_bytes(content[: content.rindex(b'"rows"')])
    elif damage == "offsets":  # of the right size
        lengths = np.cumsum([0, *map(len, expected[:3])]).astype("int32").tobytes()
        place = content.index(lengths)
        store.write_bytes(content[:place] + b"\xff" * 8 + content[place + 8 :])
    elif damage == "empty":
        store.write_bytes(b"")
    again = Encoder()
    stored = again.run(read(path, cache=cache))
    assert again.calls > 0 and [row.tolist() for row in stored.columns["ids"]] == expected
    assert stores(cache) == [store]


def test_nothing_half_written_stays(path, cache):
    with open(path, "a") as file:
        file.write('{"text": " ", "label": "good"}\n')
    with pytest.raises(ValueError, match=r"rows.jsonl, line 9001: the column 'text' is empty"):
        Encoder().run(read(path, cache=cache))
    assert stores(cache) == []


def test_a_file_that_changes_while_it_is_tokenized(path, cache):
    class Meddler(Encoder):
        def __call__(self, columns, place):
            if self.calls == 1 and columns[0]:
                with open(path, "a") as file:
                    file.write('{"text": "more"}\n')
            return super().__call__(columns, place)

    size = path.stat().st_size
    with pytest.raises(ValueError, match=f"rows.jsonl changed while it was read: it had {size:,}"):
        Meddler().run(read(path, cache=cache))
    assert stores(cache) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's list of open files")
def test_a_full_disk(path, cache, monkeypatch):
    fsync = os.fsync

    def full(descriptor):
        if str(cache) not in os.readlink(f"/proc/self/fd/{descriptor}"):
            return fsync(descriptor)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left.*{re.escape(str(cache))}.*cache=") as caught:
        Encoder().run(read(path, cache=cache))
    assert caught.value.errno == 28 and stores(cache) == []


def test_a_cache_that_cannot_be_written(path):
    with pytest.raises(OSError, match=r"tokens are written into .*rows.jsonl. Name another"):
        Encoder().run(read(path, cache=path))
