"""Which tests are run where, what touches a change, and what is said of the time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import places
from tests.changed import Imports, chosen
from tests.places import marks_of_file
from tests.thorough import SEED, THOROUGH, many, seeds

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.backend_independent

PROGRAM = """
import os, pytest
@pytest.mark.backend_independent
def test_python(): pass
@pytest.mark.one_backend
def test_one(): pass
@pytest.mark.one_backend("tensorflow")
def test_tensorflow(): pass
@pytest.mark.one_backend
@pytest.mark.each_backend
def test_each(): pass
@pytest.mark.thorough
def test_thorough(): pass
def test_all(): pass
"""


# Read on no backend but its own: it would end the run.
ELSEWHERE = """
import pytest
pytestmark = [pytest.mark.one_backend("tensorflow")]
assert False
"""
# A file that has both marks is read, as what the second one is for is not known before.
BOTH = """
import pytest
pytestmark = pytest.mark.one_backend
@pytest.mark.each_backend
def test_marked_in_file(): pass
def test_not_here(): pass
"""


CASES = """
import pytest
@pytest.mark.parametrize("number", range(8))
def test_case(number): pass
@pytest.mark.parametrize("number", range(3))
@pytest.mark.each_backend
def test_held(number): pass
"""


def ran(tmp_path, backends, *arguments, **variables):
    """The tests that run on JAX, and what was printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TEST_BACKENDS": backends, **variables}
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-ra", *plugins, *(arguments or [str(tmp_path)])],
        env={**environment, "KERAS_BACKEND": "jax"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if " PASSED" in line]
    return {line.partition("::test_")[2].partition(" ")[0] for line in lines}, done.stdout


def test_each_test_runs_on_its_backends(tmp_path):
    pytest.importorskip("jax")
    (tmp_path / "test_program.py").write_text(PROGRAM)
    (tmp_path / "test_both.py").write_text(BOTH)
    elsewhere = tmp_path / "test_elsewhere.py"
    elsewhere.write_text(ELSEWHERE)
    always = {"python", "each", "all", "marked_in_file"}
    found, printed = ran(tmp_path, "jax tensorflow torch", TEST_SEED="")
    assert found == always
    assert "4 passed" in printed and "skipped" not in printed  # what is not here is not collected
    assert "processor time, the ten slowest files" in printed
    elsewhere.unlink()
    found, printed = ran(tmp_path, "jax tensorflow torch", TEST_SEED="7")
    assert found == always | {"one", "tensorflow", "thorough", "not_here"}
    assert "TEST_SEED=7 repeats it" in printed


def test_what_is_asked_for_by_name_says_where_it_runs(tmp_path):
    pytest.importorskip("jax")
    (tmp_path / "test_program.py").write_text(PROGRAM)
    name = f"{tmp_path / 'test_program.py'}::test_tensorflow"
    found, printed = ran(tmp_path, "jax tensorflow torch", name, TEST_SEED="")
    assert not found and "one backend is enough, tensorflow" in printed
    assert "TEST_BACKENDS=jax" in printed


def test_many_cases_take_turns(tmp_path):
    pytest.importorskip("jax")
    (tmp_path / "test_cases.py").write_text(CASES)
    held = {f"held[{i}]" for i in range(3)}
    found, printed = ran(tmp_path, "jax tensorflow torch", TEST_SEED="")
    assert found == held | {f"case[{i}]" for i in (0, 3, 6)} and "5 deselected" in printed
    name = f"{tmp_path / 'test_cases.py'}::test_case"
    found, _ = ran(tmp_path, "jax tensorflow torch", name, TEST_SEED="")
    assert found == {f"case[{i}]" for i in range(8)}


def test_upper_floors_run_on_pytorch_and_another(monkeypatch):
    backends = ["jax", "tensorflow", "torch"]
    monkeypatch.setattr(places, "RUN", backends)
    assert places.backends_of(ROOT / "tests/layers/test_blocks.py", "test_a") == backends
    upper = ROOT / "tests/tasks/test_streams.py"
    found = {tuple(places.backends_of(upper, f"test_{i}")) for i in range(20)}
    assert found == {("jax", "torch"), ("tensorflow", "torch")}
    assert places.backends_of(ROOT / "tests/tasks/test_first_fit.py", "test_a") == backends
    monkeypatch.setattr(places, "RUN", ["jax", "torch"])
    assert places.backends_of(upper, "test_a") == ["jax", "torch"]


def test_the_marks_of_a_file_are_those_that_pytest_sees(tmp_path):
    """The text of each test file is read as Python reads it."""
    found = {path: marks_of_file(path) for path in (ROOT / "tests").rglob("test_*.py")}
    assert sum("backend_independent" in marks for marks in found.values()) > 40
    assert found[ROOT / "tests/layers/test_groups.py"] == {"one_backend": ("jax",)}
    assert marks_of_file(ROOT / "tests/tasks/test_text_classifier.py") == {}  # has `each_backend`


def test_seeds_are_those_of_the_run():
    assert seeds(3) == seeds(3) and len(set(seeds(20))) == 20
    assert many(5) == (50 if THOROUGH else 5)
    assert (SEED is not None) == THOROUGH


def test_the_nearest_tests_come_first(tmp_path):
    files = {
        "keras_transformer/__init__.py": "from keras_transformer import layers\n",
        "keras_transformer/layers/__init__.py": "from keras_transformer.layers.one import One\n"
        "from keras_transformer.layers.two import Two\n",
        "keras_transformer/layers/one.py": "class One: pass\n",
        "keras_transformer/layers/two.py": "from keras_transformer.layers.one import One\n"
        "class Two(One): pass\n",
        "tests/conftest.py": "",
        "tests/test_one.py": "import keras_transformer as kt\nkt.layers.One()\n",
        "tests/test_first.py": "from keras_transformer.layers import One\n",
        "tests/test_two.py": "from keras_transformer.layers import Two\n",
        "tests/test_other.py": "import keras_transformer\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "docs").mkdir()
    steps = Imports(tmp_path).tests_of(["keras_transformer/layers/one.py"])
    assert steps == {"tests/test_one.py": 0, "tests/test_first.py": 1, "tests/test_two.py": 2}
    assert Imports(tmp_path).tests_of(["tests/test_other.py"]) == {"tests/test_other.py": 0}
    seconds = {"tests/test_one.py": 5.0, "tests/test_first.py": 3.0, "tests/test_two.py": 3.0}
    assert chosen(steps, seconds, 9) == (
        ["tests/test_one.py", "tests/test_first.py"], ["tests/test_two.py"]
    )  # fmt: skip
    assert chosen(steps, seconds, 1)[0] == ["tests/test_one.py"]


def test_the_map_of_the_package():
    steps = Imports().tests_of(["keras_transformer/layers/dropout.py"])
    assert steps["tests/layers/test_dropout.py"] == 0
    assert min(n for path, n in steps.items() if "dropout" not in path) > 0
