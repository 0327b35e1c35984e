"""Each process tokenizes a part of the texts, and makes its own rows of the batches of one."""

import socket

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.distribution.prepared import (
    OPTIONS,
    TEXTS,
    batches,
    make_task,
    of_kind,
    save_files,
    save_tokenizer,
    small_chunks,
    sources,
    trained,
)

pytestmark = [
    pytest.mark.each_backend,
    pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="one process of replicas"),
]
KINDS = ("list", "files", "table", "labels")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    save_tokenizer(folder)
    save_files(folder)
    return folder / "two", folder / "one"


@pytest.fixture(scope="module")
def two(results, folders):
    """Return what each of two processes prepares."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return results(*(["prepare", rank, address, folders[0]] for rank in range(2)))


@pytest.fixture(scope="module")
def whole(two, folders):
    """Return the batches that one process makes of each source."""
    task = make_task(folders[1].parent)
    classifier = make_task(
        folders[1].parent, kt.TextClassifier, labels=sorted({text[0] for text in TEXTS})
    )
    with small_chunks():
        return {
            name: of_kind(task, classifier, x).make_dataset(x, **OPTIONS)
            for name, x in sources(folders[1]).items()
        }


@pytest.mark.parametrize("kind", KINDS)
def test_each_text_is_tokenized_once(two, kind):
    counts = [found[kind]["encoded"] for found in two]
    assert sum(counts) == len(TEXTS) and min(counts) >= len(TEXTS) // 2 - 8


@pytest.mark.parametrize("kind", KINDS)
def test_shares_are_the_rows_of_the_batches_of_one(two, whole, kind):
    made = 0
    for place, (x, y, *weights) in enumerate(batches(whole[kind])):
        rows, shares = len(y), [found[kind]["batches"][place] for found in two]
        for share in shares:
            assert share[0].keys() == x.keys()
        for name, array in x.items():
            assert [*shares[0][0][name], *shares[1][0][name]][:rows] == array, name
        assert [*shares[0][1], *shares[1][1]][:rows] == y
        counted = np.concatenate([np.asarray(share[2]) for share in shares])
        assert len(counted) == rows + rows % 2 and not counted[rows:].any()
        if weights:  # of tokens
            np.testing.assert_array_equal(counted[:rows], weights[0])
        made += (rows + 1) // 2
    assert [found[kind]["made"] for found in two] == [made, made]


def test_the_store_is_that_of_one_process(two, whole, folders):
    of_two, of_one = (sorted((folder / "cache").glob("*.arrow")) for folder in folders)
    assert len(of_two) == 3
    assert [path.name for path in of_two] == [path.name for path in of_one]
    for two_wrote, one_wrote in zip(of_two, of_one, strict=True):
        assert two_wrote.read_bytes() == one_wrote.read_bytes()
    left = [path.name for path in (folders[0] / "cache").iterdir() if path.suffix != ".arrow"]
    assert left in ([], ["digests"])  # digests are kept of files that are not just written


def test_all_processes_raise_the_error_of_one(two):
    first, second = (found["errors"] for found in two)
    for errors in (first, second):
        assert "data.checksum: " in errors["other texts"]
    assert "`x[59]` is empty" in second["an empty text"]
    assert "Process 1 could not prepare its part of the data" in first["an empty text"]
    assert "`x[59]` is empty" in first["an empty text"]


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="JAX compiles for longer: see test_devices.py"
)
def test_epochs_of_processes_have_the_statistics_of_one(two, folders):
    one = trained(folders[1].parent, lambda task: task.make_dataset(TEXTS, **OPTIONS))
    assert len(one["loss"]) == 2 and len(one) == 2
    for found in two:
        for name, values in one.items():
            assert found["history"][name] == pytest.approx(values, rel=1e-5)
