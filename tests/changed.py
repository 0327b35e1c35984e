"""The test files that a change touches, those that import it most directly first.

`python -m tests.changed` prints them. A name is followed through what a package exports again to
the module that defines it, so that `from keras_transformer.layers import Dropout` leads to
`layers/dropout.py` and to nothing else there. Files are taken until their seconds, which pytest's
cache keeps from earlier runs, are used up; what is left out is said.
"""

import ast
import collections
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

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
}


class Imports:
    """Which module takes what from which others, by their text: nothing is imported."""

    def __init__(self, root: Path = ROOT):
        self.root, self.paths = root, {}
        for path in sorted(path for name in FOLDERS for path in (root / name).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            self.paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        self.trees = {name: ast.parse(path.read_bytes()) for name, path in self.paths.items()}

    @functools.cache  # noqa: B019  one graph in a process
    def exported(self, module: str) -> dict[str, tuple[str, str]]:
        """The names that a module has from elsewhere: where each comes from."""
        nodes = ast.walk(self.trees[module])
        return {
            alias.asname or alias.name: (node.module, alias.name)
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module in self.paths
            for alias in node.names
        }

    def defines(self, module: str, name: str) -> str:
        """The module that defines a name which `module` has."""
        if f"{module}.{name}" in self.paths:
            return f"{module}.{name}"
        origin = self.exported(module).get(name)
        return self.defines(*origin) if origin and origin != (module, name) else module

    def taken(self, module: str) -> set[str]:
        """The modules whose definitions a module uses."""
        found, aliases = set(), {}
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in self.paths:
                        aliases[alias.asname or alias.name] = alias.name
            elif isinstance(node, ast.ImportFrom) and node.module in self.paths:
                for alias in node.names:
                    origin = self.defines(node.module, alias.name)
                    found.add(origin)
                    aliases[alias.asname or alias.name] = origin
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Attribute):
                first, *names = _chain(node)
                origin = aliases.get(first)
                for name in names if origin else ():
                    origin = self.defines(origin, name)
                if origin:
                    found.add(origin)
        return found - {module}

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
    """`["a", "b", "c"]` of `a.b.c`; what is no chain of names begins with an empty one."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(names)]


def changed_files(base: str | None = None) -> list[str]:
    """The files that differ from where this branch left the main one, new files included."""

    def git(*arguments):
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.splitlines() if done.returncode == 0 else []

    for name in [base] if base else ["origin/main", "main", "origin/master", "master", "HEAD"]:
        if left := git("merge-base", "HEAD", name):
            changed = git("diff", "--name-only", "--diff-filter=d", left[0])
            return sorted({*changed, *git("ls-files", "--others", "--exclude-standard")})
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
    """Prints the files; what is left out goes to standard error."""
    backend, budget = os.environ.get("KERAS_BACKEND", "jax"), float(sys.argv[1])
    cache = ROOT / ".pytest_cache" / "v" / "seconds" / backend
    known = json.loads(cache.read_text()) if cache.is_file() else {}
    tests = Imports().tests_of(changed_files(os.environ.get("BASE")))
    taken, left = chosen(tests, known, budget)
    if left:
        seconds = sum(known.get(path, UNKNOWN) for path in left)
        said = f"{len(left)} test files further away, about {seconds:.0f} s, are left out"
        print(said, file=sys.stderr)
    print(*taken)


if __name__ == "__main__":
    main()
