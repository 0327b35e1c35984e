"""The hub, played by a server of this test: what arrives, and what is said when it does not.

One process loads from all repositories at once, each with its own fault, and reports.
"""

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.checkpoints import save_preset
from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint, save_tensors, to_numpy
from tests.checkpoints.conftest import small_backbone
from tests.checkpoints.hub_server import FakeHub

pytestmark = pytest.mark.backend_independent

COMMITS = {"main": "0" * 39 + "1", "v1": "0" * 39 + "2", "sharded": "0" * 39 + "3"}
COMMITS |= {"pickled": "0" * 39 + "4"}
WEIGHTS = "model.safetensors"


def answer(status, code=None, kind="resolve", file=None):
    """A fault: requests of a kind, or for a file, get this status."""

    def fault(request):
        if request.kind != kind or file not in (None, request.file):
            return False
        request.refuse(status, code)
        return True

    return fault


def silence(kind, method):
    """A fault: nothing is answered, and the connection stays open."""

    def fault(request):
        if (request.kind, request.method) != (kind, method) or request.file not in (None, WEIGHTS):
            return False
        request.say_nothing()
        return True

    return fault


def on_weights(send, times=1000):
    """A fault of what the storage sends: `send` is given the request and the content."""
    left = iter(range(times))

    def fault(request):
        if request.kind != "storage" or request.method != "GET" or next(left, None) is None:
            return False
        send(request, request.hub.stored(request))
        return True

    return fault


def cut(request, content):
    """Half of what is left, then the end of the connection."""
    if request.range is not None:
        return request.content(content, {})
    return request.send(200, content[: len(content) // 2], {}, length=len(content))


def reset(request, content):
    request.send(200, content[: len(content) // 2], {}, length=len(content))
    request.reset()


def one_other_bit(request, content):
    request.content(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:], {})


def too_short(request, content):
    request.content(content[: len(content) // 2], {})


def page(request):
    """Answer like the login page of a hotel's network."""
    if request.kind != "revision":
        return False
    request.send(200, b"<html>Log in</html>", {"Content-Type": "text/html"})
    return True


FAULTS = {
    "cut": on_weights(cut),
    "reset": on_weights(reset),
    "reset_once": on_weights(reset, times=1),
    "damaged": on_weights(one_other_bit),
    "short": on_weights(too_short),
    "absent": answer(404, "RepoNotFound", "revision"),
    "private": answer(401, None, "revision"),
    "token": answer(401, None, "resolve"),
    "gated": answer(403, "GatedRepo", "resolve"),
    "forbidden": answer(403, None, "revision"),
    "incomplete": answer(404, "EntryNotFound", "resolve", WEIGHTS),
    "busy": answer(429, None, "resolve", WEIGHTS),
    "broken": answer(500, None, "revision"),
    "storage_broken": answer(503, None, "storage"),
    "silent": silence("revision", "GET"),
    "silent_list": silence("tree", "GET"),
    "silent_check": silence("resolve", "HEAD"),
    "silent_file": silence("storage", "GET"),
    "hotel": page,
}
# Type of the error, and what the message says to do.
SAID = {
    "reset": ("ConnectionError", "try again"),
    "damaged": ("ConnectionError", "model.safetensors of hf://org/damaged@{main} arrived damaged"),
    "short": ("ConnectionError", "try again"),
    "absent": ("FileNotFoundError", "There is no model 'org/absent' on the hub"),
    "private": ("PermissionError", "hf auth login"),
    "token": ("PermissionError", "check the token in HF_TOKEN"),
    "gated": ("PermissionError", "Accept its terms at https://huggingface.co/org/gated"),
    "forbidden": ("PermissionError", "HTTP 403). Log in with `hf auth login`"),
    "incomplete": ("FileNotFoundError", "lists a file of hf://org/incomplete@{main} that it does"),
    "busy": ("ConnectionError", "too many requests (HTTP 429). Wait some minutes"),
    "broken": ("ConnectionError", "the hub answers with HTTP 500"),
    "storage_broken": ("ConnectionError", "the hub answers with HTTP 503"),
    "silent": ("ConnectionError", "did not answer in time. Try again; on a slow network allow"),
    "silent_list": ("ConnectionError", "did not answer in time"),
    "silent_check": ("ConnectionError", "did not answer in time"),
    "silent_file": ("ConnectionError", "did not answer in time"),
    "hotel": ("ConnectionError", "Check the network"),
}

SCRIPT = """
import hashlib, json, os, pathlib, sys, time, urllib.request
from concurrent.futures import ThreadPoolExecutor
from huggingface_hub import constants
from keras_transformer.checkpoints import resolve_preset

real_sleep = time.sleep
time.sleep = lambda seconds: real_sleep(min(seconds, 0.01))  # between two tries
constants.DOWNLOAD_CHUNK_SIZE = 1000  # what is resumed is a multiple of it

def load(name):
    checkpoint = resolve_preset("hf://org/" + name).checkpoint
    digest = hashlib.sha256()
    for tensor in sorted(checkpoint):
        digest.update(checkpoint.read(tensor).tobytes())
    return digest.hexdigest()

def attempt(name):
    start = time.perf_counter()
    try:
        said = load(name)
    except Exception as error:
        said = [type(error).__name__, str(error)]
    return said, time.perf_counter() - start

def at_once(function, names):
    with ThreadPoolExecutor(32) as pool:
        return dict(zip(names, pool.map(function, names)))

def broken_files(name):
    blobs = pathlib.Path(os.environ["HF_HOME"], "hub", "models--org--" + name, "blobs").glob("*")
    return [
        path.name
        for path in blobs
        if len(path.name) not in (40, 64)
        or len(path.name) == 64 and path.name != hashlib.sha256(path.read_bytes()).hexdigest()
    ]

def mend(name):
    with urllib.request.urlopen(os.environ["HF_ENDPOINT"] + "/mend/" + name) as mended:
        mended.read()

names = sys.argv[1:]
described = resolve_preset("hf://org/half")
assert described.file("config.json").exists()
assert not described.file("model.safetensors").exists()
report = {"first": at_once(attempt, [name for name in names if "silent" not in name])}
constants.HF_HUB_ETAG_TIMEOUT = constants.HF_HUB_DOWNLOAD_TIMEOUT = 0.2
report["first"] |= at_once(attempt, [name for name in names if "silent" in name])
constants.HF_HUB_ETAG_TIMEOUT = constants.HF_HUB_DOWNLOAD_TIMEOUT = 10
report["left"] = at_once(broken_files, names)
at_once(mend, names)
report["second"] = at_once(attempt, names)
print(json.dumps({n: {when: report[when][n] for when in report} for n in names}))
"""
ONCE = SCRIPT[: SCRIPT.index("described =")] + "print(json.dumps(at_once(attempt, names)))"
MODEL = """

import keras, numpy
from keras_transformer.checkpoints import load_backbone
backbone = load_backbone("hf://org/good@sharded")
numpy.savez(os.environ["VALUES"], *map(keras.ops.convert_to_numpy, backbone.weights))
"""


def process(endpoint, home, *arguments, script=SCRIPT, **more):
    """Runs a script in a process that takes `endpoint` for the hub; returns what it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "NO_PROXY": "*"}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", **more}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def content(folder):
    """The digest of all weights in a folder, as the script makes it."""
    checkpoint = Checkpoint(folder)
    tensors = (checkpoint.read(name).tobytes() for name in sorted(checkpoint))
    return hashlib.sha256(b"".join(tensors)).hexdigest()


def shard(folder, source):
    """Copies a preset with its weights in two files."""
    folder.mkdir()
    checkpoint = Checkpoint(source)
    names = list(checkpoint)
    places = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for place in set(places.values()):
        tensors = {name: checkpoint.read(name) for name in names if places[name] == place}
        save_tensors(folder / place, tensors)
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The hub, its folders by revision, and what the process with all the faults reported."""
    root = tmp_path_factory.mktemp("hub")
    folders = {name: root / name for name in COMMITS}
    backbone = small_backbone()
    save_preset(folders["main"], backbone=backbone)
    (folders["main"] / "pytorch_model.bin").write_bytes(b"not to be downloaded")
    for variable in backbone.weights:
        variable.assign(variable + 1)
    save_preset(folders["v1"], backbone=backbone)
    shard(folders["sharded"], folders["main"])
    folders["pickled"].mkdir()
    (folders["pickled"] / "config.json").write_text('{"model_type": "bert"}')
    (folders["pickled"] / "pytorch_model.bin").write_bytes(b"not to be downloaded")
    by_commit = {commit: folders[name] for name, commit in COMMITS.items()}
    hub = FakeHub(by_commit, COMMITS, dict(FAULTS))
    with hub.running() as endpoint:
        cache = root / "home" / "hub"
        cache.mkdir(parents=True)
        (cache / "models--org--unwritable").write_text("a file where a folder should be")
        revisions = ("wrong", "v1", "sharded", "pickled", COMMITS["v1"])
        names = (*FAULTS, "good", "unwritable", *(f"good@{revision}" for revision in revisions))
        report = json.loads(process(endpoint, root / "home", *names))
        yield hub, endpoint, root / "home", folders, report


def test_what_arrives_is_what_was_asked_for(served):
    hub, _, _, folders, report = served
    main, other = content(folders["main"]), content(folders["v1"])
    assert main != other
    first = {name: each["first"][0] for name, each in report.items()}
    assert first["good"] == report["good"]["second"][0] == first["good@sharded"] == main
    assert first["good@v1"] == first[f"good@{COMMITS['v1']}"] == other
    assert not any((r.file or "").endswith(".bin") for r in hub.requests)


def test_a_cut_connection_is_resumed(served):
    hub, _, _, folders, report = served
    assert report["cut"]["first"][0] == content(folders["main"])
    half = (folders["main"] / WEIGHTS).stat().st_size // 2
    asked = [r.range for r in hub.of("cut") if r.kind == "storage"]
    assert asked == [None, f"bytes={half // 1000 * 1000}-"]
    # `huggingface_hub` does not resume after a reset, so it starts again.
    assert report["reset_once"]["first"][0] == content(folders["main"])


@pytest.mark.parametrize("name", SAID)
def test_failures_say_what_to_do_and_leave_nothing_broken(served, name):
    _, _, _, folders, report = served
    (kind, message), seconds = report[name]["first"]
    assert kind == SAID[name][0] and SAID[name][1].format(**COMMITS) in message, report[name]
    assert seconds < 30
    assert report[name]["left"] == []
    assert report[name]["second"][0] == content(folders["main"])


def test_a_revision_that_is_not_there(served):
    kind, message = served[4]["good@wrong"]["first"][0]
    assert kind == "FileNotFoundError" and "has no revision 'wrong'" in message
    assert "Name a branch, a tag or a full commit hash" in message


def test_a_cache_that_cannot_be_written(served):
    kind, message = served[4]["unwritable"]["first"][0]
    assert kind == "OSError" and "Free some space, or name another folder in HF_HOME" in message


def test_pickled_weights_on_the_hub_are_refused(served):
    kind, message = served[4]["good@pickled"]["first"][0]
    assert kind == "ValueError" and "pytorch_model.bin" in message
    assert "Only safetensors are read" in message


def test_what_is_cached_serves_without_a_network(served, tmp_path):
    hub, endpoint, home, folders, _ = served
    names, values = ("good", "good@v1", "never", "half"), str(tmp_path / "values.npz")
    del hub.requests[:]
    with ThreadPoolExecutor() as pool:
        more = {"script": ONCE + MODEL, "HF_HUB_OFFLINE": "1", "VALUES": values}
        offline = pool.submit(process, endpoint, home, *names, **more)
        unreachable = pool.submit(process, "http://127.0.0.1:9", home, *names, script=ONCE)
    assert not hub.requests
    for run, expected in ((offline, "HF_HUB_OFFLINE is set"), (unreachable, "Check the network")):
        answers = json.loads(run.result())
        assert answers["good"][0] == content(folders["main"])
        assert answers["good@v1"][0] == content(folders["v1"])
        for name in ("never", "half"):
            kind, message = answers[name][0]
            assert kind == "ConnectionError" and "it is not complete in the cache" in message
            assert expected in message
    with np.load(values) as arrays:
        for array, variable in zip(arrays.values(), small_backbone().weights, strict=True):
            np.testing.assert_array_equal(array, to_numpy(variable))
    # The hub is back, for one of them.
    hub.faults["good"] = answer(503, None, "revision")
    answers = json.loads(process(endpoint, home, "good", "half", script=ONCE))
    assert answers["good"][0] == answers["half"][0] == content(folders["main"])


@pytest.mark.parametrize("name", ["hf://a--b/c", "hf://org/name.git", "hf://a/-b", "hf://a/b@/c"])
def test_names_that_no_repository_has(name):
    from keras_transformer.checkpoints import resolve_preset

    with pytest.raises(ValueError, match=r"hf://"):
        resolve_preset(name)
