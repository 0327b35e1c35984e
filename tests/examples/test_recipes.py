"""The recipes of published results are flags that the examples know."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.json"))

pytestmark = pytest.mark.backend_independent


def run(*arguments, cwd=ROOT):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_example_takes_the_flags(path):
    recipe = json.loads(path.read_text(encoding="utf-8"))
    assert set(recipe) == {"example", "backend", "flags", "took", "scores"}
    flags = [f"--{name}={value}" for name, value in recipe["flags"].items()]
    example = str(ROOT / "examples" / f"{recipe['example']}.py")
    done = run(example, *flags, "--only_check_args")
    assert done.returncode == 0, done.stderr
    assert run(example, *flags, "--no_such_flag=1", "--only_check_args").returncode != 0


def test_reproduce_names_the_recipes():
    script = str(ROOT / "examples" / "reproduce.py")
    for arguments, words in (((), "The recipes:"), (("nothing",), "There is no recipe 'nothing'")):
        done = run(script, *arguments)
        assert done.returncode == 1 and words in done.stderr
        assert all(path.stem in done.stderr for path in RECIPES)
