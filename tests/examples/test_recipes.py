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


@pytest.fixture(scope="module")
def outcomes():
    """The exit code and the output of each program with its flags."""
    calls = [["reproduce"], ["reproduce", "nothing"]]
    for flags in map(flags_of, STAGES):
        calls += [flags, [*flags[:-1], "--no_such_flag=1", "--only_check_args"]]
    programs = [[str(ROOT / "examples" / f"{name}.py"), *flags] for name, *flags in calls]
    environment = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("forked.py"))],
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": environment},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {tuple(call): outcome for call, outcome in zip(calls, found, strict=True)}


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


STAGES = [(path, i) for path in RECIPES for i in range(len(read(path)["stages"]))]


def flags_of(stage):
    path, number = stage
    recipe = read(path)
    flags = [f"--{name}={value}" for name, value in recipe["stages"][number].items()]
    return [recipe["example"], *flags, "--only_check_args"]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: f"{stage[0].stem}-{stage[1]}")
def test_the_example_takes_the_flags(stage, outcomes):
    assert set(read(stage[0])) == {"example", "backend", "stages", "took", "scores"}
    *flags, check = flags_of(stage)
    code, printed = outcomes[*flags, check]
    assert code == 0, printed
    code, printed = outcomes[*flags, "--no_such_flag=1", check]
    assert code != 0 and "no_such_flag" in printed


def test_reproduce_names_the_recipes(outcomes):
    for arguments, words in (((), "The recipes:"), (("nothing",), "There is no recipe 'nothing'")):
        code, printed = outcomes["reproduce", *arguments]
        assert code == 1 and words in printed
        assert all(path.stem in printed for path in RECIPES)
