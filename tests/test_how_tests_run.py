"""Which tests are run where, what touches a change, and what is said of the time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fences, passed, places
from tests.changed import Imports, chosen
from tests.places import marks_of_file
from tests.thorough import SEED, THOROUGH, many, seeds

ROOT = Path(__file__).parents[1]
SHARED = sorted(ROOT.glob("tests/**/conftest.py"))
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
    """Cases take turns, but for those of `each_backend`."""
    pytest.importorskip("jax")
    (tmp_path / "test_program.py").write_text(PROGRAM)
    (tmp_path / "test_both.py").write_text(BOTH)
    (tmp_path / "test_cases.py").write_text(CASES)
    elsewhere = tmp_path / "test_elsewhere.py"
    elsewhere.write_text(ELSEWHERE)
    always = {"python", "each", "all", "marked_in_file"}
    held = {f"held[{i}]" for i in range(3)}
    found, printed = ran(tmp_path, "jax tensorflow torch", TEST_SEED="")
    assert found == always | held | {f"case[{i}]" for i in (0, 3, 6)}
    assert "10 passed, 5 deselected" in printed
    assert "skipped" not in printed  # what is not here is not collected
    assert "processor time, the ten slowest files" in printed
    elsewhere.unlink()
    found, printed = ran(tmp_path, "jax tensorflow torch", TEST_SEED="7")
    cases = {f"case[{i}]" for i in range(8)}
    assert found == always | held | cases | {"one", "tensorflow", "thorough", "not_here"}
    assert "TEST_SEED=7 repeats it" in printed


def test_what_is_shared_computes_nothing_when_it_is_imported():
    """Else forks of the process, which has it before the first fork, would wait for its threads."""
    pytest.importorskip("jax")
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in SHARED]
    assert {"tests.conftest", "tests.data.conftest", "tests.serving.conftest"} <= set(names)
    code = (
        "import importlib, sys, keras_transformer\n"
        "from jax._src import xla_bridge\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert not xla_bridge.backends_are_initialized(), name\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *names], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "jax"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_what_is_asked_for_by_name_says_where_it_runs(tmp_path):
    """All cases of it are run."""
    pytest.importorskip("jax")
    (tmp_path / "test_program.py").write_text(PROGRAM)
    (tmp_path / "test_cases.py").write_text(CASES)
    names = [f"{tmp_path / 'test_program.py'}::test_tensorflow"]
    names += [f"{tmp_path / 'test_cases.py'}::test_case"]
    found, printed = ran(tmp_path, "jax tensorflow torch", *names, TEST_SEED="")
    assert found == {f"case[{i}]" for i in range(8)}
    assert "one backend is enough, tensorflow" in printed
    assert "TEST_BACKENDS=jax" in printed


def test_operations_run_on_each_backend_and_what_is_built_on_them_once(monkeypatch):
    backends = ["jax", "tensorflow", "torch"]
    monkeypatch.setattr(places, "RUN", backends)
    for of_operations in ("kernels/test_a.py", "training/test_losses.py", "test_sizes.py"):
        path = ROOT / "tests" / of_operations
        assert places.backends_of(path, "test_a", 0) == backends
        assert [places.backends_of(path, "test_a", i) for i in (1, 2)] == [
            ["tensorflow"],
            ["torch"],
        ]
    layers = ROOT / "tests/layers/test_blocks.py"
    found = {tuple(places.backends_of(layers, f"test_{i}", 0)) for i in range(20)}
    assert found == {("jax", "torch"), ("tensorflow", "torch")}
    assert len(places.backends_of(layers, "test_a", 1)) == 1
    for upper in (ROOT / "tests/tasks/test_streams.py", ROOT / "tests/checkpoints/test_weights.py"):
        found = [places.backends_of(upper, "test_a", number) for number in range(6)]
        assert sorted(found) == [["jax"], ["tensorflow"], *[["torch"]] * 4]
        tests = {tuple(places.backends_of(upper, f"test_{i}", 0)) for i in range(40)}
        assert tests == {("jax",), ("tensorflow",), ("torch",)}
    monkeypatch.setattr(places, "RUN", ["jax", "torch"])
    found = [places.backends_of(upper, "test_a", number) for number in range(5)]
    assert sorted(found) == [["jax"], *[["torch"]] * 4]


def test_the_marks_of_a_file_are_those_that_pytest_sees(tmp_path):
    """The text of each test file is read as Python reads it."""
    found = {path: marks_of_file(path) for path in (ROOT / "tests").rglob("test_*.py")}
    assert sum("backend_independent" in marks for marks in found.values()) > 40
    captured = ROOT / "tests/kernels/torch_tracing/test_captured.py"
    assert found[captured] == {"one_backend": ("torch",)}
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


PAGE = """
```python
import keras_transformer as kt
kt.one.f()
```
```python
import keras_transformer as kt
kt.two.f()
```
"""
TREE = {
    "keras_transformer/__init__.py": "from keras_transformer import one, two\n",
    "keras_transformer/one.py": "def f():\n    pass\n",
    "keras_transformer/two.py": "def f():\n    pass\n",
    "README.md": PAGE,
    "tests/conftest.py": "import keras_transformer as kt\nkt.two.f()\n",
    "tests/docs/test_alone.py": "def test_example_of_a_page_runs(name): ...\n",
    "tests/layers/test_one.py": "import keras_transformer as kt\nkt.one.f()\n",
}


@pytest.fixture
def units(tmp_path, monkeypatch):
    """Units of a small project in which one file has another text than the main branch has."""
    monkeypatch.setattr(passed, "ROOT", tmp_path)
    monkeypatch.setattr(fences, "PAGES", [tmp_path / "README.md"])

    def units(changed, text):
        for name, before in {**TREE, changed: text}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text if name == changed else before)
        passed.content.cache_clear()
        return passed.Units(Imports(tmp_path), {changed: TREE[changed]})

    yield units
    passed.content.cache_clear()


def test_a_key_is_of_what_is_reached(units):
    file = "tests/layers/test_one.py"

    def key(changed, text, backend="jax"):
        return units(changed, text).keys(file, backend)[file]

    same = key("README.md", PAGE)
    assert key("keras_transformer/two.py", "def f(): return 2") == same
    assert key("keras_transformer/one.py", "def f(): return 1") != same
    assert key("tests/conftest.py", "import keras_transformer") != same
    assert key("README.md", PAGE, "torch") != same


def test_examples_are_touched_by_what_they_use(units):
    first, second = (f"{passed.PAGES}::test_example_of_a_page_runs[README.md-{i}]" for i in (1, 2))
    assert units("keras_transformer/one.py", "def f(): return 1").untouched(passed.PAGES) == {
        second
    }
    other = PAGE.replace("kt.two.f()", "kt.two.f()  # again")
    assert units("README.md", "A word.\n" + other).untouched(passed.PAGES) == {first}
    assert not units("tests/docs/test_alone.py", "x = 1").untouched(passed.PAGES)


def test_what_passed_is_left_out_once(tmp_path):
    """Tests that failed, and tests that were left out, are not kept as passed."""
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\nfrom tests import passed\n"
        "passed.FOLDER = Path(__file__).parent\npassed.PASSED = passed.FOLDER / 'passed.json'\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(passed.Short('jax'), 'short')\n"
    )
    (tmp_path / "test_good.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    (tmp_path / "test_bad.py").write_text(
        "import pytest\ndef test_a(): assert False\n"
        "@pytest.mark.parametrize('x', ['p', 'q'])\ndef test_b(x): pass\n"
    )
    keys = {"test_good.py": "1", "test_bad.py": "2"}
    keys |= {"test_bad.py::test_b[p]": "3", "test_bad.py::test_b[q]": "4"}
    state = {"keys": keys, "skip": ["test_bad.py::test_b[q]"]}
    (tmp_path / "jax.json").write_text(json.dumps(state))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", f"--rootdir={tmp_path}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "1 failed, 3 passed, 1 deselected" in done.stdout, done.stdout + done.stderr
    kept = json.loads((tmp_path / "passed.json").read_text())
    assert kept == {"jax": {"test_good.py": ["1"], "test_bad.py::test_b[p]": ["3"]}}
