"""JSON and paths that are not trusted, and folders that appear whole or not at all."""

import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from keras_transformer.checkpoints.presets.publishing import atomic_directory
from keras_transformer.support.files import path_inside, read_json, stream_safetensors

pytestmark = pytest.mark.backend_independent


@pytest.mark.parametrize(
    "content, message",
    [
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' appears twice"),
        (b'{"a": NaN}', "NaN is not a JSON value"),
        (b"[1, 2]", "must hold a JSON object, not a list"),
        (b"3", "not a number"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b'{"a":' * 100_000, "nests too deeply"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        (b'{"a": [' + b"[]," * 100_000 + b"0]}", "more than 100,000 lists and objects"),
    ],
)
def test_read_json_names_the_file_and_the_fault(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as info:
        read_json(path)
    assert str(path) in str(info.value)


def test_read_json_limits_the_size(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"a": "' + "x" * 1000 + '"}')
    assert read_json(path)["a"] == "x" * 1000
    with pytest.raises(ValueError, match="1,009 bytes; a file of this kind may have 1,000"):
        read_json(path, limit=1000)


def test_read_json_reads_files_only(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        read_json(tmp_path / "absent.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is a pipe"):
        read_json(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "", "C:x", "a\\b", None, 3])
def test_names_that_leave_the_folder_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="inside its folder"):
        path_inside(tmp_path, name)


def test_links_out_of_the_folder_are_refused(tmp_path):
    folder = tmp_path / "preset"
    folder.mkdir()
    (tmp_path / "secret.json").write_text("{}")
    (folder / "config.json").symlink_to(tmp_path / "secret.json")
    (folder / "sub").symlink_to(tmp_path)
    (folder / "real.json").write_text("{}")
    (folder / "own.json").symlink_to(folder / "real.json")
    for name in ("config.json", "sub/secret.json"):
        with pytest.raises(ValueError, match="outside the preset's folder"):
            path_inside(folder, name)
    assert path_inside(folder, "own.json") == folder / "own.json"


@pytest.mark.parametrize("name", ["a" * 5000, "\ud800"], ids=["long", "surrogate"])
def test_names_that_no_file_can_have(tmp_path, name):
    with pytest.raises(ValueError, match="names the file"):
        path_inside(tmp_path, name)


def test_links_in_a_circle(tmp_path):
    (tmp_path / "config.json").symlink_to("tokenizer.json")
    (tmp_path / "tokenizer.json").symlink_to("config.json")
    with pytest.raises(ValueError, match="names the file 'config.json'"):
        path_inside(tmp_path, "config.json")


def test_links_of_the_hub_cache_lead_to_its_blobs_only(tmp_path):
    cache = tmp_path / "models--org--name"
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    (cache / "blobs" / "1").write_text("{}")
    (tmp_path / "secret").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    (snapshot / "tokenizer.json").symlink_to("../../../secret")
    assert path_inside(snapshot, "config.json").read_text() == "{}"
    with pytest.raises(ValueError, match="outside"):
        path_inside(snapshot, "tokenizer.json")


def test_blobs_that_are_a_link_themselves_do_not_help(tmp_path):
    cache = tmp_path / "models--org--name"
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("{}")
    (cache / "blobs").symlink_to(tmp_path / "elsewhere")
    (snapshot / "config.json").symlink_to("../../blobs/secret")
    with pytest.raises(ValueError, match="outside"):
        path_inside(snapshot, "config.json")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_appears_at_once(tmp_path):
    target = tmp_path / "parents" / "preset"
    with atomic_directory(target) as scratch:
        (scratch / "config.json").write_text("{}")
        assert not target.exists()
    assert names(target) == ["config.json"]
    assert names(target.parent) == ["preset"]
    assert target.stat().st_mode & 0o777 == 0o777 & ~current_umask()


def current_umask():
    umask = os.umask(0)
    os.umask(umask)
    return umask


@pytest.mark.parametrize("exists", [False, True])
def test_a_failure_leaves_nothing(tmp_path, exists):
    target = tmp_path / "preset"
    if exists:
        target.mkdir()
        (target / "config.json").write_text('{"format": "keras_transformer"}')
    with pytest.raises(KeyboardInterrupt), atomic_directory(target) as scratch:
        (scratch / "config.json").write_text("new")
        raise KeyboardInterrupt
    assert names(tmp_path) == (["preset"] if exists else [])
    if exists:
        assert names(target) == ["config.json"]
        assert "keras_transformer" in (target / "config.json").read_text()


def test_a_preset_is_replaced_and_other_files_stay(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "notes.txt").write_text("mine")
    with atomic_directory(tmp_path) as scratch:
        (scratch / "config.json").write_text("new")
    assert names(tmp_path) == ["config.json", "notes.txt"]
    assert (tmp_path / "config.json").read_text() == "new"
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("content", ['{"unrelated": 1}', "not JSON"])
def test_a_folder_of_other_things_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    refused = pytest.raises(ValueError, match="holds other files and is not a preset")
    with refused, atomic_directory(tmp_path):
        pass
    assert names(tmp_path) == ["config.json"]


def test_a_file_is_refused(tmp_path):
    (tmp_path / "preset").write_text("")
    with pytest.raises(ValueError, match="it is a file"), atomic_directory(tmp_path / "preset"):
        pass


def test_streamed_files_are_those_of_the_library(tmp_path):
    """Byte for byte, also of scalars, of no numbers, of a transposed array and of any name."""
    random = np.random.default_rng(0)
    tensors = {
        "b/kernel": random.normal(size=(3, 4)).astype("float32"),
        "a": random.normal(size=5).astype("float16"),
        "count": np.asarray(7, "int64"),
        "scale": np.asarray(2, "float32"),
        "none": np.zeros((0, 3), "float32"),
        "é": random.normal(size=(2, 3)).astype("float32").T,
    }
    headers = {name: (array.dtype.name, array.shape) for name, array in tensors.items()}
    stream_safetensors(tmp_path / "ours", headers, tensors.get, {"format": "np"})
    whole = {name: array.copy(order="C") for name, array in tensors.items()}
    save_file(whole, tmp_path / "library", {"format": "np"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "library").read_bytes()

    with pytest.raises(ValueError, match="'count' has changed while it was written"):
        stream_safetensors(tmp_path / "other", headers, lambda name: np.zeros(2), {})
    assert not (tmp_path / "other").exists()
