"""Where a test runs: the one backend that its marks choose, or each of the run.

A test is left out as early as its marks are known: a file before it is read by pytest, a function
before its parameters are made, a parameter once it is an item. Collecting everything on each
backend took a fifth of the run.
"""

import ast
import importlib.util
import os
from pathlib import Path

import pytest

from tests.thorough import THOROUGH

BACKEND_PACKAGES = {"jax": "jax", "tensorflow": "tensorflow", "torch": "torch"}
INSTALLED = [
    name for name, package in BACKEND_PACKAGES.items() if importlib.util.find_spec(package)
]
# The backends that these tests are run on, one after the other: `make` names them.
RUN = os.environ.get("TEST_BACKENDS", "").split() or INSTALLED


def place(marks: dict[str, tuple], here: str) -> tuple[str | None, str]:
    """Backend that runs a test, `None` for a thorough run alone, and the reason.

    Args:
        marks: the arguments of each mark of the test, by the mark's name.
        here: the backend of this process, which is the place of a test without such marks.
    """
    if "thorough" in marks and not THOROUGH:
        return None, "make test-thorough runs it"
    if "backend_independent" in marks:
        return INSTALLED[0], f"does not depend on the backend, and runs on {INSTALLED[0]}"
    if "one_backend" in marks and "each_backend" not in marks and not THOROUGH:
        # PyTorch starts soonest, and compiles nothing.
        one = "torch" if "torch" in RUN else RUN[0]
        if (chosen := marks["one_backend"]) and chosen[0] in RUN:
            one = chosen[0]
        return one, f"one backend is enough, {one} (here with TEST_BACKENDS={here})"
    return here, ""


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
        marks = [*collector.iter_markers(), *getattr(obj, "pytestmark", ())]
        return [] if self._elsewhere({mark.name: mark.args for mark in marks}) else None

    def pytest_collection_modifyitems(self, items):
        """Skip what is left: parameters with marks of their own, and what was asked for by name."""
        for item in items:
            where, reason = place({mark.name: mark.args for mark in item.iter_markers()}, self.here)
            if where != self.here:
                item.add_marker(pytest.mark.skip(reason=reason))

    def _elsewhere(self, marks) -> bool | None:
        """True, or None, which asks the next plugin."""
        return place(marks, self.here)[0] != self.here or None
