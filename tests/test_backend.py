"""Which backend is taken, and what the import brings with it."""

import importlib.util
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from keras_transformer.support.backend import WAITING, choose_backend, let_threads_sleep

ROOT = Path(__file__).parents[1]


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Makes only the named packages look installed, in a home without keras.json."""
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))

    def set_installed(*packages):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: object() if name in packages else None
        )

    yield set_installed
    os.environ.pop("KERAS_BACKEND", None)  # What the test set; monkeypatch restores the rest.


def chosen(caplog):
    caplog.clear()
    with caplog.at_level(logging.INFO, "keras_transformer"):
        choose_backend()
    return os.environ.get("KERAS_BACKEND"), [record.getMessage() for record in caplog.records]


@pytest.mark.backend_independent
@pytest.mark.parametrize("packages, backend", [(("jax", "torch"), "jax"), (("torch",), "torch")])
def test_without_tensorflow_the_first_installed_is_taken(installed, caplog, packages, backend):
    installed(*packages)
    message = f"KERAS_BACKEND is not set and TensorFlow is not installed: {backend} is used."
    assert chosen(caplog) == (backend, [message])


@pytest.mark.backend_independent
def test_with_tensorflow_keras_decides(installed, caplog):
    installed("tensorflow", "jax", "torch")
    assert chosen(caplog) == (None, [])


@pytest.mark.backend_independent
def test_the_environment_decides(installed, caplog, monkeypatch):
    installed("jax", "torch")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert chosen(caplog) == ("torch", [])


@pytest.mark.backend_independent
def test_the_environment_names_what_there_is_not(installed, monkeypatch):
    installed("jax")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(ImportError, match=r"not installed.*keras_transformer\[torch\]"):
        choose_backend()
    monkeypatch.setenv("KERAS_BACKEND", "jaxx")
    with pytest.raises(ValueError, match="KERAS_BACKEND is 'jaxx', but must be one of"):
        choose_backend()


@pytest.mark.backend_independent
def test_nothing_is_installed(installed):
    installed()
    with pytest.raises(ImportError) as error:
        choose_backend()
    for extra in ("jax", "tensorflow", "torch"):
        assert f'"keras_transformer[{extra}]"' in str(error.value)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    "content, backend",
    [
        ('{"backend": "torch"}', None),  # Keras reads it
        ('{"backend": "tensorflow"}', "jax"),  # what Keras itself writes on its first import
        ('{"backend": ["torch"]}', "jax"),
        ('{"floatx": "float32"}', "jax"),
        ("[1]", "jax"),
        ("{broken", "jax"),
    ],
)
def test_keras_json_decides_if_it_names_what_is_there(
    installed, caplog, tmp_path, content, backend
):
    installed("jax", "torch")
    (tmp_path / "keras.json").write_text(content)
    assert chosen(caplog)[0] == backend


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("backend", "content", "given", "imported", "policy"),
    [
        ("torch", "{}", {}, False, "PASSIVE"),
        (None, '{"backend": "torch"}', {}, False, "PASSIVE"),
        ("jax", '{"backend": "torch"}', {}, False, None),
        (None, '{"backend": ["torch"]}', {}, False, None),
        ("torch", "{}", {"OMP_WAIT_POLICY": "ACTIVE"}, False, "ACTIVE"),
        ("torch", "{}", {"GOMP_SPINCOUNT": "5"}, False, None),
        ("torch", "{}", {}, True, None),  # too late
    ],
)
def test_threads_of_pytorch_sleep(monkeypatch, tmp_path, backend, content, given, imported, policy):
    (tmp_path / "keras.json").write_text(content)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    for name in WAITING:
        monkeypatch.setenv(name, "")  # so that what is set below is undone
        monkeypatch.delenv(name)
    for name, value in {**given, **({"KERAS_BACKEND": backend} if backend else {})}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    if imported:
        monkeypatch.setitem(sys.modules, "torch", json)
    let_threads_sleep()
    assert os.environ.get("OMP_WAIT_POLICY") == policy


HIDE = """
import importlib.abc, importlib.util, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name.partition(".")[0] in HIDDEN else find_spec(name, package)
)
sys.meta_path.insert(0, Hidden())
"""
SHOW = """
import json, sys
import keras_transformer, keras
names = ("tensorflow", "torch", "transformers", "tensorflow_text", "keras_nlp", "sacrebleu")
print(json.dumps([keras.backend.backend(), [n for n in names if n in sys.modules]]))
"""


def run(code, tmp_path, **environment):
    values = {**os.environ, "KERAS_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), **environment}
    values = {name: value for name, value in values.items() if value is not None}
    return subprocess.run([sys.executable, "-c", code], env=values, capture_output=True, text=True)


@pytest.mark.backend_independent
def test_a_whole_import_without_tensorflow(tmp_path):
    pytest.importorskip("jax")
    hidden = 'HIDDEN = {"tensorflow", "torch", "transformers"}\n'
    done = run(hidden + HIDE + SHOW, tmp_path, KERAS_BACKEND=None)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["jax", []]
    said = [line for line in done.stderr.splitlines() if "jax is used" in line]
    assert len(said) == 1


@pytest.mark.backend_independent
def test_a_whole_import_without_any_backend(tmp_path):
    hidden = 'HIDDEN = {"tensorflow", "torch", "jax"}\n'
    done = run(hidden + HIDE + SHOW, tmp_path, KERAS_BACKEND=None)
    assert done.returncode == 1
    assert "ImportError: keras_transformer needs one of JAX, TensorFlow or PyTorch" in done.stderr


COUNT = """
import json, sys
import keras
before = set(sys.modules)
import keras_transformer as kt
new = set(sys.modules) - before
tables = [name for name in new if "families" in name or "keras_hub." in name]
assert {*kt.__all__} <= {*dir(kt)}
assert kt.from_keras_hub is kt.checkpoints.from_keras_hub  # imported when it is asked for
assert callable(kt.export_to_huggingface) and callable(kt.to_keras_hub)
new = {name.partition(".")[0] for name in new} - set(sys.stdlib_module_names)
names = ("tensorflow", "torch", "transformers", "tensorflow_text", "keras_nlp", "sacrebleu")
others = [name for name in names if name in sys.modules]
print(json.dumps([keras.backend.backend(), others, sorted(new), tables]))
"""


def test_the_import_brings_little(tmp_path):
    """No other framework, of other packages two, and no table of published families."""
    backend = keras.backend.backend()
    done = run(COUNT, tmp_path, KERAS_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    found, others, packages, tables = json.loads(done.stdout.splitlines()[-1])
    own = [backend] if backend in ("tensorflow", "torch") else []
    assert (found, others, tables) == (backend, own, [])
    # Keras imports its optimizers for PyTorch when one is asked for.
    assert set(packages) <= {"keras", "keras_transformer", "safetensors", "tokenizers"}
