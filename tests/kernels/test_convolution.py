"""Convolutions and maxima of maps against PyTorch's, whichever backend computes them."""

import keras
import numpy as np
import pytest

from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.kernels.convolution import centered_convolution, halved_maximum

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.each_backend


def maps(rows, columns):
    x = np.random.default_rng(0).normal(size=(2, rows, columns, 3)).astype("float32")
    return x, torch.tensor(np.moveaxis(x, -1, 1).copy())


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_are_centered(size, stride):
    layer = keras.layers.Conv2D(
        5, size, stride, use_bias=False, data_format="channels_last", padding="valid"
    )
    layer.build((None, None, None, 3))
    kernel = torch.tensor(to_numpy(layer.kernel)).permute(3, 2, 0, 1)
    for rows, columns in ((8, 10), (7, 9)):
        ours, theirs = maps(rows, columns)
        expected = torch.nn.functional.conv2d(theirs, kernel, stride=stride, padding=size // 2)
        found = to_numpy(centered_convolution(layer, keras.ops.convert_to_tensor(ours)))
        assert np.abs(np.moveaxis(found, -1, 1) - expected.numpy()).max() <= 1e-5


def test_maxima_of_three_by_three_places():
    for rows, columns in ((8, 10), (7, 9)):
        ours, theirs = maps(rows, columns)
        expected = torch.nn.functional.max_pool2d(theirs - 9, 3, 2, 1)  # all below 0
        found = to_numpy(halved_maximum(keras.ops.convert_to_tensor(ours - 9)))
        assert np.abs(np.moveaxis(found, -1, 1) - expected.numpy()).max() <= 1e-6
