"""The stem of folded spectrograms: its weights, interpolation, folding, wrong values."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.layers.stems.folded_frames import stretched
from tests.layers.stems import assert_is_as_described
from tests.tasks import audio

CONFIGS = {
    "usual": audio.folded(),
    "wide": audio.folded(image_size=[24, 20], patch_size=5, stride=4, padding=1, use_bias=False),
    "token": audio.folded(class_token=True),
    "fused": audio.folded(fusion=2),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def values(config, length=None, rows=2):
    shape = (rows, length or config.stem.most_frames, config.stem.num_bins)
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@each_config
def test_weights_and_states_are_those_of_the_config(config, tmp_path):
    assert_is_as_described(config, {"frames": values(config)}, tmp_path)


@pytest.mark.parametrize(("before", "after"), [(1001, 1024), (7, 19), (2, 9), (1, 5)])
def test_frames_are_stretched_as_by_pytorch(before, after):
    torch = pytest.importorskip("torch")
    given = np.random.default_rng(1).normal(size=(2, before, 3)).astype("float32")
    expected = torch.nn.functional.interpolate(
        torch.tensor(given)[:, None], (after, 3), mode="bicubic", align_corners=True
    )
    found = to_numpy(stretched(keras.ops.convert_to_tensor(given), after))
    assert np.abs(found - expected[:, 0].numpy()).max() <= 2e-6


def test_pieces_are_stacked():
    """Each state is the projection of a patch of the image, whose rows are bands of pieces."""
    config = CONFIGS["usual"]
    stem, part = kt.models.Encoder(config.replace(position="none")).stem, config.stem
    given = values(config)
    pieces = given.reshape(2, part.num_pieces, part.image_size[1], part.num_bins)
    image = np.concatenate(list(pieces.swapaxes(0, 1).swapaxes(2, 3)), axis=1)
    image = image / np.sqrt(1 + 1e-5)  # a new norm
    rows, columns = part.grid(part.image_size)
    size = part.patch_size
    patches = image.reshape(2, rows, size, columns, size).swapaxes(2, 3)
    kernel, bias = to_numpy(stem.patches.kernel), to_numpy(stem.patches.bias)
    expected = patches.reshape(2, rows * columns, -1) @ kernel.reshape(size**2, -1) + bias
    np.testing.assert_allclose(to_numpy(stem({"frames": given}).states), expected, atol=1e-4)


def test_bands_are_normalized_and_averages_learned():
    backbone = kt.models.Encoder(CONFIGS["usual"])
    given = values(CONFIGS["usual"]) * np.arange(1, 9) + 5
    before = to_numpy(backbone.stem.input_norm.moving_mean)
    expected = to_numpy(backbone({"frames": given}))
    backbone({"frames": given}, training=True)
    after = to_numpy(backbone.stem.input_norm.moving_mean)
    np.testing.assert_allclose(after, 0.9 * before + 0.1 * given.mean(axis=(0, 1)), atol=1e-4)
    assert np.abs(to_numpy(backbone({"frames": given})) - expected).max() > 1e-3


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(dtype):
    config = CONFIGS["usual"]
    expected = kt.models.Encoder(config)
    mixed = kt.models.Encoder(config, dtype=dtype)
    mixed.set_weights(expected.get_weights())
    inputs = {"frames": values(config, 21)}
    difference = to_numpy(mixed(inputs)).astype("float32") - to_numpy(expected(inputs))
    assert np.abs(difference).max() <= 0.1


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("stem", "message"),
    [
        ({"num_bins": 7}, "`num_bins` must divide the height of the image, 16"),
        ({"num_channels": 2}, "`num_channels` must be"),
        ({"patch_size": 64}, "too small for patch_size=64"),
        ({"fusion": 17}, "`fusion` must be at most the width of the states, 16"),
        ({"fusion": 2, "image_size": [16, 8]}, "needs images of at least three patches"),
    ],
)
def test_wrong_values(stem, message):
    with pytest.raises(ValueError, match=message):
        audio.folded(**stem)


def test_wrong_inputs():
    backbone = kt.models.Encoder(CONFIGS["usual"])
    with pytest.raises(ValueError, match="must be of shape .batch, length, 8."):
        backbone({"frames": np.zeros((2, 24, 9), "float32")})
    with pytest.raises(ValueError, match="folds at most 24 frames.*received 25"):
        backbone({"frames": np.zeros((2, 25, 8), "float32")})
    fused = kt.models.Encoder(CONFIGS["fused"])
    with pytest.raises(ValueError, match="`pieces` and `is_longer` go together"):
        fused({"frames": np.zeros((2, 24, 8), "float32"), "is_longer": np.ones((2, 1), "bool")})
