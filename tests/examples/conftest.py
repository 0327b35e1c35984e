"""Shared code of the tests of examples: an example as a user starts it, in an empty folder."""

import re
from pathlib import Path

import pytest

from tests.environments import variables
from tests.warm import Warm

ROOT = Path(__file__).parents[2]
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compiling is most of the time here


@pytest.fixture(scope="module")
def warm(alone, tmp_path_factory):
    """A process where one backend is installed and nothing names it, and that has the package."""
    warm = Warm(alone, variables(tmp_path_factory.mktemp("warm"), **QUICK))
    yield warm
    warm.close()


@pytest.fixture
def flags_of(shared_data, tmp_path):
    """The program of an example, and the flag that it is always given."""

    def flags_of(name):
        of_no_data = ("demo", "generate", "long_documents", "read_words", "video_classification")
        always = "--seed=0" if name in of_no_data else f"--data_dir={shared_data}"
        always = "--seeds=0" if name == "reinforce_arithmetic" else always
        return [str(ROOT / "examples" / f"{name}.py"), always]

    return flags_of


@pytest.fixture
def start(warm, flags_of, tmp_path):
    """Starts an example in an empty folder."""

    def start(name, *arguments):
        # Errors apart: what a backend logs may come in the middle of a line of the example.
        return warm.start(*flags_of(name), *arguments, cwd=tmp_path, stderr=tmp_path / "stderr.txt")

    return start


@pytest.fixture
def run(start, tmp_path):
    """Runs an example to its end: what it printed, or said when it failed as it should."""

    def run(name, *arguments, code=0):
        process = start(name, *arguments)
        printed, _ = process.communicate()
        said = (tmp_path / "stderr.txt").read_text()
        assert process.returncode == code, printed + said
        return printed + said if code else printed

    return run


def shares(text):
    return [float(share) / 100 for share in re.findall(r"([\d.]+)%", text)]
