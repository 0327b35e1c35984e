"""The wheel carries the presets, and an installed copy finds its own, not the checkout's."""

import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.backend_independent

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PRESETS = {path.name for path in (ROOT / "presets").iterdir() if path.is_dir()}


def run(*command, cwd):
    """Return the output of the command; a failure shows all of it."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built with the hatchling of this environment: nothing is downloaded."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The scripts folder of a new environment with the wheel in it.

    The dependencies are those of the environment that runs the tests: a line of a .pth file adds
    its folder behind the new one's own, and does not follow the .pth files in there, such as that
    of an editable install of the checkout.
    """
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder), cwd=folder)
    scripts = folder / ("Scripts" if sys.platform == "win32" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(scripts / "python"), "install"]
    run(*pip, "--quiet", "--no-index", "--no-deps", str(wheel), cwd=folder)
    site = run(
        str(scripts / "python"),
        "-c",
        "import sysconfig; print(sysconfig.get_path('purelib'))",
        cwd=folder,
    )
    (Path(site.strip()) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return scripts


def test_wheel_carries_every_file_of_the_presets(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    for path in (ROOT / "presets").rglob("*"):
        if path.is_file():
            assert f"keras_transformer/_presets/{path.relative_to(ROOT / 'presets')}" in inside
    assert any(name.endswith("licenses/LICENSE") for name in inside)
    tops = {name.split("/")[0] for name in inside}
    assert tops == {"keras_transformer", f"keras_transformer-{VERSION}.dist-info"}


def test_wheel_is_small(wheel):
    """The package index takes 100 MB, and each environment that has the package its size."""
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    assert wheel.stat().st_size < 40e6


@pytest.mark.thorough
def test_source_distribution_builds_the_same_wheel(wheel, tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=ROOT)
    (source,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / source.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=folder)
    (again,) = tmp_path.glob("*.whl")
    names = [set(zipfile.ZipFile(each).namelist()) for each in (wheel, again)]
    assert names[0] == names[1]


def test_installed_copy_finds_its_presets(installed, tmp_path):
    script = """
import keras_transformer as kt
from keras_transformer.checkpoints import resolve_preset
print(kt.__file__)
for name in kt.list_presets():
    source = resolve_preset(name)
    here = source.file("tokenizer.json").is_file()
    ids = kt.Tokenizer.from_preset(name).encode("") if here else "none"
    print(name, source.directory, ids)
print("loaded", kt.Backbone.from_preset("transformer_tiny_en_de").count_params())
"""
    package, *presets, loaded = run(
        str(installed / "python"), "-c", script, cwd=tmp_path
    ).splitlines()
    assert loaded == "loaded 2605568"
    package = Path(package).parent
    assert package.is_relative_to(installed.parent)
    assert not package.is_relative_to(ROOT)
    assert {line.split()[0] for line in presets} == PRESETS
    for line in presets:
        assert Path(line.split()[1]).is_relative_to(package / "_presets")


def test_console_command_lists_the_presets(installed, tmp_path):
    table = run(str(installed / "keras-transformer"), "presets", cwd=tmp_path)
    assert all(name in table for name in PRESETS)


def test_the_version_is_the_same_wherever_it_stands():
    import keras_transformer

    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert keras_transformer.__version__ == heading[1] == cited[1] == VERSION


def test_wheel_carries_the_data_beside_the_code(wheel):
    inside, package = set(zipfile.ZipFile(wheel).namelist()), ROOT / "keras_transformer"
    data = [
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*.*")
        if path.suffix in (".css", ".html", ".js", ".json")
    ]
    assert "keras_transformer/support/foreign_names.json" in data and inside.issuperset(data)


def test_wheel_says_that_it_has_types(wheel):
    """Else type checkers take nothing from an installed copy (PEP 561)."""
    assert "keras_transformer/py.typed" in zipfile.ZipFile(wheel).namelist()
