"""Presets that lead elsewhere, carry code, or ask for more than they are: see test_hostile.py."""

import json
import shutil
import time
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import check_weights, load_config
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint, save_tensors
from keras_transformer.tokenizers import Tokenizer
from tests.checkpoints import mutations
from tests.checkpoints.format_1 import in_format_1
from tests.checkpoints.hostile import check, healthy, loaded, mutated, outcome
from tests.checkpoints.mutations import WEIGHTS
from tests.thorough import a_part

pytestmark = pytest.mark.backend_independent

LINKS = [WEIGHTS, *mutations.CONFIGS, *mutations.TOKENIZER_FILES]


@pytest.mark.parametrize("how", ["link", "relative", "chain", "loop", "pipe", "folder"])
@pytest.mark.parametrize("file", LINKS)
def test_files_that_are_none(file, how):
    """Were the link followed, the preset would load: what it leads to is as it should be."""
    with mutated("bert") as folder:
        mutations.link_out(folder, file, folder.parent / "outside", how)
        model = outcome(lambda f: (loaded(f), Tokenizer.from_preset(f)), folder)
        if how in ("link", "relative", "chain", "loop") or file == "config.json" or file == WEIGHTS:
            assert model is None


def test_a_folder_that_is_a_link_out():
    with mutated("bert") as folder:
        shutil.move(folder / "1_Pooling", folder.parent / "outside")
        (folder / "1_Pooling").symlink_to(folder.parent / "outside")
        with pytest.raises(ValueError, match="outside the preset's folder"):
            load_config(folder)


@pytest.mark.parametrize("name", a_part(["ours", *FAMILIES]))
def test_code_is_never_run(name, tmp_path, monkeypatch):
    with mutated(name) as folder:
        marker = tmp_path / "ran"
        mutations.add_traps(folder, marker)
        monkeypatch.chdir(folder)
        check(name, folder)
        (folder / WEIGHTS).unlink()
        with pytest.raises(ValueError, match=r"in pytorch_model.bin.*Only safetensors are read"):
            load_config(folder)[0], check_weights(folder, load_config(folder)[0])
        assert not marker.exists()


CLASS_NAMES = ["os.system", "Lambda", "keras.layers.Lambda", "Task", "__class__", "tests.x.Y", ""]


@pytest.mark.parametrize("class_name", CLASS_NAMES)
def test_names_of_classes_are_looked_up_in_a_table(class_name):
    for name in ("ours", "bert"):
        with mutated(name) as folder:
            config = json.loads((folder / "config.json").read_text())
            if name == "ours":
                config["task"] = {"name": class_name, "module": "os", "registered_name": "x"}
            else:
                config["architectures"] = [class_name]
                (folder / "modules.json").unlink()
            (folder / "config.json").write_text(json.dumps(config))
            with pytest.raises(ValueError, match=r"names the task (None|'.*'), but "):
                kt.tasks.base.task.Task.from_preset(folder)


def bombs(folder):
    """Presets that would take memory or time out of proportion, by name."""
    config = in_format_1(folder)
    header, content = mutations.read_safetensors(folder / WEIGHTS)
    backbone = config["backbone"]

    def values(**changed):
        changed = {**config, "backbone": {**backbone, **changed}}
        (folder / "config.json").write_text(json.dumps(changed))

    def text(text):
        (folder / "config.json").write_bytes(text)

    def weights(header, content=content, length=None):
        mutations.write_safetensors(folder / WEIGHTS, header, content, length)

    rest = json.dumps(config)[1:]
    yield "sizes", lambda: values(**dict.fromkeys(("hidden_dim", "vocabulary_size"), 2**40))
    yield "layers", lambda: values(num_layers=10**9)
    yield "heads", lambda: values(num_heads=2**60, head_dim=2**60)
    yield "positions", lambda: values(max_sequence_length=10**15)
    yield "digits", lambda: values(num_layers=10**4000)
    yield "brackets", lambda: text(b'{"x": ' + b"[" * 3_000_000)
    yield "some lists", lambda: text(b'{"x": [' + b"[]," * 90_000 + b"0]," + rest.encode())
    yield "empty lists", lambda: text(b'{"x": [' + b"[]," * 1_300_000 + b"0]," + rest.encode())
    yield "one key", lambda: text(b"{" + b'"x":1,' * 500_000 + rest.encode())
    yield (
        "one key, late",
        lambda: text(
            b"{" + b",".join(b'"%d":1' % i for i in range(300_000)) + b',"7":1,' + rest.encode()
        ),
    )
    yield "large", lambda: text(b'{"x": "' + b"x" * 50_000_000 + b'", ' + rest.encode())
    yield (
        "shape",
        lambda: weights({**header, "x": {**header[next(reversed(header))], "shape": [2**40]}}),
    )
    yield (
        "many tensors",
        lambda: weights(
            header
            | {
                str(i): {"dtype": "F32", "shape": [0], "data_offsets": [len(content)] * 2}
                for i in range(50_000)
            }
        ),
    )
    yield "header", lambda: weights(b" " * 90_000_000)
    yield "length", lambda: weights(header, length=2**62)
    yield "deep header", lambda: weights(b'{"x":' * 1_000_000)


@pytest.mark.parametrize(
    "name", ["sizes", "layers", "heads", "positions", "digits", "brackets", "empty lists",
             "some lists", "one key", "one key, late", "large", "shape", "many tensors", "header",
             "length", "deep header"]
)  # fmt: skip
def test_bombs(name):
    with mutated("ours") as folder:
        healthy("ours")
        dict(bombs(folder))[name]()
        peak = Path("/proc/self/clear_refs")
        if peak.exists():
            peak.write_text("5")  # forgets the highest use of memory so far
        before, start = memory(), time.perf_counter()
        check("ours", folder)
        assert time.perf_counter() - start < 20
        assert memory() - before < 300


def memory():
    """The highest use of memory by this process in megabytes, 0 where Linux does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else ["VmHWM: 0 kB"]
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("name", ["ours", "bert"])
def test_as_many_layers_as_a_config_may_say(name):
    """Are held against the header of the weights, and not written out one by one before."""
    with mutated(name) as folder:
        config = json.loads((folder / "config.json").read_text())
        if name == "ours":
            config = in_format_1(folder)
            config["backbone"] |= {"num_layers": 10_000, "layer_pattern": [{"window": 4}, {}]}
            config["backbone"].pop("num_layer_groups", None)
        else:
            config["num_hidden_layers"] = 10_000
        (folder / "config.json").write_text(json.dumps(config))
        start = time.perf_counter()
        with pytest.raises(ValueError, match="declares 10,000 layers"):
            kt.Backbone.from_preset(folder)
        assert time.perf_counter() - start < 20


LIMITS = [
    {"normalization_epsilon": 1e38, "initializer_range": 1e38, "dropout": 0},
    {"position": "sinusoidal", "max_sequence_length": 10**15},
    {"normalization_epsilon": 10**400},
    {"initializer_range": 10**400},
    {"window": 2**70},
    {"position": "rotary", "rotary_base": 10**400},
    {"position": "rotary", "rotary_scaling": "yarn", "rotary_factor": 1e300,
     "rotary_min_turns": 1e-300, "rotary_max_turns": 1e300, "rotary_original_length": 10**30},
    {"position": "rotary", "rotary_scaling": "linear", "rotary_factor": 1e-320},
    {"position": "none", "window": 2**31},
]  # fmt: skip


@pytest.mark.parametrize("values", LIMITS, ids="-".join)
def test_values_at_their_limits(values):
    """Values that pass the checks must not fail later, in the building or the first call."""
    with mutated("ours") as folder:
        config = in_format_1(folder)
        config["backbone"] |= values
        (folder / "config.json").write_text(json.dumps(config))
        if "position" in values:  # other than learned ones, which have a tensor
            checkpoint = Checkpoint(folder)
            kept = {n: checkpoint.read(n) for n in checkpoint if "position" not in n}
            save_tensors(folder / WEIGHTS, kept)
        backbone = outcome(kt.models.Backbone.from_preset, folder)
        if backbone is not None:
            states = backbone({"token_ids": np.array([[1, 2, 3]])})
            assert np.isfinite(keras.ops.convert_to_numpy(states)).all()


@pytest.mark.parametrize(
    "values", [{"num_classes": 10**9}, {"num_classes": -1}, {"num_classes": "2"}, {"labels": ["a"]},
               {"dropout": "x"}, {"dropout": 2}, {"dropout": [0.1]}, {"hidden_activation": "os"},
               {"hidden_activation": {"class_name": "Lambda"}}, {"labels": ["a", "a"]},
               {"pooling": "os"}, {"pooling": {"first": 1}},
               {"labels": {"0": "a"}}, {"backbone": 3}, {"tokenizer": "x"}, {"self": 1}, {"x": 1},
               {"num_classes": None, "labels": None}]
)  # fmt: skip
def test_values_of_the_task(values):
    with mutated("ours") as folder:
        config = json.loads((folder / "config.json").read_text())
        config["task"] |= values
        (folder / "config.json").write_text(json.dumps(config))
        assert outcome(kt.TextClassifier.from_preset, folder) is None
