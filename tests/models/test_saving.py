"""Files of Keras appear whole or not at all, whatever is in the way."""

import errno
import itertools
import os
import resource
import subprocess
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.models import build_backbone

pytestmark = pytest.mark.one_backend

CONFIG = kt.TransformerConfig(
    kind="encoder", vocabulary_size=3000, hidden_dim=64, num_layers=1, num_heads=2,
    intermediate_dim=32,
)  # fmt: skip
X = {"token_ids": np.ones((4, 5), "int32"), "padding_mask": np.ones((4, 5), bool)}
Y = np.array([0, 1, 0, 1])


@pytest.fixture(scope="module")
def task():
    return kt.TextClassifier(build_backbone(CONFIG), num_classes=2)


def ways(task, folder):
    """Each way to write: its file, and what writes it."""
    checkpoint = keras.callbacks.ModelCheckpoint(folder / "c.keras")
    fit = {"verbose": 0}
    epochs = itertools.count(1)  # a run that is called again goes on
    run = kt.training.ResumableRun(folder / "run")
    return {
        "m.keras": lambda: task.save(folder / "m.keras"),
        "m.weights.h5": lambda: task.save_weights(folder / "m.weights.h5"),
        "b.weights.h5": lambda: task.backbone.save_weights(str(folder / "b.weights.h5")),
        "m.weights.json": lambda: task.save_weights(folder / "m.weights.json", max_shard_size=1),
        "unzipped": lambda: task.save(folder / "unzipped", zipped=False),
        "c.keras": lambda: task.fit(X, Y, callbacks=[checkpoint], **fit),
        "run": lambda: task.fit(X, Y, callbacks=[run], epochs=next(epochs), **fit),
        "preset": lambda: task.save_to_preset(folder / "preset"),
    }


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".lock" not in path.name
    }


class Limit:
    """A limit on the size of a file in this process, as `ulimit -f` sets it."""

    def __init__(self, size):
        self.size = size

    def __enter__(self):
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.before[1]))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.mark.parametrize("name", ways(None, Path()))
def test_a_failed_save_leaves_what_was_there(task, tmp_path, name):
    """Setrlimit(2): a write beyond the limit fails with EFBIG."""
    write = ways(task, tmp_path)[name]
    write()
    before = content(tmp_path)
    for size in (0, 20_000, 700_000):
        with Limit(size), pytest.raises(OSError) as error:
            write()
        assert error.value.errno == errno.EFBIG
        assert content(tmp_path) == before  # nothing is left beside it either
    write()


@pytest.mark.parametrize("limit", [1_000, 20_000, 72_000, 143_000])
def test_a_process_survives_a_limit_on_files(limit, tmp_path, forks):
    code = f"""
import resource, keras_transformer as kt
from keras_transformer.models import build_backbone
config = kt.TransformerConfig(kind="encoder", vocabulary_size=500, hidden_dim=16, num_layers=2,
                              num_heads=2, intermediate_dim=32)
task = kt.TextClassifier(build_backbone(config), num_classes=2)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    task.save_weights({str(tmp_path / "m.weights.h5")!r})
except OSError as error:
    assert error.errno == 27, error
else:
    raise AssertionError("it was written")
"""
    done = forks.run("-c", code)
    assert done.returncode == 0, done.stderr
    assert not os.listdir(tmp_path)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB, where one may be mounted."""
    made = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if os.geteuid() or subprocess.run(made, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_and_a_read_only_disk(task, small_disk):
    kept = small_disk / "m.keras"
    kept.write_bytes(b"good")
    writers = ways(task, small_disk)
    for name in ("m.keras", "m.weights.h5", "m.weights.json", "unzipped", "c.keras", "run"):
        with pytest.raises(OSError, match="No space left on device") as error:
            writers[name]()
        assert error.value.errno == errno.ENOSPC and kept.read_bytes() == b"good"
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for write in writers.values():
        with pytest.raises(OSError, match="Read-only file system") as error:
            write()
        assert error.value.errno == errno.EROFS


def test_what_was_written_is_what_keras_writes(task, tmp_path):
    writers = ways(task, tmp_path)
    for name in ("c.keras", "m.keras", "unzipped", "m.weights.h5", "m.weights.json"):
        writers[name]()  # the first of which trains
    for name in ("m.keras", "unzipped", "c.keras"):
        again = keras.models.load_model(tmp_path / name)
        for mine, theirs in zip(task.weights, again.weights, strict=True):
            np.testing.assert_array_equal(to_numpy(mine), to_numpy(theirs))
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        assert sorted(archive.namelist()) == ["config.json", "metadata.json", "model.weights.h5"]
    fresh = kt.TextClassifier(build_backbone(CONFIG), num_classes=2)
    for name in ("m.weights.h5", "m.weights.json"):
        fresh.load_weights(tmp_path / name)
        for mine, theirs in zip(task.weights, fresh.weights, strict=True):
            np.testing.assert_array_equal(to_numpy(mine), to_numpy(theirs))


def test_names_links_and_devices(task, tmp_path, monkeypatch):
    for wrong in ("model", "model.h5x"):
        with pytest.raises(ValueError, match="extension|must end in"):
            task.save(tmp_path / wrong)
        with pytest.raises(ValueError, match="must end in"):
            task.save_weights(tmp_path / wrong)
    (tmp_path / "store").mkdir()
    (tmp_path / "best.keras").symlink_to(tmp_path / "store" / "first.keras")
    task.save(tmp_path / "best.keras")
    assert (tmp_path / "best.keras").is_symlink()
    assert zipfile.is_zipfile(tmp_path / "store" / "first.keras")
    (tmp_path / "full.keras").symlink_to("/dev/full")
    with pytest.raises(ValueError, match="is a device, not a file"):
        task.save(tmp_path / "full.keras")
    before = content(tmp_path / "store")
    monkeypatch.setattr("builtins.input", lambda question: "n")
    task.save(tmp_path / "store" / "first.keras", overwrite=False)
    assert content(tmp_path / "store") == before
