"""Where a test runs: the one backend that its marks choose, or each of the run.

A test is left out as early as its marks are known: a file before it is read by pytest, a function
before its parameters are made, a parameter once it is an item. Collecting everything on each
backend took a fifth of the run.

Where a test without such a mark runs depends on its subject. Operations, such as kernels, losses
and metrics: on each backend. Layers and models: on PyTorch and, by turns, on one of the two that
compile. Of several cases that holds for the first, and the others run once, by turns. What is built
on these runs once: tests, and cases of a test, take turns. The mark `each_backend` keeps a
test and all of its cases on each backend, and so does the thorough run.
"""

import ast
import importlib.util
import os
import zlib
from collections import defaultdict
from pathlib import Path

import pytest

from tests.thorough import THOROUGH

BACKEND_PACKAGES = {"jax": "jax", "tensorflow": "tensorflow", "torch": "torch"}
INSTALLED = [
    name for name, package in BACKEND_PACKAGES.items() if importlib.util.find_spec(package)
]
# The backends that these tests are run on, one after the other: `make` names them.
RUN = os.environ.get("TEST_BACKENDS", "").split() or INSTALLED
HERE = Path(__file__).parent
# Files whose subject is operations, or what Keras and a compiler make of a task. The files of
# kernels/, and all that are in no folder, are such files too.
OF_OPERATIONS = {
    "test_accumulation.py", "test_cache.py", "test_choosing.py", "test_embedding_losses.py",
    "test_engine.py", "test_first_fit.py", "test_keras_contract.py",
    "test_linear_cross_entropy.py", "test_losses.py", "test_metrics.py", "test_optimizers.py",
    "test_random_sampling.py", "test_rules.py", "test_verbs_in_any_order.py",
}  # fmt: skip
# Whose turn it is for what is built on operations: the others compile, and the same test takes two
# or three times as long as on PyTorch.
TURNS = ("torch", "jax", "torch", "torch", "tensorflow", "torch")
# Marks that say where a case runs.
PLACED = {"backend_independent", "one_backend", "each_backend", "thorough", "skipif"}


def place(marks: dict[str, tuple], here: str) -> tuple[str | None, str]:
    """Return the backend that runs a test, `None` if only a thorough run does, and the reason.

    Args:
        marks: the arguments of each mark of the test, by the mark's name.
        here: the backend of this process, which is the place of a test without such marks.
    """
    if "thorough" in marks and not THOROUGH:
        return None, "make test-thorough runs it"
    # In a file that one backend runs, that backend runs these too: others do not collect it.
    if "backend_independent" in marks and "one_backend" not in marks:
        return INSTALLED[0], f"does not depend on the backend, and runs on {INSTALLED[0]}"
    if "one_backend" in marks and "each_backend" not in marks and not THOROUGH:
        # PyTorch starts soonest, and compiles nothing.
        one = "torch" if "torch" in RUN else RUN[0]
        if (chosen := marks["one_backend"]) and chosen[0] in RUN:
            one = chosen[0]
        return one, f"one backend is enough, {one} (here with TEST_BACKENDS={here})"
    return here, ""


def backends_of(path: Path, name: str, number: int) -> list[str]:
    """Return the backends, of those of the run, of a case of a test without a mark."""
    place = path.relative_to(HERE).parts if path.is_relative_to(HERE) else (path.name,)
    # By its name, so that it is the same in each process.
    turn = zlib.crc32(f"{path.name}::{name}".encode()) + number
    if place[0] in ("kernels", path.name) or path.name in OF_OPERATIONS:
        return [RUN[number % len(RUN)]] if number else RUN
    compiled = [backend for backend in RUN if backend != "torch"]
    if place[0] in ("layers", "models") and compiled and number == 0:
        return [backend for backend in RUN if backend in ("torch", compiled[turn % len(compiled)])]
    turns = [backend for backend in TURNS if backend in RUN]
    return [turns[turn % len(turns)]]


def marks_of_file(path: Path) -> dict[str, tuple]:
    """Return the marks that hold for each test of a file, read from its `pytestmark`.

    They are empty where a test of the file has a mark `each_backend`, which undoes one of them.
    """
    text = path.read_text(encoding="utf-8")
    if "pytestmark" not in text or "each_backend" in text:
        return {}
    marks = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and "pytestmark" in map(ast.unparse, node.targets):
            values = node.value.elts if isinstance(node.value, ast.List) else [node.value]
            for value in values:
                called = isinstance(value, ast.Call)
                name = ast.unparse(value.func if called else value).rpartition(".")[2]
                given = value.args if called else ()
                marks[name] = tuple(x.value for x in given if isinstance(x, ast.Constant))
    return marks


class Places:
    """Plugin that leaves out what another backend of the run does, or the thorough run alone.

    What is asked for by its own name, a file or a test, is collected and skipped with the reason.
    """

    def __init__(self, here: str):
        self.here = here

    def pytest_report_header(self):
        return f"tests of {self.here}; what one backend is enough for may run on another"

    def pytest_ignore_collect(self, collection_path):
        """Leave a file unread if all of its tests run elsewhere; pytest asks of folders' files."""
        if collection_path.suffix == ".py" and collection_path.name.startswith("test_"):
            return self._elsewhere(marks_of_file(collection_path))
        return None

    def pytest_pycollect_makeitem(self, collector, name, obj):
        """Make no items of a function that runs elsewhere."""
        named = any("::" in argument for argument in collector.config.args)
        if named or not name.startswith("test_"):
            return None
        own = getattr(obj, "pytestmark", ())  # of a module that a test imports, perhaps one mark
        marks = [*collector.iter_markers(), *(own if isinstance(own, list | tuple) else [own])]
        return [] if self._elsewhere({mark.name: mark.args for mark in marks}) else None

    def pytest_collection_modifyitems(self, config, items):
        """Skip what is left: parameters with marks of their own, and what was asked for by name."""
        for item in items:
            nearest_last = reversed([*item.iter_markers()])
            where, reason = place({mark.name: mark.args for mark in nearest_last}, self.here)
            if where != self.here:
                item.add_marker(pytest.mark.skip(reason=reason))
        if THOROUGH or any("::" in argument for argument in config.args):
            return
        elsewhere = self._cases_elsewhere(items)
        if elsewhere:
            config.hook.pytest_deselected(items=elsewhere)
            items[:] = [item for item in items if item not in elsewhere]

    def _cases_elsewhere(self, items) -> set:
        """Return the items that other backends run, of tests whose marks do not place them."""
        tests = defaultdict(list)
        for item in items:
            if not PLACED & {mark.name for mark in item.iter_markers()}:
                tests[item.path, item.originalname].append(item)
        elsewhere = set()
        for (path, name), cases in tests.items():
            for number, case in enumerate(cases):
                if self.here not in backends_of(path, name, number):
                    elsewhere.add(case)
        return elsewhere

    def _elsewhere(self, marks) -> bool | None:
        """True, or None, which asks the next plugin."""
        return place(marks, self.here)[0] != self.here or None
