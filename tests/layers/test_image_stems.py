"""Stems of images against convolutions, and positions against PyTorch's interpolation."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.layers.resampling import cubic_resampling
from tests.layers.stems import assert_is_as_described
from tests.tasks import images

STEMS = {
    "patches": images.patches(),
    "overlapping": images.patches(stride=3, use_bias=False),
    "two tokens": images.patches(distillation_token=True),
    "no token": images.patches(class_token=False, num_channels=2),
    "oblong": images.patches(patch_width=2, class_token=False),
    "convolutions": images.convolutions(),
    "strided": images.convolutions(
        filters=(5, 6), strides=(2, 1, 1), pool_sizes=(1, 3, 2), pool_strides=(1, 2, 1),
        use_bias=True, kernel_size=4, activation="gelu",
    ),
}  # fmt: skip
each_stem = pytest.mark.parametrize("config", STEMS.values(), ids=STEMS)


def pictures(config, rows=2, size=None):
    shape = (rows, *(size or config.stem.image_size), config.stem.num_channels)
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@each_stem
def test_weights_and_states_are_those_of_the_config(config, tmp_path):
    assert_is_as_described(config, {"images": pictures(config)}, tmp_path)


@each_stem
def test_states_do_not_depend_on_other_rows(config):
    backbone = kt.models.Encoder(config)
    inputs = pictures(config, rows=3)
    alone = to_numpy(backbone({"images": inputs[1:2]}))
    assert np.abs(to_numpy(backbone({"images": inputs}))[1:2] - alone).max() <= 2e-6


@pytest.mark.parametrize(("stride", "width"), [(4, 4), (3, 4), (4, 2)])
def test_patches_are_a_convolution(stride, width):
    oblong = {} if width == 4 else {"patch_width": width}
    config = images.patches(stride=stride, class_token=False, **oblong).replace(position="none")
    stem = kt.models.Encoder(config).stem
    kernel = np.random.default_rng(1).normal(size=(4, width, 3, 16)).astype("float32")
    stem.patches.kernel.assign(kernel)
    stem.patches.bias.assign(np.arange(16))
    values = pictures(config)
    windows = np.lib.stride_tricks.sliding_window_view(values, (4, width), (1, 2))
    windows = windows[:, ::stride, :: width if oblong else stride]
    expected = np.einsum("bhwcij,ijcd->bhwd", windows, kernel).reshape(2, -1, 16) + np.arange(16)
    found = to_numpy(stem({"images": values}).states)
    assert np.abs(found - expected).max() <= 1e-4


@pytest.mark.backend_independent
def test_patches_that_are_not_square():
    stem = images.patches(patch_width=8, class_token=False).stem
    columns = stem.image_size[1]
    assert stem.grid((20, 40)) == (5, 5) and stem.patch_sides == (4, 8)
    for values in ({"stride": 2}, {"padding": 1}, {"whole_patches": True}):
        with pytest.raises(ValueError, match="`patch_width` needs patches that do not overlap"):
            images.patches(patch_width=8, class_token=False, **values)
    with pytest.raises(ValueError, match=f"too small for patch_width={columns + 1}"):
        images.patches(patch_width=columns + 1)


@pytest.mark.backend_independent
@pytest.mark.parametrize(("before", "after"), [(3, 7), (7, 3), (4, 4), (1, 5), (37, 16)])
def test_resampling_is_pytorchs(before, after):
    torch = pytest.importorskip("torch")
    values = torch.tensor(np.random.default_rng(0).normal(size=(1, 1, before, before)))
    expected = torch.nn.functional.interpolate(values, (after, after), mode="bicubic")
    matrix = cubic_resampling(before, after).astype("float64")
    found = matrix @ values[0, 0].numpy() @ matrix.T
    assert np.abs(found - expected[0, 0].numpy()).max() <= 1e-6


def test_an_input_of_another_size():
    config = images.patches()
    backbone = kt.models.Encoder(config)
    assert backbone({"images": pictures(config, size=(24, 8))}).shape == (2, 13, 16)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
@each_stem
def test_mixed_precision(config, dtype):
    expected = kt.models.Encoder(config)
    mixed = kt.models.Encoder(config, dtype=dtype)
    mixed.set_weights(expected.get_weights())
    inputs = {"images": pictures(config)}
    difference = to_numpy(mixed(inputs)).astype("float32") - to_numpy(expected(inputs))
    assert np.abs(difference).max() <= 0.1


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("stem", "message"),
    [
        ({"kind": "pages"}, "one of 'patches', 'patch_sequence', .*received .'kind': 'pages'"),
        ("patches", "must be a dict of values with the 'kind'"),
        ({"kind": "patches", "patchsize": 4}, "no value 'patchsize'.*Did you mean 'patch_size'"),
        ({"kind": "patches", "patch_size": 2.5}, "`patch_size` must be of type int"),
        ({"kind": "patches", "image_size": [8, True]}, "must be two integers"),
        ({"kind": "patches", "class_token": False, "distillation_token": True}, "needs `class_to"),
        ({"kind": "convolutions", "filters": [0]}, "`filters` of the stem must be 1 integers"),
        ({"kind": "convolutions", "strides": [1]}, "`strides` of the stem must be 2 integers"),
        ({"kind": "convolutions", "filters": [4] * 20}, "at most 16 convolutions"),
    ],
)
def test_wrong_stems(stem, message):
    with pytest.raises(ValueError, match=message):
        images.config(stem)


@pytest.mark.backend_independent
def test_a_stem_is_of_an_encoder_without_tokens():
    for values in ({"kind": "decoder"}, {"vocabulary_size": 9}):
        with pytest.raises(ValueError, match="`stem` needs an encoder with vocabulary_size=0"):
            kt.TransformerConfig.from_dict({**images.patches().stated(), **values})


def test_wrong_inputs():
    backbone = kt.models.Encoder(images.patches())
    for values, message in (
        (np.zeros((2, 3, 12, 16), "float32"), "must be of shape .batch, length, dim, 3."),
        (np.full((1, 12, 16, 3), np.nan, "float32"), "must hold finite floats"),
        (np.zeros((1, 12, 16, 3), "uint8"), "must hold finite floats, received uint8"),
    ):
        with pytest.raises(ValueError, match=message):
            backbone({"images": values})
    with pytest.raises(ValueError, match="needs a dict with 'images'"):
        backbone({"token_ids": np.zeros((1, 2), "int32")})
