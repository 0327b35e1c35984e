"""make check-hub: what it says of models on the hub that are the same, moved, changed or gone."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import keras_transformer as kt
from tests.checkpoints.conftest import small_backbone
from tests.checkpoints.hub_server import FakeHub

pytestmark = pytest.mark.backend_independent

ROOT = Path(__file__).parents[2]
# With presets of its own in place of the bundled ones, which are many.
PROGRAM = """
import pathlib, runpy, sys
from keras_transformer.checkpoints.presets import listing
import keras_transformer.checkpoints as checkpoints
folder = pathlib.Path(sys.argv[1])
listing.presets_folder = checkpoints.presets_folder = lambda: folder
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Published models: one, and with another value, with another weight, without its config."""
    place = tmp_path_factory.mktemp("models")
    for name, layers in (("one", 1), ("two", 2)):
        model = small_backbone(
            kind="decoder", position="learned", normalize_first=True, num_layers=layers
        )
        kt.export_to_huggingface(kt.CausalLM(model), place / name, family="gpt2")
    shutil.copytree(place / "one", place / "value")
    path = place / "value" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"layer_norm_epsilon": 0.5}))
    shutil.copytree(place / "one", place / "gone")
    (place / "gone" / "config.json").unlink()
    return place


def checked(folders, tmp_path, newest, **presets):
    """Return the exit code, what is printed of presets, and the counts.

    A preset is given as the folders of its config and of its pinned commit.
    """
    commits = {name: hashlib.sha1(name.encode()).hexdigest() for name in os.listdir(folders)}
    for name, (config, pinned) in presets.items():
        preset = tmp_path / "presets" / name
        preset.mkdir(parents=True)
        described, task, _ = kt.checkpoints.load_config(folders / config, load_weights=False)
        values = {
            "format": "keras_transformer", "format_version": 2, "backbone": described.to_dict(),
            "task": task, "metadata": {"family": "gpt2", "license": "mit", "parameters": 1},
            "weights": {"format": "huggingface", "hub": f"hf://org/{name}@{commits[pinned]}"},
        }  # fmt: skip
        (preset / "config.json").write_text(json.dumps(values))
    revisions = {commit: folders / name for name, commit in commits.items()}
    with FakeHub(revisions, {"main": commits[newest]}, {}).running() as address:
        environment = os.environ | {
            "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0",
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        program = [sys.executable, "-c", PROGRAM, preset.parent, ROOT / ".ci" / "check_hub.py"]
        done = subprocess.run(
            list(map(str, program)), env=environment, capture_output=True, text=True, timeout=300
        )
    assert "Traceback" not in done.stderr, done.stderr
    *said, counts = re.split(r"\n(?=\w)", done.stdout.strip())
    return done.returncode, {text.split()[1]: text for text in said}, counts


def test_what_changed(folders, tmp_path):
    presets = {
        "same": ("one", "one"), "value": ("value", "value"), "weight": ("two", "two"),
        "other": ("two", "value"), "gone": ("one", "gone"),
    }  # fmt: skip
    code, said, counts = checked(folders, tmp_path, "one", **presets)
    assert code == 1 and counts == "1 same, 0 moved, 2 changed, 2 broken"
    assert set(said) == {"value", "weight", "other", "gone"}
    assert said["value"].startswith("changed") and "epsilon: 0.5 -> 1e-06" in said["value"]
    assert "transformer.h.1.mlp.c_proj.weight: F32 [12, 8] -> none" in said["weight"]
    assert "the preset is not the published config: num_layers: 2 -> 1" in said["other"]
    assert said["gone"].startswith("broken")


def test_a_newest_commit_that_does_not_load(folders, tmp_path):
    code, said, counts = checked(folders, tmp_path, "gone", small=("one", "one"))
    assert code == 0 and counts == "0 same, 0 moved, 1 changed, 0 broken"
    assert "the newest commit does not load: " in said["small"]
