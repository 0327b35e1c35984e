"""Recipes that need more than a backend: each is run where that is installed."""

import configparser
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_transformer.cli.parser import make_parser
from tests.fences import DOCS

BLOCK = re.compile(r"^<!-- (backend|needs): ([\w, ]+) -->\n```py\n(.*?)^```", re.DOTALL | re.M)
PAGES = sorted(DOCS.glob("recipes/*.md"))
BLOCKS = [
    (f"{page.stem}-{number}", what, value, code)
    for page in PAGES
    for number, (what, value, code) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
]
DEPLOYMENT = (DOCS / "recipes" / "deployment.md").read_text(encoding="utf-8")
# Packages of npm that the recipe in JavaScript needs.
NODE_PACKAGES = ("onnxruntime-web", "@huggingface/tokenizers")


def run(code: str) -> dict:
    """Run a recipe in the current folder, and return its names."""
    keras.utils.set_random_seed(0)
    made = {"__name__": "__main__"}
    exec(compile(code, "recipe", "exec"), made)
    return made


def fenced(kind: str) -> str:
    """Return the block of this kind on the page of deployment."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", DEPLOYMENT, re.DOTALL | re.M)
    return found


@pytest.mark.backend_independent
def test_each_backend_has_a_loop():
    loops = {value for name, _, value, _ in BLOCKS if name.startswith("training")}
    assert {"jax", "tensorflow", "torch"} <= loops


@pytest.mark.backend_independent
def test_no_block_is_left_out():
    """A block of Python is run by test_alone.py, or says here what it needs."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(re.findall(r"^```py\n", text, re.M)) == len(BLOCK.findall(text)), page.name
        assert "<!-- not run -->" not in text


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=name)
        for name, what, value, code in BLOCKS
        if what == "backend" and value == keras.backend.backend()
    ],
)
def test_the_recipe_learns(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    losses = run(code)["losses"]
    assert np.isfinite(losses).all()
    half = len(losses) // 2  # one batch alone may be harder than another
    assert np.mean(losses[-half:]) < np.mean(losses[:half])


@pytest.fixture
def database(monkeypatch):
    """A PostgreSQL with pgvector and a database `notes`, which libpq finds by its variables."""
    pgserver = pytest.importorskip("pgserver")
    psycopg = pytest.importorskip("psycopg")
    folder = tempfile.mkdtemp(dir="/tmp")  # others are closed to the user that root starts it as
    server = pgserver.get_server(folder)
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE notes")
            for name, value in (("PGHOST", connection.info.host), ("PGUSER", "postgres")):
                monkeypatch.setenv(name, value)
        yield
    finally:
        server.cleanup()
        shutil.rmtree(folder)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("needed", "code"),
    [
        pytest.param(value.split(", "), code, id=name)
        for name, what, value, code in BLOCKS
        if what == "needs" and not name.startswith("deployment")
    ],
)
def test_the_recipe_runs(needed, code, tmp_path, monkeypatch, request):
    for name in needed:
        pytest.importorskip(name)
    if "psycopg" in needed:
        request.getfixturevalue("database")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    run(code)


def node_packages() -> Path:
    """Return the folder of Node's packages that the recipe needs."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    listed = subprocess.run(["npm", "root", "-g"], capture_output=True, text=True, check=False)
    for folder in filter(None, (os.environ.get("NODE_PATH"), listed.stdout.strip())):
        if all(Path(folder, name).is_dir() for name in NODE_PACKAGES):
            return Path(folder)
    return pytest.skip(f"needs `npm install -g {' '.join(NODE_PACKAGES)}`")


@pytest.mark.one_backend
@pytest.mark.thorough
def test_javascript_says_what_python_says(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    (code,) = [code for name, *_, code in BLOCKS if name.startswith("deployment")]
    classifier = run(code)["classifier"]
    assert Path("served/model.onnx").is_file()
    Path("node_modules").symlink_to(node_packages())
    Path("classify.mjs").write_text(fenced("js"), encoding="utf-8")
    for text in ("a film that moved me", "Dull, and 2 hours too long: «naïve»!"):
        done = subprocess.run(
            ["node", "classify.mjs", text], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        label, share = done.stdout.split()
        expected, probability = classifier.classify(text)
        assert label == expected and float(share) == pytest.approx(probability, abs=1e-4)


@pytest.mark.backend_independent
def test_the_image_is_built_from_what_the_wheel_needs():
    lines = (DOCS.parent / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines  # all but these
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    given = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = given["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {given["project"]["readme"], *given["project"]["license-files"], "pyproject.toml"}
    assert kept == needed | set(wheel["only-include"])


@pytest.mark.backend_independent
def test_the_unit_of_systemd(tmp_path):
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read_string(fenced("ini"))
    program, *arguments = unit["Service"]["ExecStart"].split()
    options = make_parser().parse_args(arguments)
    assert options.api and options.api_key == "%d/api_key"
    if shutil.which("systemd-analyze"):
        path = tmp_path / "keras-transformer.service"
        path.write_text(fenced("ini").replace(program, shutil.which("true")), encoding="utf-8")
        verify = ["systemd-analyze", "verify", "--man=no", str(path)]
        done = subprocess.run(verify, capture_output=True, text=True, check=False)
        assert "keras-transformer.service" not in done.stderr, done.stderr
