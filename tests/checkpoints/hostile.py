"""Small healthy presets to break, and what may come of a broken one: see test_hostile.py."""

import contextlib
import functools
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.checkpoints import check_weights, load_config, load_weights, save_preset
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.heads import TASKS
from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint, save_tensors
from keras_transformer.config.structure import variable_shapes
from keras_transformer.tokenizers import Tokenizer
from tests.checkpoints.conftest import small_backbone
from tests.checkpoints.families import make
from tests.checkpoints.family_dense import MODELS as DENSE
from tests.checkpoints.family_duals import TEXTS
from tests.checkpoints.mutations import INDEX, WEIGHTS

BASES = tempfile.TemporaryDirectory(prefix="kt_hostile_")  # removed when the process ends
FORMATS = ("ours", "sharded", *FAMILIES)


@functools.cache
def base(name) -> Path:
    """A small healthy preset: in our format, the same in shards, or one of a published family."""
    folder = Path(BASES.name, name)
    if name in FAMILIES:
        pytest.importorskip("transformers")
        made = DENSE[name]() if name in DENSE else make(name, 0, _suffix(name))
        made.save_pretrained(folder)
        if name == "bert":
            _add_embedder_files(folder)
            _tokenizer().save_to_preset(folder)
    else:
        values = {"position": "learned", "max_sequence_length": 20, "pooler": True}
        backbone = small_backbone(vocabulary_size=60, segment_vocabulary_size=2, **values)
        task = {"name": "TextClassifier", "num_classes": 2, "labels": ["bad", "good"]}
        head = {"output/kernel": np.ones((8, 2)), "output/bias": np.ones(2)}
        save_preset(
            folder, backbone=backbone, tokenizer=_tokenizer(), task=task, head_variables=head
        )
    if name == "sharded":
        checkpoint, places = Checkpoint(folder), {}
        for i, tensor in enumerate(checkpoint):
            places[tensor] = f"model-0000{1 + i % 2}-of-00002.safetensors"
        for place in set(places.values()):
            tensors = {n: checkpoint.read(n) for n in checkpoint if places[n] == place}
            save_tensors(folder / place, tensors)
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
        (folder / WEIGHTS).unlink()
    (folder / "README.md").unlink(missing_ok=True)
    return folder


def _suffix(name):
    """Return the ending of a family's class name: with a head, except for the embedder."""
    heads = FAMILIES[name].heads
    if FAMILIES[name].constants["kind"] == "dual":
        return "Model"
    if FAMILIES[name].constants["kind"] != "encoder" and name not in TEXTS:
        return "LanguageModel"
    if "Forecaster" in heads:
        return "ModelForPrediction" if name == "timesfm2_5" else "ForPrediction"
    if "CTCSpeechToText" in heads:
        return "ForCTC"
    for kind in ("Image", "Audio"):
        if f"{kind}Classifier" in heads:
            return f"For{kind}Classification"
    if name == "bert" or "TextClassifier" not in heads:
        return "Model"
    return "ForSequenceClassification"


@functools.cache
def _tokenizer():
    return Tokenizer.train(["a man rides a bike ."] * 4, "wordpiece", vocabulary_size=60)


def _add_embedder_files(folder):
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    steps = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir()
    values = {"word_embedding_dimension": 12, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(values))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')


class Receiver:
    """Receiver of loaded weights: arrays, since a Keras model takes long to build."""

    path = "receiver"

    def __init__(self, config):
        self.config = config
        self.weights = [Slot(f"receiver/{p}", s) for p, s in variable_shapes(config).items()]


class Slot:
    def __init__(self, path, shape):
        self.path, self.shape, self.dtype, self.array = path, shape, "float32", None

    def assign(self, array):
        assert array.shape == tuple(self.shape)
        self.array = np.array(array)


def loaded(folder):
    """The config of a preset, and its weights and those of its head by their path."""
    config, task, _ = load_config(folder)
    name, head = None, {}
    if task is not None:
        name = task["name"]
        try:
            head = TASKS[name].head_shapes(config, task) if name in TASKS else {}
        except ValueError as error:  # `from_preset` adds where the values are from
            raise ValueError(f"{folder}: {error}") from error
    check_weights(folder, config, head, name)
    receiver = Receiver(config)
    head = {path: Slot(path, shape) for path, shape in head.items()}
    load_weights(folder, receiver, head, name)
    return config, {slot.path: slot.array for slot in (*receiver.weights, *head.values())}


@functools.cache
def healthy(name):
    return loaded(base(name))


def outcome(function, folder):
    """Return the result of a function of a folder; `None` if its error is of a documented kind."""
    try:
        return function(folder)
    except (ValueError, FileNotFoundError) as error:
        assert str(folder) in str(error), f"the message does not name the file: {error!r}"
    return None


def check(name, folder):
    """Loads a mutated preset: it must be refused, or have the weights of the healthy one."""
    result = outcome(loaded, folder)
    if result is None:
        return None
    config, weights = result
    expected_config, expected = healthy(name)
    if config == expected_config:  # the head depends on "architectures" as well
        backbone = {path for path in expected if path.startswith(Receiver.path)}
        assert backbone <= weights.keys() <= expected.keys()
    # With another number of heads the tensors of GPT-NeoX are divided in another way.
    if config.flat.get("num_heads") == expected_config.flat.get("num_heads"):
        for path in weights.keys() & expected.keys():
            np.testing.assert_array_equal(weights[path], expected[path])
    return config


@contextlib.contextmanager
def mutated(name):
    """A copy of a base preset to change, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="kt_hostile_") as root:
        yield Path(shutil.copytree(base(name), Path(root, "preset")))
