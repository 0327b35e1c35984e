"""A preset's files that are pipes, sockets, folders or links to nothing: named, not waited for."""

import json
import os

import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_config, resolve_preset
from keras_transformer.checkpoints.keras_hub import KerasHubCheckpoint, read_config, read_tokenizer
from keras_transformer.checkpoints.presets.listing import _FILES
from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint
from tests.tasks.common import classifier
from tests.test_files import KINDS, make

pytestmark = [
    pytest.mark.backend_independent,
    pytest.mark.skipif(os.name != "posix", reason="pipes and links of POSIX"),
]
# A device is reached by a link, which leads out of the folder.
KINDS = {kind: message for kind, message in KINDS.items() if kind != "device"}


def replaced(path, kind):
    path.unlink(missing_ok=True)
    make(kind, path)


@pytest.mark.parametrize("kind, message", KINDS.items())
def test_every_file_of_a_preset(tmp_path, kind, message):
    task = classifier(num_classes=2)
    for name in ("model.safetensors", "model.safetensors.index.json", *_FILES):
        folder = tmp_path / name
        task.save_to_preset(folder)
        if name == "model.safetensors.index.json":
            (folder / "model.safetensors").unlink()
        replaced(folder / name, kind)
        with pytest.raises(ValueError, match=f"{name} {message}"):
            kt.TextClassifier.from_preset(folder)


@pytest.mark.parametrize("kind, message", KINDS.items())
def test_tokenizer_files_alone(tmp_path, kind, message):
    for name in ("tokenizer.json", "vocab.txt", "spiece.model", "tokenizer_config.json"):
        folder = tmp_path / name
        folder.mkdir()
        replaced(folder / name, kind)
        with pytest.raises(ValueError, match=f"{name} {message}"):
            kt.Tokenizer.from_files(folder)


HUB_CONFIG = {
    "registered_name": "keras_hub>GPT2Backbone",
    "config": {
        "vocabulary_size": 9,
        "num_layers": 1,
        "num_heads": 2,
        "hidden_dim": 8,
        "intermediate_dim": 16,
    },
}


@pytest.mark.parametrize("kind, message", KINDS.items())
def test_files_of_keras_hub(tmp_path, kind, message):
    (tmp_path / "config.json").write_text(json.dumps(HUB_CONFIG))
    values = {"registered_name": "keras_hub>BertTokenizer", "config": {"lowercase": True}}
    (tmp_path / "assets" / "tokenizer").mkdir(parents=True)
    for name in ("task.json", "tokenizer.json"):
        replaced(tmp_path / name, kind)
        with pytest.raises(ValueError, match=f"{name} {message}"):
            read_config(tmp_path, HUB_CONFIG) if name == "task.json" else resolve_preset(tmp_path)
        (tmp_path / name).rmdir() if kind == "folder" else (tmp_path / name).unlink()
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    replaced(tmp_path / "assets" / "tokenizer" / "vocabulary.txt", kind)
    with pytest.raises(ValueError, match=f"vocabulary.txt {message}"):
        read_tokenizer(tmp_path)
    replaced(tmp_path / "model.weights.h5", kind)
    with pytest.raises(ValueError, match=f"model.weights.h5 {message}"):
        KerasHubCheckpoint(tmp_path)


def test_keras_hub_without_what_names_the_task(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(HUB_CONFIG))
    load_config(tmp_path, load_weights=False)
    (tmp_path / "task.weights.h5").write_bytes(b"")
    with pytest.raises(ValueError, match="task.weights.h5, .* but not task.json"):
        load_config(tmp_path, load_weights=False)


def test_a_shard_that_is_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "a.safetensors")
    index = {"weight_map": {"kernel": "a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="a.safetensors is a pipe"):
        Checkpoint(tmp_path)
