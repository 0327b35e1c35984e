"""The sub-command doctor: what it finds on this machine, and what it says of what is wrong."""

import importlib.metadata
import os
import re

import keras
import pytest

import keras_transformer as kt
from keras_transformer.cli import doctor
from keras_transformer.cli.doctor import _EXTRAS


@pytest.fixture
def healthy(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "_ROOM", 0)  # whatever else is on this disk


def test_a_healthy_environment(run, healthy):
    code, out, errors = run("doctor")
    assert (code, errors) == (0, "")
    assert re.search(rf"\n  keras_transformer +{re.escape(kt.__version__)}\n", out)
    assert re.search(rf"\n  keras +{re.escape(keras.__version__)}\n", out)
    assert re.search(rf"\n  backend +{keras.backend.backend()}, ", out)
    assert re.search(r"\n  devices +\S", out)
    assert re.search(r"\n  models of the hub +/.*, [\d.]+ GB free", out)
    assert len(re.findall(r"\n  \[x\] \w+", out)) == len(_EXTRAS)  # the tests need them all
    assert out.endswith("\nno problem was found\n")


def test_extras_are_those_of_the_package():
    known = set(importlib.metadata.metadata("keras_transformer").get_all("Provides-Extra"))
    assert set(_EXTRAS) <= known


@pytest.mark.backend_independent
def test_each_problem_has_a_cure(run, healthy, monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100'\n")
    program.chmod(0o755)
    versions = {"jinja2": None, "keras": "3.9.0"}
    version = importlib.metadata.version

    def installed(name):
        found = versions.get(name, "") if name in versions else version(name)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", installed)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "4000")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, _ = run("doctor")
    assert code == 1
    missing = r'\[ \] generation +.*: pip install "keras_transformer\[generation\]" for jinja2\n'
    assert re.search(missing, out)
    problems = re.findall(r"problem: (.*)", out)
    starts = (
        "keras is 3.9.0, but ",
        "there is a GPU, but ",
        "OMP_NUM_THREADS is",
        "HF_HUB_OFFLINE",
    )
    assert len(problems) == 4
    for start, problem in zip(starts, problems, strict=True):
        assert problem.startswith(start)
    assert "keras_transformer[jax-cuda]" in problems[1]


@pytest.mark.backend_independent
def test_a_full_disk(run, healthy, monkeypatch):
    monkeypatch.setattr(doctor, "_ROOM", 10**18)
    code, out, _ = run("doctor")
    assert code == 1
    assert re.findall(r"problem: .* has less than 1000000000 GB free: set HF_HOME", out)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("#!/bin/sh\nexec sleep 5\n", ["nvidia-smi does not answer"]),
        ("\0", []),  # no program of this machine
        ("#!/bin/sh\necho failed\nexit 9\n", []),
    ],
)
def test_a_driver_that_does_not_answer(monkeypatch, tmp_path, program, told):
    path = tmp_path / "nvidia-smi"
    path.write_text(program)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(doctor, "_PATIENCE", 0.1)
    problems = [text for text in doctor._problems(doctor._requirements()) if "GPU" in text]
    assert [text[: len("nvidia-smi does not answer")] for text in problems] == told
