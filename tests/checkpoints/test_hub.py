"""The hub, played by a server of this test: what arrives, and what is said when it does not."""

import contextlib
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from keras_transformer.checkpoints import save_preset
from keras_transformer.checkpoints.safetensors_io import to_numpy
from tests.checkpoints.conftest import small_backbone

pytestmark = pytest.mark.backend_independent

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REFUSALS = {
    "absent": (404, "RepoNotFound"),
    "gated": (403, "GatedRepo"),
    "private": (401, None),
    "broken": (500, None),
}


@contextlib.contextmanager
def hub(folder):
    """Serves `folder` as `hf://org/tiny`; yields the address and the paths that were asked for."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer(body=True)

        def log_message(self, *args):
            pass

        def answer(self, body):
            path = self.path.split("?")[0]
            requests.append(path)
            name = path.removeprefix("/api/models").split("/")[2]
            if name in REFUSALS:
                status, code = REFUSALS[name]
                return self.send(status, b"", {"X-Error-Code": code} if code else {}, body)
            if path.startswith("/api/") and "/revision/" in path:
                if not path.endswith(("/main", COMMIT)):
                    return self.send(404, b"", {"X-Error-Code": "RevisionNotFound"}, body)
                return self.json({"id": "org/tiny", "sha": COMMIT, "siblings": []}, body)
            if path.startswith("/api/") and "/tree/" in path:
                files = [entry(file) for file in sorted(folder.iterdir())]
                return self.json(files, body)
            content = (folder / path.rsplit("/", 1)[1]).read_bytes()
            headers = {"ETag": f'"{digest(content)}"', "X-Repo-Commit": COMMIT}
            return self.send(200, content, headers, body)

        def json(self, value, body):
            text = json.dumps(value).encode()
            self.send(200, text, {"Content-Type": "application/json"}, body)

        def send(self, status, content, headers, body):
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


def entry(file):
    content = file.read_bytes()
    return {"type": "file", "path": file.name, "size": len(content), "oid": digest(content)}


def digest(content):
    return hashlib.sha1(content).hexdigest()


def run(script, endpoint, home, **more):
    """Runs a script in a process that takes `endpoint` for the hub; returns what it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", **more}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


LOAD = """
import keras
from keras_transformer.checkpoints import load_backbone, resolve_preset
source = resolve_preset("hf://org/tiny")
assert not (source.directory / "model.safetensors").exists()
assert not (source.directory / "weights.bin").exists()
backbone = load_backbone(source)
print(float(keras.ops.convert_to_numpy(backbone.weights[0])[0, 0]))
"""
FAIL = """
import json
from keras_transformer.checkpoints import resolve_preset
answers = {}
for name in ("absent", "gated", "private", "broken", "tiny@wrong"):
    try:
        resolve_preset("hf://org/" + name)
    except Exception as error:
        answers[name] = [type(error).__name__, str(error)]
print(json.dumps(answers))
"""


@pytest.fixture
def served(tmp_path):
    backbone = small_backbone()
    save_preset(tmp_path / "served", backbone=backbone)
    (tmp_path / "served" / "weights.bin").write_bytes(b"not to be downloaded")
    with hub(tmp_path / "served") as (endpoint, requests):
        yield endpoint, requests, tmp_path / "home", backbone


def test_download_then_offline(served):
    endpoint, requests, home, backbone = served
    expected = float(to_numpy(backbone.weights[0])[0, 0])
    assert float(run(LOAD, endpoint, home)) == expected
    assert any(path.endswith("model.safetensors") for path in requests)
    assert not any(path.endswith("weights.bin") for path in requests)
    del requests[:]
    cached = LOAD.replace(
        'assert not (source.directory / "model', 'assert (source.directory / "model'
    )
    assert float(run(cached, endpoint, home, HF_HUB_OFFLINE="1")) == expected
    assert not requests


def test_what_is_said_of_failures(served):
    endpoint, _, home, _ = served
    answers = json.loads(run(FAIL, endpoint, home))
    expected = {
        "absent": ("FileNotFoundError", "There is no model 'org/absent' on the hub"),
        "gated": ("PermissionError", "Accept its terms at https://huggingface.co/org/gated"),
        "private": ("PermissionError", "hf auth login"),
        "broken": ("ConnectionError", "Could not download hf://org/broken@main"),
        "tiny@wrong": ("FileNotFoundError", "has no revision 'wrong'"),
    }
    for name, (kind, part) in expected.items():
        assert answers[name][0] == kind and part in answers[name][1], answers[name]


def test_no_connection(tmp_path):
    script = FAIL.replace('"absent", "gated", "private", "broken", "tiny@wrong"', '"tiny",')
    kind, message = json.loads(run(script, "http://127.0.0.1:9", tmp_path))["tiny"]
    assert kind == "ConnectionError" and "Check the network" in message
