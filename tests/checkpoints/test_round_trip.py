"""Saved presets load unchanged; files that do not fit are refused before memory is spent."""

import json
import re
import resource

import keras
import numpy as np
import pytest
import safetensors.numpy

from keras_transformer import TransformerConfig
from keras_transformer.checkpoints import (
    backbone_variables,
    check_weights,
    load_backbone,
    load_config,
    load_weights,
    save_preset,
)
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.models import Decoder, build_backbone
from tests.checkpoints.conftest import (
    assert_same_values,
    small_backbone,
    small_config,
    values_of,
)
from tests.checkpoints.format_1 import in_format_1

pytestmark = pytest.mark.one_backend

CONFIGS = {
    "encoder": {"pooler": True, "segment_vocabulary_size": 2, "position": "learned"},
    "decoder": {"normalization": "rms_norm", "position": "rotary", "tie_embeddings": False},
    "seq2seq": {"num_decoder_layers": 3},
}


@pytest.mark.each_backend
@pytest.mark.parametrize("kind", CONFIGS)
def test_round_trip(tmp_path, kind):
    backbone = small_backbone(kind, **CONFIGS[kind])
    save_preset(tmp_path / "preset", backbone=backbone)
    loaded = load_backbone(tmp_path / "preset")
    assert type(loaded) is type(backbone) and loaded.config == backbone.config
    assert_same_values(loaded, backbone)


def test_saving_twice_gives_the_same_bytes(tmp_path):
    backbone = small_backbone()
    for name in ("a", "b"):
        save_preset(tmp_path / name, backbone=backbone)
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert a == b


@pytest.mark.each_backend
def test_stored_float16_loads_into_float32(tmp_path):
    backbone = small_backbone()
    save_preset(tmp_path, backbone=backbone, dtype="float16")
    loaded = load_backbone(tmp_path)
    for mine, theirs in zip(values_of(loaded), values_of(backbone), strict=True):
        assert mine.dtype == "float32"
        np.testing.assert_array_equal(mine, theirs.astype("float16").astype("float32"))


@pytest.mark.each_backend
@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16", "float16"])
def test_any_stored_type_loads_into_any_policy(tmp_path, stored, dtype):
    backbone = small_backbone()
    save_preset(tmp_path, backbone=backbone)
    path = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    # A quarter of a small integer is exact in every type.
    exact = {name: np.round(np.clip(a, -4, 4) * 4) / 4 for name, a in tensors.items()}
    safetensors.numpy.save_file({n: a.astype(stored) for n, a in exact.items()}, path)
    loaded = load_backbone(tmp_path, dtype=dtype)
    for path, variable in backbone_variables(loaded).items():
        assert variable.dtype == ("float32" if dtype.startswith("mixed") else dtype)
        value = to_numpy(keras.ops.cast(variable, "float32"))
        np.testing.assert_array_equal(value, exact["backbone/" + path])


def test_config_overrides_and_fresh_weights(tmp_path):
    backbone = small_backbone()
    save_preset(tmp_path, backbone=backbone)
    loaded = load_backbone(tmp_path, dropout=0.25)
    assert loaded.config.dropout == 0.25
    assert_same_values(loaded, backbone)
    (tmp_path / "model.safetensors").unlink()
    fresh = load_backbone(tmp_path, load_weights=False, num_layers=1)
    assert fresh.config.num_layers == 1


def test_a_preset_of_another_kind_is_refused(tmp_path):
    save_preset(tmp_path, backbone=small_backbone())
    with pytest.raises(ValueError, match="is of kind 'encoder', but Decoder needs 'decoder'"):
        load_backbone(tmp_path, backbone_class=Decoder)


def head(classes=3):
    random = np.random.default_rng(1)
    return {
        "output/kernel": keras.Variable(random.normal(size=(8, classes)).astype("float32")),
        "output/bias": keras.Variable(random.normal(size=(classes,)).astype("float32")),
    }


def zeros_like(variables):
    return {path: keras.Variable(np.zeros(v.shape, "float32")) for path, v in variables.items()}


TASK = {"name": "TextClassifier", "num_classes": 3, "labels": ["a", "b", "c"]}


def test_the_head_of_a_task(tmp_path):
    backbone, saved = small_backbone(), head()
    save_preset(tmp_path, backbone=backbone, task=TASK, head_variables=saved)
    config, task, metadata = load_config(tmp_path)
    assert task == TASK and config == backbone.config
    count = sum(v.size for v in values_of(backbone)) + 8 * 3 + 3
    assert metadata["parameters"] == count
    loaded = zeros_like(saved)
    report = load_weights(tmp_path, build_backbone(config), loaded, task="TextClassifier")
    assert report.head_loaded and "head/output/kernel" in report.loaded
    for path, variable in loaded.items():
        np.testing.assert_array_equal(to_numpy(variable), to_numpy(saved[path]))
    assert_same_values(load_backbone(tmp_path), backbone)  # which leaves the head out


def test_a_head_that_is_not_there_stays_fresh(tmp_path):
    backbone = small_backbone()
    save_preset(tmp_path / "bare", backbone=backbone)
    save_preset(tmp_path / "other", backbone=backbone, task={"name": "X"}, head_variables=head())
    for name in ("bare", "other"):
        fresh = zeros_like(head())
        report = load_weights(
            tmp_path / name, build_backbone(backbone.config), fresh, "TextClassifier"
        )
        assert not report.head_loaded and set(report.fresh) == set(fresh)
        assert not to_numpy(fresh["output/kernel"]).any()


def test_a_head_of_another_size_is_refused(tmp_path):
    backbone = small_backbone()
    save_preset(tmp_path, backbone=backbone, task=TASK, head_variables=head(3))
    with pytest.raises(ValueError, match=re.escape("has shape (8, 3), the config says (8, 5)")):
        check_weights(tmp_path, backbone.config, head(5), "TextClassifier")


def test_saving_over_a_preset(tmp_path):
    save_preset(tmp_path, backbone=small_backbone())
    (tmp_path / "notes.txt").write_text("mine")
    backbone = small_backbone(num_layers=1)
    save_preset(tmp_path, backbone=backbone)
    assert_same_values(load_backbone(tmp_path), backbone)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_failed_save_leaves_the_old_preset(tmp_path):
    good = small_backbone()
    save_preset(tmp_path, backbone=good)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    diverged = small_backbone()
    diverged.weights[3].assign(np.full(diverged.weights[3].shape, np.nan))
    with pytest.raises(ValueError, match="holds NaN"):
        save_preset(tmp_path, backbone=diverged)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_nothing_to_save(tmp_path):
    with pytest.raises(ValueError, match="nothing to save"):
        save_preset(tmp_path / "preset")
    with pytest.raises(ValueError, match="saved with its backbone"):
        save_preset(tmp_path / "preset", tokenizer=object(), task=TASK)
    assert not (tmp_path / "preset").exists()


def test_the_card(tmp_path):
    backbone = small_backbone("seq2seq")
    metadata = {"license": "mit", "description": "A test.", "source": "here"}
    save_preset(tmp_path / "tiny", backbone=backbone, metadata=metadata)
    card = (tmp_path / "tiny" / "README.md").read_text()
    count = sum(v.size for v in values_of(backbone))
    for part in (
        "license: mit",
        "# tiny",
        "A test. Made from here.",
        f"| parameters | {count:,} |",
        "| kind | encoder-decoder |",
        'keras_transformer.Backbone.from_preset("tiny")',
    ):
        assert part in card


def test_a_card_that_somebody_wrote_stays(tmp_path):
    save_preset(tmp_path, backbone=small_backbone())
    save_preset(tmp_path, backbone=small_backbone(num_layers=1))
    assert "| layers | 1 |" in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("My words.")
    save_preset(tmp_path, backbone=small_backbone())
    assert (tmp_path / "README.md").read_text() == "My words."
    save_preset(tmp_path, backbone=small_backbone(), card="Other words.")
    assert (tmp_path / "README.md").read_text() == "Other words."


@pytest.fixture
def preset(tmp_path):
    save_preset(tmp_path, backbone=small_backbone(position="learned"))
    return tmp_path


def edit(folder, **values):
    config = in_format_1(folder)
    config["backbone"].update(values)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"vocabulary_size": 2_000_000_000}, r"\(13, 8\), the config says \(2000000000, 8\)"),
        ({"max_sequence_length": 10**9}, "the config says"),
        ({"intermediate_dim": 10**9}, "the config says"),
        ({"hidden_dim": 10**9}, "the config says"),
        ({"num_layers": 10**9}, "`num_layers` must be at most 10,000"),
        ({"num_layers": 10_000}, "declares 10,000 layers"),
        ({"num_layers": 3}, "16 missing:\n  backbone/encoder/layer_2"),
        ({"num_layers": 1}, "16 with no place in the model:\n  backbone/encoder/layer_1"),
        ({"gated": True}, "missing:\n  backbone/encoder/layer_0/feed_forward/gate/kernel"),
    ],
)
def test_sizes_that_do_not_fit_cost_no_memory(preset, values, message):
    edit(preset, **values)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=message) as info:
        load_backbone(preset)
    assert str(preset) in str(info.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


@pytest.mark.parametrize(
    "values, message",
    [
        ({"num_heads": 3, "head_dim": None}, "divisible by `num_heads`"),
        ({"num_layers": 0}, "`num_layers` must be at least 1"),
        ({"dropout": -0.1}, "`dropout`"),
        ({"surprise": 1}, "Unknown config values: surprise"),
        ({"hidden_dim": "8"}, "`hidden_dim` must be of type int"),
    ],
)
def test_wrong_config_values_name_the_file(preset, values, message):
    edit(preset, **values)
    with pytest.raises(ValueError, match=message) as info:
        load_backbone(preset)
    assert str(preset / "config.json") in str(info.value)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"format": "keras_transformer", "format_version": 3}, "version 3.*newer"),
        ({"format": "other"}, "format 'other'"),
        ({"class_name": "Encoder"}, "neither 'format' .* nor 'model_type'"),
        ({"format": "keras_transformer", "format_version": 1}, "must be a dictionary"),
        (
            {"model_type": "not_there"},
            "'not_there' are not supported. Supported are: albert, arcee, audio-spectrogram-transf",
        ),
        ({"model_type": ["bert"]}, "are not supported"),
    ],
)
def test_configs_of_other_kinds(preset, values, message):
    (preset / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message):
        load_backbone(preset)


@pytest.mark.parametrize("key, value", [("task", 3), ("task", {"name": []}), ("metadata", 1)])
def test_config_parts_of_other_types(preset, key, value):
    config = json.loads((preset / "config.json").read_text())
    config[key] = value
    (preset / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"config.json: '{key}' must be"):
        load_config(preset)


def test_missing_and_truncated_weights(preset):
    path = preset / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        load_backbone(preset)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="has no weights"):
        load_backbone(preset)


def test_weights_with_nan(preset):
    path = preset / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors["backbone/encoder/layer_1/self_attention/query/bias"][2] = np.nan
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(ValueError, match="layer_1/self_attention/query/bias.* holds NaN"):
        load_backbone(preset)


def test_config_survives_json(preset):
    config, _, _ = load_config(preset)
    assert config == small_config(position="learned")
    assert isinstance(config, TransformerConfig)


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    backbone = small_backbone()
    backbone.encoder.blocks[0].feed_forward.intermediate_dense.enable_lora(2)
    with pytest.raises(ValueError, match="lora_kernel_a.*2 in all.*enable_lora"):
        save_preset(tmp_path / "preset", backbone=backbone)
    assert not (tmp_path / "preset").exists()
