"""Bundled presets whose weights and tokenizer lie on the hub."""

import json
import logging

import pytest

import keras_transformer as kt
from keras_transformer import export_to_huggingface
from keras_transformer.checkpoints.families.encoders.roberta import ROBERTA
from keras_transformer.checkpoints.presets import listing as presets
from keras_transformer.checkpoints.presets.hub import HubName
from tests.checkpoints.conftest import assert_same_values, small_backbone
from tests.checkpoints.format_1 import in_format_1
from tests.tasks import images
from tests.tasks.common import ENGLISH, tokenizer

pytestmark = pytest.mark.backend_independent


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A model on the hub, `roberta_small` that points to it, and what was asked of the hub."""
    words = tokenizer("wordpiece", lowercase=True)
    config = ROBERTA.config(
        {"vocab_size": words.vocabulary_size, "hidden_size": 12, "num_attention_heads": 3,
         "num_hidden_layers": 2, "intermediate_size": 20, "max_position_embeddings": 40,
         "pad_token_id": words.pad_id}
    )  # fmt: skip
    model = kt.MaskedLM(small_backbone(**config.flat), words, hidden_activation="gelu")
    export_to_huggingface(model, tmp_path / "hub")
    folder = tmp_path / "presets" / "roberta_small"
    folder.mkdir(parents=True)
    values = {
        "format": "keras_transformer",
        "format_version": 1,
        "backbone": config.stated(),
        "task": {"name": "MaskedLM", "hidden_activation": "gelu"},
        "metadata": {"family": "roberta", "license": "mit"},
        "weights": {"format": "huggingface", "hub": "hf://org/roberta@main"},
    }
    (folder / "config.json").write_text(json.dumps(values))
    asked = []

    def download(self, patterns):  # what the network delivers is tested in test_hub.py
        asked.append(patterns)
        return tmp_path / "hub"

    monkeypatch.setattr(HubName, "download", download)
    monkeypatch.setattr(presets, "presets_folder", lambda: tmp_path / "presets")
    return model, folder, asked


def test_weights_and_tokenizer_come_from_the_hub(published):
    model, _, _ = published
    loaded = kt.Task.from_preset("roberta_small")
    assert type(loaded) is kt.MaskedLM
    assert_same_values(loaded, model)
    expected = model.tokenizer.encode_batch(ENGLISH)
    assert loaded.tokenizer.encode_batch(ENGLISH) == expected
    assert kt.Tokenizer.from_preset("roberta_small").encode_batch(ENGLISH) == expected


def test_another_task_is_made_as_the_family_makes_it(published, caplog):
    classifier = kt.TextClassifier.from_preset("roberta_small", num_classes=2)
    assert classifier.hidden_activation == "tanh" and "newly initialized" in caplog.text


def test_the_config_beside_the_weights_counts(published, caplog):
    """It belongs to them; that the bundled one says otherwise is said."""
    _, folder, _ = published
    values = in_format_1(folder)
    values["backbone"]["normalization_epsilon"] = 0.5
    (folder / "config.json").write_text(json.dumps(values))
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        backbone = kt.Backbone.from_preset("roberta_small")
    assert backbone.config.normalization_epsilon == 1e-12
    assert "normalization_epsilon is 1e-12, not 0.5" in caplog.text


def test_without_network_and_weights_it_takes_ids(published, monkeypatch, caplog):
    def offline(self, patterns):
        raise ConnectionError("no network")

    monkeypatch.setattr(HubName, "download", offline)
    task = kt.MaskedLM.from_preset("roberta_small", load_weights=False)
    assert task.tokenizer is None and "takes ids only: no network" in caplog.text
    with pytest.raises(FileNotFoundError, match="could not be downloaded"):
        kt.MaskedLM.from_preset("roberta_small")


def test_images(tmp_path, monkeypatch, caplog):
    """The processor and the names of the classes, which are many, come from the hub too."""
    task = images.classifier(images.patches())
    export_to_huggingface(task, tmp_path / "hub", family="vit")
    folder = tmp_path / "presets" / "vit_small"
    folder.mkdir(parents=True)
    values = {
        "format": "keras_transformer",
        "format_version": 1,
        "backbone": kt.Backbone.from_preset(tmp_path / "hub").config.stated(),
        "task": {"name": "ImageClassifier", "num_classes": 2},
        "metadata": {"family": "vit"},
        "weights": {"format": "huggingface", "hub": "hf://org/vit"},
    }
    (folder / "config.json").write_text(json.dumps(values))
    monkeypatch.setattr(HubName, "download", lambda self, patterns: tmp_path / "hub")
    monkeypatch.setattr(presets, "presets_folder", lambda: tmp_path / "presets")
    loaded = kt.Task.from_preset("vit_small")
    assert loaded.labels == images.LABELS
    assert loaded.processor.values() == task.processor.values()
    pictures, _ = images.pictures(2)
    difference = loaded.predict(pictures, verbose=0) - task.predict(pictures, verbose=0)
    assert abs(difference).max() <= 1e-5

    def offline(self, patterns):
        raise ConnectionError("no network")

    monkeypatch.setattr(HubName, "download", offline)
    fresh = kt.ImageClassifier.from_preset("vit_small", load_weights=False)
    assert fresh.processor is None
    assert "image processor of 'vit_small' is not on this machine, so the model" in caplog.text


def test_quantized_weights_stay_as_they_are(tmp_path, monkeypatch):
    quantized_files = pytest.importorskip("tests.checkpoints.quantized_files")
    quantized_files.write(tmp_path / "hub", "gptq_4")
    folder = tmp_path / "presets" / "qwen2_small"
    folder.mkdir(parents=True)
    values = {
        "format": "keras_transformer",
        "format_version": 1,
        "backbone": kt.Backbone.from_preset(tmp_path / "hub").config.stated(),
        "task": {"name": "CausalLM"},
        "metadata": {"family": "qwen2"},
        "weights": {"format": "huggingface", "hub": "hf://org/qwen2"},
    }
    (folder / "config.json").write_text(json.dumps(values))
    monkeypatch.setattr(HubName, "download", lambda self, patterns: tmp_path / "hub")
    monkeypatch.setattr(presets, "presets_folder", lambda: tmp_path / "presets")
    loaded = kt.Backbone.from_preset("qwen2_small")
    assert loaded.quantized_by == "GPTQ, 4 bits"
    expected = kt.Backbone.from_preset(tmp_path / "hub")
    assert_same_values(loaded, expected)
    assert kt.Backbone.from_preset("qwen2_small", dtype="float32").quantized_by is None


@pytest.mark.parametrize("model_type", ["t5gemma2_images", "mistral3"])
def test_the_images_of_folders_whose_texts_are_a_model_too(model_type, tmp_path, monkeypatch):
    """A bundled preset with images reads more of the folder than its texts."""
    pytest.importorskip("transformers")
    from tests.checkpoints import families
    from tests.checkpoints.test_families import saved

    saved(families.make(model_type, 0, "LanguageModel"), tmp_path / "hub")
    expected = kt.ImageToText.from_preset(tmp_path / "hub").backbone
    folder = tmp_path / "presets" / "small"
    folder.mkdir(parents=True)
    values = {
        "format": "keras_transformer",
        "format_version": 2,
        "backbone": {"kind": "seq2seq", **expected.config.to_dict()},
        "task": {"name": "ImageToText", "start_id": 2},
        "metadata": {"family": model_type},
        "weights": {"format": "huggingface", "hub": "hf://org/small"},
    }
    (folder / "config.json").write_text(json.dumps(values))
    monkeypatch.setattr(HubName, "download", lambda self, patterns: tmp_path / "hub")
    monkeypatch.setattr(presets, "presets_folder", lambda: tmp_path / "presets")
    for loaded in (kt.Task.from_preset("small").backbone, kt.Backbone.from_preset("small")):
        assert loaded.config == expected.config
        assert_same_values(loaded, expected)
