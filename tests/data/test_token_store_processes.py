"""Stores of tokens that several processes write, or one that is killed, and their memory."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import keras_transformer as kt
from keras_transformer.data import read
from keras_transformer.data import token_store as store_module
from keras_transformer.data.token_store import fingerprint
from tests.data.conftest import ROWS, Encoder, stores

pytest.importorskip("pyarrow")

pytestmark = pytest.mark.backend_independent

ROOT = Path(__file__).parents[2]

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
    """A store needs the memory of a few chunks; lists need the memory of all tokens."""
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
