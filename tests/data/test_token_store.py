"""The store on disk: the ids of all texts at once, made once, whole or not at all."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data import BucketedDataset, read
from keras_transformer.data import token_store as store_module
from keras_transformer.data.token_store import fingerprint, tokenize
from tests.tasks.common import tokenizer

pyarrow = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.backend_independent

LABELS = ["good", "bad", "neither"]
ROWS = [
    {"text": f"a man rides a bike number {n} " * (n % 4 + 1), "label": LABELS[n % 3]}
    for n in range(9000)
]
ROOT = Path(__file__).parents[2]


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


# Labels.


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
        ("\ud800", "row 1 of the list: no valid Unicode"),
    ):
        with pytest.raises(ValueError, match=message):
            Encoder().run(read([{"text": "a film"}, {"text": wrong}], cache=cache))
    with pytest.raises(ValueError, match="has no rows"):
        Encoder().run(read([{"text": "a"}][:0] or iter_nothing(), cache=cache))


class iter_nothing:
    def __iter__(self):
        return iter(())


# Sources without a hash of their own.


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

    with pytest.warns(UserWarning, match="gives other rows each time"):
        stored = Encoder().run(read(Shuffled(), cache=cache))
    expected = sorted(tokenizer().encode_batch([row["text"] for row in ROWS[:50]]))
    assert sorted(row.tolist() for row in stored.columns["ids"]) == expected


# Several processes, killed ones, and memory.

_RUN = """
import sys
import keras_transformer as kt
from keras_transformer.data.token_store import fingerprint, tokenize
path, cache = sys.argv[1:]
words = kt.Tokenizer.train(["a man rides a bike ."] * 2, vocabulary_size=300)

def encode(columns, place):
    return {"characters": [[ord(c) for c in text] for text in columns[0]]}

print(fingerprint(words), flush=True)
stored = tokenize(kt.data.read(path, cache=cache), encode, {}, {"characters": "uint8"})
rows = stored.columns["characters"]
print(len(rows), sum(int(block.sum()) for block in rows.blocks), flush=True)
"""


@pytest.fixture
def start(forks, tmp_path):
    """Starts `_RUN`."""
    errors = tmp_path / "stderr.txt"
    return lambda *paths: forks.start("-c", _RUN, *paths, cwd=ROOT, stderr=errors)


def test_processes_at_once(start, path, cache):
    processes = [start(path, cache) for _ in range(2)]
    printed = [process.communicate()[0].split() for process in processes]
    total = sum(sum(map(ord, row["text"])) for row in ROWS)
    same = fingerprint(kt.Tokenizer.train(["a man rides a bike ."] * 2, vocabulary_size=300))
    assert printed == [[same, str(len(ROWS)), str(total)]] * 2
    assert len(stores(cache)) == 1


def test_a_loser_writes_what_the_winner_wrote(path, cache, monkeypatch):
    """A process that finds no store, but one in its place when it is done."""
    winner = Encoder().run(read(path, cache=cache))
    load, found = store_module._load, []

    def miss_once(*args):
        found.append(load(*args))
        return None if len(found) == 1 else found[-1]

    monkeypatch.setattr(store_module, "_load", miss_once)
    (store,) = stores(cache)
    content = store.read_bytes()
    loser = Encoder()
    stored = loser.run(read(path, cache=cache))
    assert loser.calls > 0 and len(found) == 2
    assert stores(cache) == [store] and store.read_bytes() == content
    for one, two in zip(stored.columns["ids"], winner.columns["ids"], strict=True):
        assert one.tolist() == two.tolist()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_process_that_is_killed(start, path, cache):
    with open(path, "a") as file:
        file.writelines([json.dumps(ROWS[6]) + "\n"] * 100_000)
    process = start(path, cache)
    process.stdout.readline()
    deadline = time.monotonic() + 60
    while not any(p.stat().st_size for p in cache.glob(".*.saving/*")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.communicate()
    (left,) = stores(cache)
    assert left.name.endswith(".saving")
    Encoder().run(read([{"text": "b"}], cache=cache))
    assert not left.exists() and len(stores(cache)) == 1


_MEASURE = """
import re, sys
import datasets, pyarrow  # theirs
import keras_transformer as kt
from keras_transformer.data.token_store import tokenize

words = kt.Tokenizer.train(["a man rides a bike ."] * 2, vocabulary_size=300)
path, cache = sys.argv[1:]
encode = lambda columns, place: {"ids": words.encode_batch(*columns)}

def peak():  # of this program, in MB: `getrusage` counts what it was started from
    with open("/proc/self/status") as file:
        return int(re.search(r"VmHWM:\\s*(\\d+) kB", file.read())[1]) // 1024

with open(path) as file:  # What the library keeps of its work: threads, a cache of words.
    words.encode_batch([next(file) for _ in range(4000)])
before = peak()
rows = tokenize(kt.data.read(path, cache=cache), encode, {}, {"ids": "uint16"}).columns["ids"]
stored = peak() - before
with open(path) as file:
    whole = words.encode_batch(file.read().split("\\n")[:-1])
listed = peak() - before
assert len(rows) == len(whole) and rows[len(rows) - 1].tolist() == whole[-1]
print(stored, listed, rows.lengths.sum())
"""


def test_memory_does_not_grow_with_the_data(tmp_path, cache):
    """Of a store it is that of a few chunks; of lists that of all tokens."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's account of memory")
    path = tmp_path / "large.txt"
    path.write_text("a man rides a bike , two dogs run on the grass .\n" * 60_000)
    done = subprocess.run(  # a fork would have the peak of what it was forked from
        [sys.executable, "-c", _MEASURE, str(path), str(cache)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
    )
    stored, listed, tokens = map(int, done.stdout.split()[-3:])
    assert tokens == 60_000 * 35
    assert listed > tokens * 8 / 2**20  # the pointers alone
    assert stored < 100 and stored < listed / 4, (stored, listed)
