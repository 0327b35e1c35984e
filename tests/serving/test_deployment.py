"""Deployment as the pages describe it: the Dockerfile, and jobs on Ray."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

import keras_transformer as kt
from keras_transformer.cli.parser import make_parser
from keras_transformer.tokenizers import moses_detokenize, moses_tokenize
from tests.conftest import ROOT

pytestmark = pytest.mark.one_backend


def instructions():
    """The instructions of the Dockerfile, a list of name and text."""
    text = (ROOT / "docs" / "assets" / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(" ", 1)) for line in lines]


def test_what_the_dockerfile_runs_is_understood():
    """An image is not built here. What it starts, checks and installs is looked at."""
    found = dict(instructions())
    command = [*json.loads(found["ENTRYPOINT"]), *json.loads(found["CMD"])]
    options = make_parser().parse_args(command[1:])
    assert command[0] == "keras-transformer" and options.api
    assert (options.host, options.api_key) == ("0.0.0.0", "API_KEY")
    check = json.loads(found["HEALTHCHECK"].split(" CMD ")[1])
    ast.parse(check[-1])
    assert f":{options.port}/ready" in check[-1] and found["EXPOSE"] == str(options.port)
    runs = " && ".join(text for name, text in instructions() if name == "RUN")
    assert all(shlex.split(part) for part in runs.split("&&"))
    extras = re.search(r"/source\[(.*)\]", runs)[1].split(",")
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras)


@pytest.mark.thorough
def test_a_task_over_a_file_on_two_workers_of_ray(tmp_path):
    """Each text has what the task gives it alone, in the order of the file."""
    lines = ["a man rides a bike .", "two dogs are playing .", "it is cold ."] * 3
    (tmp_path / "in.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    command = [sys.executable, ROOT / "examples" / "distributed_inference.py"]
    command += ["--preset=transformer_tiny_en_de", "--input=in.txt", "--output=out"]
    command += ["--workers=2", "--batch_size=2", "--max_new_tokens=12"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, timeout=300, check=False, **options)
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "out").iterdir())
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [row["text"] for row in found] == lines
    split = [moses_tokenize(line) for line in lines[:3]]
    sampler = kt.generation.BeamSearch(4)
    expected = translator.generate(split, max_new_tokens=12, sampler=sampler)
    assert [row["texts"] for row in found] == [moses_detokenize(text) for text in expected] * 3
    done = subprocess.run(command, timeout=300, check=False, **options)
    assert done.returncode == 1 and "is there already" in done.stdout + done.stderr
