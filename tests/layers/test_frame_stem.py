"""The stem of frames: its weights, PyTorch's convolutions, wrong values."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.layers.stems import assert_is_as_described
from tests.tasks import audio

CONFIGS = {
    "usual": audio.frames(),
    "wide": audio.frames(kernel_size=5, strides=(2, 3), activation="relu", use_bias=False),
    "one": audio.frames(strides=(4,)),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def values(config, rows=2, length=None):
    shape = (rows, length or config.stem.num_frames, config.stem.num_bins)
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@each_config
def test_weights_and_states_are_those_of_the_config(config, tmp_path):
    assert_is_as_described(config, {"frames": values(config)}, tmp_path)


@each_config
@pytest.mark.parametrize("length", [26, 25, 11])
def test_convolutions_are_pytorchs(config, length):
    torch = pytest.importorskip("torch")
    stem = kt.models.Encoder(config.replace(position="none")).stem
    random = np.random.default_rng(1)
    for variable in stem.weights:
        variable.assign(random.normal(size=variable.shape))
    given = values(config, length=length)
    x = torch.tensor(given).mT
    for layer, step in zip(stem.convolutions, config.stem.strides, strict=True):
        kernel = torch.tensor(to_numpy(layer.kernel)).permute(2, 1, 0)
        bias = None if layer.bias is None else torch.tensor(to_numpy(layer.bias))
        around = config.stem.kernel_size // 2
        x = torch.nn.functional.conv1d(x, kernel, bias, stride=step, padding=around)
        x = torch.nn.functional.gelu(x) if config.stem.activation == "gelu" else x.relu()
    found = to_numpy(stem({"frames": given}).states)
    assert np.abs(found - x.mT.numpy()).max() <= 1e-3


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(dtype):
    config = CONFIGS["usual"]
    expected = kt.models.Encoder(config)
    mixed = kt.models.Encoder(config, dtype=dtype)
    mixed.set_weights(expected.get_weights())
    inputs = {"frames": values(config)}
    difference = to_numpy(mixed(inputs)).astype("float32") - to_numpy(expected(inputs))
    assert np.abs(difference).max() <= 0.1


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("stem", "message"),
    [
        ({"strides": []}, "`strides` of the stem must be 1 to 16 integers"),
        ({"strides": [0]}, "`strides` of the stem"),
        ({"kernel_size": 4}, "`kernel_size` of frames must be odd"),
        ({"num_bins": 0}, "`num_bins` must be at least 1"),
        ({"activation": "loud"}, "`activation` must be one of"),
    ],
)
def test_wrong_values(stem, message):
    with pytest.raises(ValueError, match=message):
        audio.frames(**stem)


def test_wrong_inputs():
    backbone = kt.models.Encoder(audio.frames())
    with pytest.raises(ValueError, match="must be of shape .batch, length, 12."):
        backbone({"frames": np.zeros((2, 26, 13), "float32")})
    with pytest.raises(ValueError, match="must hold finite floats"):
        backbone({"frames": np.full((1, 26, 12), np.nan, "float32")})
