"""The test files that a change touches, those that import it most directly first.

`python -m tests.changed SECONDS BACKEND...` writes into .cache/changed what the next run of each
backend takes, and says what is left out. A name is followed through what a package exports again
to the module that defines it, so that `from keras_transformer.layers import Dropout` leads to
`layers/dropout.py` and to nothing else there. Files are taken until their seconds, which pytest's
cache keeps from earlier runs, are used up. What passed before with the same content is left out
(`tests/passed.py`).
"""

import ast
import collections
import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.passed import FOLDER, Units, passed_before
from tests.places import marks_of_file, place
from tests.timing import UNKNOWN

ROOT = Path(__file__).parents[1]
FOLDERS = ("keras_transformer", "tests", "examples", "benchmarks")
# What is read or run, not imported, and by which tests.
READ = {
    "README.md": "tests/docs",
    "docs/": "tests/docs",
    "examples/": "tests/examples",
    "presets/": "tests/checkpoints/test_presets.py",
    "pyproject.toml": "tests/test_wheel.py",
    "keras_transformer/support/foreign_names.json": "tests/test_names_of_others.py",
}
FACTS = ROOT / ".cache" / "imports.json"


def facts_of(text: bytes | str) -> dict[str, list]:
    """Return the imports of a module and the chains of attributes that begin with them, `a.b.c`."""
    imports, froms, chains = [], [], set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imports += [[alias.name, alias.asname or alias.name] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            froms += [[node.module, alias.name, alias.asname or alias.name] for alias in node.names]
        elif isinstance(node, ast.Attribute):
            chains.add(tuple(_chain(node)))
    known = {own for *_, own in [*imports, *froms]}
    found = sorted(list(chain) for chain in chains if chain[0] in known)
    return {"imports": imports, "froms": froms, "chains": found}


class Imports:
    """Which module takes what from which others, by their text: nothing is imported.

    Args:
        root: the folder that has the packages.
        kept: a file with what was read before, by content, which is read and written.
    """

    facts_of = staticmethod(facts_of)

    def __init__(self, root: Path = ROOT, kept: Path | None = None):
        self.root, self.paths = root, {}
        for path in sorted(path for name in FOLDERS for path in (root / name).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            self.paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        before = json.loads(kept.read_text()) if kept and kept.is_file() else {}
        self.hashes, facts = {}, {}
        for name, path in self.paths.items():
            text = path.read_bytes()
            self.hashes[name] = content = hashlib.sha256(text).hexdigest()
            facts[content] = before.get(content) or facts_of(text)
        self.facts = {name: facts[content] for name, content in self.hashes.items()}
        if kept and facts.keys() != before.keys():
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(facts))

    @functools.cache  # noqa: B019  one graph in a process
    def exported(self, module: str) -> dict[str, tuple[str, str]]:
        """The names that a module has from elsewhere: where each comes from."""
        return {
            own: (origin, name)
            for origin, name, own in self.facts[module]["froms"]
            if origin in self.paths
        }

    def defines(self, module: str, name: str) -> str:
        """The module that defines a name which `module` has."""
        if f"{module}.{name}" in self.paths:
            return f"{module}.{name}"
        origin = self.exported(module).get(name)
        return self.defines(*origin) if origin and origin != (module, name) else module

    @functools.cache  # noqa: B019
    def taken(self, module: str) -> set[str]:
        """The modules whose definitions a module uses."""
        return self.taken_by(self.facts[module]) - {module}

    def taken_by(self, facts: dict[str, list]) -> set[str]:
        """The modules whose definitions a text uses, by its `facts_of`."""
        found, aliases = set(), {}
        for name, own in facts["imports"]:
            if name in self.paths:
                aliases[own] = name
        for module, name, own in facts["froms"]:
            if module in self.paths:
                aliases[own] = self.defines(module, name)
                found.add(aliases[own])
        for first, *names in facts["chains"]:
            origin = aliases.get(first)
            for name in names if origin else ():
                origin = self.defines(origin, name)
            if origin:
                found.add(origin)
        return found

    def reached(self, modules: Iterable[str]) -> set[str]:
        """These modules and all whose definitions they use, directly or by way of others."""
        found, waiting = set(), list(modules)
        while waiting:
            module = waiting.pop()
            if module not in found:
                found.add(module)
                waiting += self.taken(module)
        return found

    @functools.cached_property
    def takers(self) -> dict[str, set[str]]:
        """The modules that use each module; a `conftest` is used by the tests beside it."""
        found = collections.defaultdict(set)
        for module in self.paths:
            for origin in self.taken(module):
                found[origin].add(module)
            folder, _, name = module.rpartition(".")
            if name == "conftest":
                found[module] |= {other for other in self.paths if other.startswith(f"{folder}.")}
        return found

    def tests_of(self, changed: list[str]) -> dict[str, int]:
        """The test files that changed files reach, and in how many steps."""
        names = {str(path.relative_to(self.root)): name for name, path in self.paths.items()}
        steps = {names[path]: 0 for path in changed if path in names}
        waiting = collections.deque(steps)
        while waiting:
            module = waiting.popleft()
            for taker in sorted(self.takers[module]):
                if taker not in steps:
                    steps[taker] = steps[module] + 1
                    waiting.append(taker)
        tests = {str(self.paths[name].relative_to(self.root)): n for name, n in steps.items()}
        for path in changed:
            for beginning, read_by in READ.items():
                if path.startswith(beginning):
                    found = (self.root / read_by).rglob("test_*.py")
                    found = list(found) or [self.root / read_by]
                    tests.update({str(test.relative_to(self.root)): 1 for test in found})
        named = {f"test_{Path(path).stem.lstrip('_')}.py" for path in changed}
        return {
            path: 0 if Path(path).name in named else n
            for path, n in tests.items()
            if Path(path).name.startswith("test_")
        }


def _chain(node: ast.expr) -> list[str]:
    """Return `["a", "b", "c"]` for `a.b.c`; an empty first name if it is not a chain of names."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(names)]


def changed_files(base: str | None = None) -> list[str]:
    """The files that differ from where this branch left the main one, new files included."""

    changed = _git("diff", "--name-only", "--diff-filter=d", left_main(base)).splitlines()
    new = _git("ls-files", "--others", "--exclude-standard").splitlines()
    return sorted({*changed, *new})


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def left_main(base: str | None = None) -> str:
    """The commit where this branch left the main one."""
    for name in [base] if base else ["origin/main", "main", "origin/master", "master", "HEAD"]:
        if left := _git("merge-base", "HEAD", name).strip():
            return left
    raise ValueError(f"git knows no {base!r}; give the branch to compare with: make BASE=name")


def chosen(tests: dict[str, int], known: dict[str, float], budget: float):
    """The nearest tests for `budget` seconds, the quicker of equally near ones first."""
    order = sorted(tests, key=lambda path: (tests[path], known.get(path, UNKNOWN), path))
    taken, spent = [], 0.0
    for path in order:
        spent += known.get(path, UNKNOWN)
        if spent > budget and taken:
            break
        taken.append(path)
    return taken, order[len(taken) :]


def main():
    """Writes what each backend takes; what is left out goes to standard error."""
    budget, backends = float(sys.argv[1]) / len(sys.argv[2:]), sys.argv[2:]
    imports = Imports(kept=FACTS)
    base = os.environ.get("BASE")
    changed, left = changed_files(base), left_main(base)
    touched = imports.tests_of(changed)
    units = Units(imports, {path: _git("show", f"{left}:{path}") for path in changed})
    FOLDER.mkdir(parents=True, exist_ok=True)
    for backend in backends:
        cache = ROOT / ".pytest_cache" / "v" / "seconds" / backend
        known = json.loads(cache.read_text()) if cache.is_file() else {}
        here = {
            path: steps
            for path, steps in touched.items()
            if place(marks_of_file(ROOT / path), backend)[0] == backend
        }
        keys = {path: units.keys(path, backend) for path in here}
        before = passed_before(backend, keys)
        skipped = {path: before[path] | units.untouched(path) for path in here}
        # Of a file of many examples the share that is run.
        shares = {path: 1 - len(skipped[path]) / len(keys[path]) for path in here}
        seconds = {path: known.get(path, UNKNOWN) * shares[path] for path in here}
        taken, others = chosen({p: n for p, n in here.items() if shares[p]}, seconds, budget)
        state = {
            "keys": {unit: key for path in taken for unit, key in keys[path].items()},
            "skip": sorted(unit for path in taken for unit in skipped[path]),
        }
        (FOLDER / f"{backend}.json").write_text(json.dumps(state))
        (FOLDER / backend).write_text(" ".join(taken))
        passed = sum(not share for share in shares.values())
        if passed:
            said = f"{backend}: {passed} test files passed before, with the same content"
            print(said, file=sys.stderr)
        if others:
            said = f"{backend}: {len(others)} test files further away, about "
            print(f"{said}{sum(seconds[p] for p in others):.0f} s, are left out", file=sys.stderr)


if __name__ == "__main__":
    main()
