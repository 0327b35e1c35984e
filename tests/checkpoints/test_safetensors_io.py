"""Reading and writing safetensors, whole and broken."""

import json

import keras
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from keras_transformer.checkpoints.weights.safetensors_io import (
    Checkpoint,
    read_header,
    save_tensors,
    to_numpy,
)


def arrays(seed=0):
    random = np.random.default_rng(seed)
    return {
        "b/kernel": random.normal(size=(3, 4)).astype("float32"),
        "a/bias": random.normal(size=(4,)).astype("float32"),
        "scalar": np.float32(2.5),
        "empty": np.zeros((0, 3), "float32"),
    }


def test_round_trip_of_arrays_and_variables(tmp_path):
    tensors = arrays()
    tensors["variable"] = keras.Variable(np.arange(6.0, dtype="float32").reshape(2, 3))
    save_tensors(tmp_path / "model.safetensors", tensors)
    checkpoint = Checkpoint(tmp_path)
    assert set(checkpoint) == set(tensors)
    for name, tensor in tensors.items():
        expected = to_numpy(tensor)
        assert checkpoint[name].shape == expected.shape
        np.testing.assert_array_equal(checkpoint.read(name), expected)


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "base_model.model.", "module._orig_mod."]
)
def test_prefixes_of_wrappers_are_removed_when_every_name_has_them(tmp_path, prefix):
    tensors = {prefix + name: array for name, array in arrays().items()}
    save_tensors(tmp_path / "model.safetensors", tensors)
    checkpoint = Checkpoint(tmp_path)
    assert set(checkpoint) == set(arrays())
    np.testing.assert_array_equal(checkpoint.read("b/kernel"), arrays()["b/kernel"])
    some = {"own": np.ones(2, "float32"), **tensors}
    save_tensors(tmp_path / "model.safetensors", some)
    assert set(Checkpoint(tmp_path)) == set(some)


def test_adapters_beside_weights_are_named_for_what_they_are(tmp_path):
    names = ("q.base_layer.weight", "q.lora_A.default.weight", "q.lora_B.default.weight")
    tensors = {f"base_model.model.{name}": np.ones((2, 2), "float32") for name in names}
    save_tensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(ValueError, match="adapters of PEFT beside the weights.*merge_and_unload"):
        Checkpoint(tmp_path)


def test_the_file_is_that_of_the_reference_library(tmp_path):
    save_tensors(tmp_path / "model.safetensors", arrays())
    theirs = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    for name, array in arrays().items():
        np.testing.assert_array_equal(theirs[name], array)


def test_transposed_arrays_are_written_as_they_look(tmp_path):
    array = np.arange(6, dtype="float32").reshape(2, 3)
    save_tensors(tmp_path / "model.safetensors", {"t": array.T})
    np.testing.assert_array_equal(Checkpoint(tmp_path).read("t"), array.T)


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float64"])
def test_stored_types(tmp_path, stored):
    array = np.array([[1.0, -2.5], [3.140625, 65504.0]]).astype(stored)
    safetensors.numpy.save_file({"w": array}, tmp_path / "model.safetensors")
    read = Checkpoint(tmp_path).read("w")
    np.testing.assert_array_equal(read.astype("float64"), array.astype("float64"))
    assert read.dtype == ("float64" if stored == "float64" else "float32")


def test_experts_are_one_tensor(tmp_path):
    """However many files and digits there are; one that lacks or differs is named."""
    array = np.random.default_rng(0).normal(size=(12, 3, 2)).astype("float32")
    tensors = {f"layer.0.experts.{i}.up.weight": array[i] for i in reversed(range(12))}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    assert {name: info.shape for name, info in checkpoint.items()} == {
        "layer.0.experts.*.up.weight": (12, 3, 2)
    }
    np.testing.assert_array_equal(checkpoint.read("layer.0.experts.*.up.weight"), array)

    first = tensors.pop("layer.0.experts.0.up.weight")
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"lacks 'layer\.0\.experts\.0\.up\.weight'"):
        Checkpoint(tmp_path)
    tensors["layer.0.experts.0.up.weight"] = first[:, :1].copy()
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"differ: one is \(3, 2\) of F32, the first \(3, 1\)"):
        Checkpoint(tmp_path)


def test_numbers_of_four_bits(tmp_path):
    """As the Transformers library unpacks them, for every byte."""
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    blocks = random.permutation(np.arange(3 * 256) % 256).astype("uint8").reshape(2, 6, 4, 16)
    scales = random.integers(100, 150, (2, 6, 4)).astype("uint8")
    tensors = {"w_blocks": blocks, "w_scales": scales, "other_scales": np.ones(2, "float32")}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    assert set(checkpoint) == {"w", "other_scales"} and checkpoint["w"].shape == (2, 128, 6)
    expected = mxfp4.convert_moe_packed_tensors(
        torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32
    )
    np.testing.assert_array_equal(checkpoint.read("w"), expected.numpy())


def test_bfloat16_agrees_with_ml_dtypes_for_every_finite_value(tmp_path):
    array = np.arange(2**16, dtype="uint16").view(ml_dtypes.bfloat16)
    array = array[np.isfinite(array.astype("float32"))]
    safetensors.numpy.save_file({"w": array}, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(Checkpoint(tmp_path).read("w"), array.astype("float32"))


def test_saving_as_float16(tmp_path):
    save_tensors(tmp_path / "model.safetensors", arrays(), dtype="float16")
    checkpoint = Checkpoint(tmp_path)
    assert {info.dtype for info in checkpoint.values()} == {"F16"}
    expected = arrays()["b/kernel"].astype("float16")
    np.testing.assert_array_equal(checkpoint.read("b/kernel"), expected)


def test_a_bfloat16_variable_is_stored_as_float32(tmp_path):
    variable = keras.Variable(np.array([1.0, 2.5], "float32"), dtype="bfloat16")
    save_tensors(tmp_path / "model.safetensors", {"w": variable})
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint["w"].dtype == "F32"
    np.testing.assert_array_equal(checkpoint.read("w"), [1.0, 2.5])


def test_saving_refuses_what_could_not_be_loaded(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(ValueError, match="'w' .* holds NaN or infinity, as float32"):
        save_tensors(path, {"w": np.array([np.nan])})
    with pytest.raises(ValueError, match="'w' .* holds NaN or infinity, as float16"):
        save_tensors(path, {"w": np.array([1e6])}, dtype="float16")
    with pytest.raises(ValueError, match="received 'int8'"):
        save_tensors(path, arrays(), dtype="int8")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_nan_and_infinity_are_found(tmp_path, value, dtype):
    array = np.ones((3, 5)).astype(dtype)
    array[1, 2] = value
    safetensors.numpy.save_file({"layer/kernel": array}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="'layer/kernel' .*model.safetensors holds NaN"):
        Checkpoint(tmp_path).read("layer/kernel")


def test_every_half_float_is_told_finite_or_not(tmp_path):
    halves = np.arange(2**16, dtype="uint16").view("float16")
    safetensors.numpy.save_file({"w": halves[np.isfinite(halves)]}, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(Checkpoint(tmp_path).read("w"), halves[np.isfinite(halves)])
    for value in halves[~np.isfinite(halves)][::100]:
        array = np.ones(2**20 + 3, "float16")  # above the size of one step
        array[-2] = value
        safetensors.numpy.save_file({"w": array}, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match="holds NaN or infinity"):
            Checkpoint(tmp_path).read("w")


def test_what_is_infinite_as_float32_is_refused(tmp_path):
    safetensors.numpy.save_file({"w": np.array([1e39])}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="'w' .* holds NaN or infinity"):
        Checkpoint(tmp_path).read("w")


def test_a_header_without_end_is_not_read(tmp_path):
    length = 2**30
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(length.to_bytes(8, "little"))
        file.truncate(8 + length)  # takes no space on the disk
    with pytest.raises(ValueError, match="its header has 1,073,741,824 bytes; at most 16,777,216"):
        Checkpoint(tmp_path)


def test_integers_are_no_weights(tmp_path):
    safetensors.numpy.save_file({"ids": np.arange(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="'ids' .* stored as I64"):
        Checkpoint(tmp_path).read("ids")


@pytest.mark.parametrize("cut", [0, 4, 8, 60, -1])
def test_truncated_files_are_named(tmp_path, cut):
    path = tmp_path / "model.safetensors"
    save_tensors(path, arrays())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match="model.safetensors is not a complete safetensors file"):
        read_header(path)


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [10**12, 10**12], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}},
        {"w": {"dtype": "pickle", "shape": [1], "data_offsets": [0, 4]}},
        [1],
    ],
)
def test_headers_that_lie_are_refused(tmp_path, header):
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        Checkpoint(tmp_path)


def shard(folder, weight_map, files):
    for name, tensors in files.items():
        save_tensors(folder / name, tensors)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards(tmp_path):
    a, b = {"x": np.ones(2)}, {"y": np.zeros((2, 2)), "z": np.ones(3)}
    places = {"x": "model-1.safetensors", "y": "model-2.safetensors", "z": "model-2.safetensors"}
    shard(tmp_path, places, {"model-1.safetensors": a, "model-2.safetensors": b})
    checkpoint = Checkpoint(tmp_path)
    for name, array in (a | b).items():
        np.testing.assert_array_equal(checkpoint.read(name), array)


@pytest.mark.parametrize(
    "places, message",
    [
        ({"x": "../out.safetensors"}, "without '..'"),
        ({"x": "/tmp/out.safetensors"}, "must be relative"),
        ({"x": "link.safetensors"}, "outside the preset's folder"),
        ({"x": 3}, "no 'weight_map'"),
        (None, "no 'weight_map'"),
        ({"x": "model-1.safetensors", "y": "model-1.safetensors"}, "disagree on .*'y'"),
        ({}, "no 'weight_map'"),
    ],
)
def test_hostile_and_wrong_indexes(tmp_path, places, message):
    folder = tmp_path / "preset"
    folder.mkdir()
    save_tensors(tmp_path / "out.safetensors", {"x": np.ones(1)})
    (folder / "link.safetensors").symlink_to(tmp_path / "out.safetensors")
    shard(folder, places, {"model-1.safetensors": {"x": np.ones(1)}})
    with pytest.raises(ValueError, match=message):
        Checkpoint(folder)


def test_missing_shard(tmp_path):
    shard(tmp_path, {"x": "model-1.safetensors"}, {})
    with pytest.raises(FileNotFoundError, match="names the file 'model-1.safetensors'"):
        Checkpoint(tmp_path)


def test_weights_that_are_a_link_out(tmp_path):
    folder = tmp_path / "preset"
    folder.mkdir()
    save_tensors(tmp_path / "out.safetensors", {"x": np.ones(1)})
    (folder / "model.safetensors").symlink_to(tmp_path / "out.safetensors")
    with pytest.raises(ValueError, match="outside the preset's folder"):
        Checkpoint(folder)


def test_no_weights_and_pickled_weights(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither model.safetensors nor"):
        Checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    with pytest.raises(ValueError, match="pytorch_model.bin.*run code.*save_pretrained"):
        Checkpoint(tmp_path)


def test_a_saved_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "other").touch()
    save_tensors(tmp_path / "model.safetensors", {"w": np.ones(2, "float32")})
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
