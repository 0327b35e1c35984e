"""The stem of videos: its product against a convolution, and positions of other sizes."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.layers import SinusoidalPosition
from tests.tasks import videos


def stem_of(config):
    return kt.models.Encoder(config).stem


def test_the_product_is_a_convolution():
    stem = stem_of(
        videos.config(tube_frames=3, num_frames=7, patch_size=3).replace(position="none")
    )
    x = np.random.default_rng(0).normal(size=(2, 7, 8, 12, 3)).astype("float32")
    expected = to_numpy(stem.patches(x))  # what is left over at the ends is cut
    assert expected.shape == (2, 2, 2, 4, 16)
    found = to_numpy(stem({"videos": x}).states)
    assert np.abs(found - expected.reshape(2, 16, 16)).max() <= 1e-5


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_positions_of_other_sizes(position):
    """Against PyTorch's bicubic interpolation, in space and in time."""
    torch = pytest.importorskip("torch")
    config = videos.config(class_token=True).replace(position=position)
    stem = stem_of(config)
    if position == "learned":
        table = np.random.default_rng(1).normal(size=(13, 16)).astype("float32")
        stem.position_embedding.embeddings.assign(table)
    else:
        table = to_numpy(SinusoidalPosition()(np.zeros((1, 13, 16), "float32")))[0]
    grid = torch.tensor(table[1:]).reshape(2, 2, 3, 16)
    options = {"mode": "bicubic", "align_corners": False}
    wider = torch.nn.functional.interpolate(grid.permute(0, 3, 1, 2), size=(4, 5), **options)
    grid = wider.permute(2, 3, 0, 1).reshape(1, 20, 2, 16)  # rows and columns, times, features
    longer = torch.nn.functional.interpolate(grid.permute(0, 3, 1, 2), size=(20, 3), **options)
    expected = longer[0].permute(2, 1, 0).reshape(60, 16).numpy()
    zeros = np.zeros((1, 6, 16, 20, 3), "float32")
    stem.patches.bias.assign(np.zeros(16))
    found = to_numpy(stem({"videos": zeros}).states)[0]
    assert np.abs(found[1:] - expected).max() <= 1e-5
    token = to_numpy(stem.class_token)
    assert np.abs(found[0] - token - table[0]).max() <= 1e-6


@pytest.mark.backend_independent
def test_sinusoids_of_many_tubes_are_exact():
    from transformers.models.videomae.modeling_videomae import get_sinusoid_encoding_table

    expected = get_sinusoid_encoding_table(1568, 8)[0].numpy()
    assert np.abs(SinusoidalPosition().table(1568, 8) - expected).max() <= 1e-6
    position = SinusoidalPosition(interleaved=False, offset=2, inclusive=True)
    called = to_numpy(position(np.zeros((1, 9, 8), "float32")))[0]
    assert np.abs(position.table(9, 8) - called).max() <= 1e-5


def test_a_functional_model():
    backbone = kt.models.Encoder(videos.config())
    inputs = {"videos": keras.Input((4, 8, 12, 3), name="videos")}
    model = keras.Model(inputs, backbone(inputs))
    assert model.output.shape == (None, 12, 16)
    x = np.random.default_rng(0).normal(size=(3, 4, 8, 12, 3)).astype("float32")
    found = to_numpy(model({"videos": x}))
    assert np.abs(found - to_numpy(backbone({"videos": x}))).max() <= 1e-6


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"frame_size": (8,)}, "`frame_size` of a stem must be two integers"),
        ({"num_frames": 1}, "1 frames of 8 x 12 are too few or too small for tubes of 2 frames"),
        ({"patch_size": 9}, "4 frames of 8 x 12 are too few or too small"),
        ({"num_channels": 0}, "`num_channels` must be at least 1"),
    ],
)
def test_wrong_values(values, message):
    with pytest.raises(ValueError, match=message):
        videos.config(**values)


@pytest.mark.one_backend
def test_wrong_arrays():
    backbone = kt.models.Encoder(videos.config())
    with pytest.raises(ValueError, match="`videos` must be of shape"):
        backbone({"videos": np.zeros((1, 4, 8, 12), "float32")})
    with pytest.raises(ValueError, match="`videos` must be of shape"):
        backbone({"videos": np.zeros((1, 4, 8, 12, 1), "float32")})
