"""Record of passed tests by the content of what they run, for `make test-changed` only.

A unit is a test file; in files of examples it is each example of a page or a docstring, and each
test that starts a program of `examples/`. Its key is made of the text of the unit and of all
modules that it reaches, of the files that tests read, of the requirements and of the backend. A
unit whose key passed before is not run again, and an example that the change does not touch is not
run at all. Modules are followed by names, as in `tests/changed.py`: what is looked up when a test
runs is not seen, so `make test`, which knows nothing of this, has the last word.
"""

import ast
import functools
import hashlib
import inspect
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fences import blocks_of_pages, codes

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".cache" / "changed"
PASSED = ROOT / ".cache" / "passed.json"
MOST = 8  # keys kept for a unit on a backend: one for each branch in work
REQUIREMENTS = ("pyproject.toml", "requirements")
PAGES, DOCSTRINGS = "tests/docs/test_alone.py", "tests/test_docstrings.py"


def hash_of(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.cache
def content(*names: str) -> str:
    """A hash of files and of all that is in folders, without compiled Python."""
    paths = [path for name in names for path in (ROOT / name, *(ROOT / name).rglob("*"))]
    files = (path for path in paths if path.is_file() and path.suffix != ".pyc")
    found = sorted((str(p), hashlib.sha256(p.read_bytes()).hexdigest()) for p in files)
    return hash_of(*(part for file in found for part in file))


class Units:
    """The units of test files, and the key of each.

    Args:
        imports: `Imports` of `tests/changed.py`.
        before: the files that differ from the main branch, and their text there, "" for new ones.
    """

    def __init__(self, imports, before: Mapping[str, str]):
        self.imports, self.before = imports, before
        names = {str(path.relative_to(imports.root)): name for name, path in imports.paths.items()}
        self.names = names
        self.changed_modules = {names[path] for path in before if path in names}
        # What every test is run by; not what the conftest of all imports of the package.
        self.machinery = [
            imports.hashes[name] for name in sorted(imports.paths)
            if name.startswith("tests.") and name.count(".") == 1 and "test_" not in name
        ]  # fmt: skip

    def hash_of_modules(self, modules: set[str]) -> str:
        return hash_of(*(f"{name} {self.imports.hashes[name]}" for name in sorted(modules)))

    @functools.cache  # noqa: B019  one in a process
    def parts(self, path: str) -> dict[str, tuple[str, frozenset[str]]]:
        """The units of a file: the text of each, and the modules that it reaches."""
        module = self.names[path]
        folder = module.rpartition(".")[0]
        # Helpers are programs at times, which no test imports.
        beside = {
            name for name in self.imports.paths
            if name.rpartition(".")[0] == folder and folder != "tests"
            and not name.rpartition(".")[2].startswith("test_")
        }  # fmt: skip
        own = self.imports.reached({module, *beside})
        reads = path.startswith(("tests/docs/", "tests/examples/"))
        found = {path: (content("README.md", "docs", "examples") if reads else "", own)}
        if path in (PAGES, DOCSTRINGS):
            function = "test_example_of_a_page_runs" if path == PAGES else "test_example_runs"
            examples = dict(blocks_of_pages()) if path == PAGES else dict(examples_of_docstrings())
            for name, code in examples.items():
                taken = self.imports.taken_by(self.imports.facts_of(code))
                found[f"{path}::{function}[{name}]"] = (code, self.imports.reached(taken))
        elif path.startswith("tests/examples/"):
            for node in ast.parse((ROOT / path).read_text()).body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    said = {x.value for x in ast.walk(node) if isinstance(x, ast.Constant)}
                    programs = {f"examples.{x}" for x in said if isinstance(x, str)}
                    started = self.imports.reached(programs & self.imports.paths.keys())
                    if started:
                        found[f"{path}::{node.name}"] = (ast.unparse(node), started)
        return found

    def keys(self, path: str, backend: str) -> dict[str, str]:
        """The key of each unit of a file on a backend."""
        same = [backend, os.environ.get("TEST_BACKENDS", ""), platform.python_version()]
        same += [content(*REQUIREMENTS), content("presets", "tests/data"), *self.machinery]
        file = self.imports.hashes[self.names[path]] if path.startswith("tests/examples") else ""
        return {
            unit: hash_of(*same, file, text, self.hash_of_modules(modules))
            for unit, (text, modules) in self.parts(path).items()
        }

    def untouched(self, path: str) -> set[str]:
        """The examples of a file whose text and modules are those of the main branch."""
        folder = self.names[path].rpartition(".")[0]
        ways = {name for name in self.changed_modules if name.rpartition(".")[0] == folder}
        if self.names[path] in ways or any(".test_" not in f".{name}" for name in ways):
            return set()  # how examples are run has changed
        parts = self.parts(path)
        return {
            unit
            for unit in parts.keys() - {path}
            if not parts[unit][1] & self.changed_modules and parts[unit][0] not in self.new_codes
        }

    @functools.cached_property
    def new_codes(self) -> set[str]:
        """The examples of changed pages and docstrings that the main branch does not have."""
        found = set()
        for path, before in self.before.items():
            if path.endswith((".md", ".py")) and (ROOT / path).is_file():
                of = docs_of if path.endswith(".py") else lambda text: {"": text}
                now = of((ROOT / path).read_text(encoding="utf-8"))
                old = {code for doc in of(before).values() for code in codes(doc)}
                found |= {code for doc in now.values() for code in codes(doc)} - old
        return found


def docs_of(text: str) -> dict[str, str]:
    """The docstrings of the public objects of a module, by their names within it."""
    tree = ast.parse(text)
    found = {"": ast.get_docstring(tree)}
    kinds = ast.ClassDef | ast.FunctionDef
    for node in (node for node in tree.body if isinstance(node, kinds)):
        found[node.name] = ast.get_docstring(node)
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef):
                found[f"{node.name}.{member.name}"] = ast.get_docstring(member)
    public = (name for name in found if not any(x.startswith("_") for x in name.split(".")))
    return {name: inspect.cleandoc(found[name]) for name in public if found[name]}


def examples_of_docstrings():
    """(id, code) of each example of the package, as `tests/test_docstrings.py` names them."""
    for path in sorted((ROOT / "keras_transformer").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for name, doc in docs_of(path.read_text(encoding="utf-8")).items():
            label = f"{module}.{name}".rstrip(".").removeprefix("keras_transformer.")
            found = codes(doc)
            for number, code in enumerate(found, 1):
                yield label if len(found) == 1 else f"{label}-{number}", code


def _read(path: Path) -> dict:
    return json.loads(path.read_text()) if path.is_file() else {}


def passed_before(backend: str, keys: dict[str, dict[str, str]]) -> dict[str, set[str]]:
    """The units of each file that passed with this key."""
    known = _read(PASSED).get(backend, {})
    return {
        path: {unit for unit, key in units.items() if key in known.get(unit, ())}
        for path, units in keys.items()
    }


class Short:
    """Plugin of a run that `tests/changed.py` prepared: leaves out units, and keeps what passed."""

    def __init__(self, backend: str):
        state = json.loads((FOLDER / f"{backend}.json").read_text())
        self.backend, self.keys, self.skip = backend, state["keys"], set(state["skip"])
        self.ran, self.failed, self.whole = set(), set(), True

    def unit(self, nodeid: str) -> str:
        """The unit that a test belongs to."""
        function, path = nodeid.partition("[")[0], nodeid.partition("::")[0]
        return next((x for x in (nodeid, function) if x in self.keys), path)

    def pytest_collection_modifyitems(self, config, items):
        left_out = [item for item in items if self.unit(item.nodeid) in self.skip]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]

    def pytest_runtest_logreport(self, report):
        unit = self.unit(report.nodeid)
        self.ran.add(unit)
        if report.failed:
            self.failed.add(unit)

    def pytest_collectreport(self, report):
        self.whole = self.whole and not report.failed

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        self.whole = self.whole and not error

    def pytest_sessionfinish(self, session, exitstatus):
        """Keep the keys of what passed, unless a part of it may not have been run."""
        stopped = session.shouldstop or session.shouldfail or exitstatus not in (0, 1)
        if hasattr(session.config, "workerinput") or stopped or not self.whole:
            return
        known = _read(PASSED)
        own = known.setdefault(self.backend, {})
        for unit in self.ran - self.failed:
            if key := self.keys.get(unit):
                others = [other for other in own.get(unit, []) if other != key]
                own[unit] = [*others, key][-MOST:]
        PASSED.parent.mkdir(parents=True, exist_ok=True)
        PASSED.write_text(json.dumps(known))
