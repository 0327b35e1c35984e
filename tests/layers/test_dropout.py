"""Dropout drops the share asked for, and no two masks have to do with each other."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.device import device
from keras_transformer.kernels.dropout import random_bits
from keras_transformer.layers import Dropout

SIZE = 400_000


def masks(layer, count, size=SIZE):
    ones = np.ones((size,), "float32")
    return [ops.convert_to_numpy(layer(ones, training=True)) == 0 for _ in range(count)]


def correlation(a, b) -> float:
    """Times the square root of the number of elements: normal with deviation 1 if unrelated."""
    return float(np.corrcoef(a, b)[0, 1]) * np.sqrt(len(a))


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.1, 0.5, 0.9])
def test_rate_and_scale(rate, seed):
    keras.utils.set_random_seed(0)
    # Not a multiple of four: on PyTorch one draw is for four elements.
    ones = np.ones((SIZE + 3,), "float32")
    y = ops.convert_to_numpy(Dropout(rate, seed=seed)(ones, training=True))
    deviation = np.sqrt(rate * (1 - rate) / SIZE)
    assert abs((y == 0).mean() - rate) < 5 * deviation
    # Without a seed PyTorch rounds the rate on a CPU, and scales by the rounded one.
    by_quarters = keras.backend.backend() == "torch" and device().is_cpu
    rounded = by_quarters and seed is None and rate > 2**-17
    scale = 1 / (1 - (round(rate * 2**16) / 2**16 if rounded else rate))
    np.testing.assert_allclose(y[y != 0], scale, rtol=1e-6)
    assert abs(y.mean() - 1) < 5 * deviation / (1 - rate)


def test_nothing_is_dropped_in_inference_or_at_rate_0():
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    np.testing.assert_array_equal(ops.convert_to_numpy(Dropout(0.5)(x)), x)
    np.testing.assert_array_equal(ops.convert_to_numpy(Dropout(0.0)(x, training=True)), x)


@pytest.mark.parametrize("seeds", [(1, 2), (None, None)])
def test_masks_of_steps_and_layers_are_unrelated(seeds):
    drawn = masks(Dropout(0.3, seed=seeds[0]), 4) + masks(Dropout(0.3, seed=seeds[1]), 4)
    for i, first in enumerate(drawn):
        for second in drawn[:i]:
            assert abs(correlation(first, second)) < 5


@pytest.mark.parametrize("seed", [3, None])
def test_neighbours_are_unrelated(seed):
    (mask,) = masks(Dropout(0.3, seed=seed), 1)
    for distance in (1, 2, 7, 64, 128, 768, 1024, 4096):
        assert abs(correlation(mask[:-distance], mask[distance:])) < 5


def test_the_seed_gives_the_mask_again():
    first, again = masks(Dropout(0.3, seed=5), 2), masks(Dropout(0.3, seed=5), 2)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(*first)


def test_every_bit_is_fair_and_changes_with_one_bit_of_the_seed():
    shape, seed = (SIZE,), np.array([12, 5], "uint32")
    bits = _bits(random_bits(shape, seed))
    assert np.abs(bits.mean(axis=1) - 0.5).max() < 5 * 0.5 / np.sqrt(SIZE)
    for flipped in ([13, 5], [12, 4], [12, 5 + 2**20]):
        other = _bits(random_bits(shape, np.array(flipped, "uint32")))
        assert np.abs((bits ^ other).mean(axis=1) - 0.5).max() < 5 * 0.5 / np.sqrt(SIZE)


def test_the_same_numbers_on_every_backend():
    found = ops.convert_to_numpy(random_bits((2, 2), np.array([12, 5], "uint32")))
    np.testing.assert_array_equal(found, EXPECTED)


def _mixed(x):
    """The last step of MurmurHash3, 32 bits, on Python's integers."""
    x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
    x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
    return x ^ x >> 16


_DRAWN = _mixed((5 * 0x9E3779B9 + 12) % 2**32)
_KEY = (_DRAWN * 0x85EBCA6B + 12) % 2**32
EXPECTED = [
    [_mixed(_mixed((place + _DRAWN) % 2**32) ^ _KEY) for place in row] for row in ((0, 1), (2, 3))
]


def _bits(numbers):
    return (
        ops.convert_to_numpy(numbers).astype("uint32")[None]
        >> np.arange(32, dtype="uint32")[:, None]
        & 1
    )


def test_gradient_is_the_mask():
    inputs = keras.Input((SIZE,))
    layer = Dropout(0.25, seed=1)
    scaled = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(layer(inputs))
    model = keras.Model(inputs, scaled)
    model.compile(keras.optimizers.SGD(1.0), lambda y, y_pred: ops.sum(y_pred))
    model.train_on_batch(np.ones((1, SIZE), "float32"), np.zeros((1, 1), "float32"))
    moved = 1 - ops.convert_to_numpy(model.layers[-1].kernel)[:, 0]  # by the inputs kept
    assert set(np.round(np.unique(moved), 4)) == {0.0, np.float32(1.3333)}
    assert abs((moved == 0).mean() - 0.25) < 0.005


def test_the_seed_of_the_program_gives_the_masks_again():
    drawn = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        layer = Dropout(0.3)
        drawn.append(masks(layer, 2))
    np.testing.assert_array_equal(*drawn)
    assert not np.array_equal(*drawn[0])


def test_config_round_trip():
    layer = Dropout(0.25, seed=3)
    again = Dropout.from_config(layer.get_config())
    assert (again.rate, again.seed) == (0.25, 3)


@pytest.mark.backend_independent
def test_rates_and_seeds():
    for rate in ("x", 1, -0.1, float("nan"), None, True):
        with pytest.raises(ValueError, match="`rate` must be a number of at least 0 and below 1"):
            Dropout(rate)
    for seed in ("x", -1, 1.5, 2**64, 2**31, True):
        with pytest.raises(ValueError, match=r"`seed` must be an integer from 0 to 2\*\*31 - 1"):
            Dropout(0.1, seed=seed)
    assert Dropout(np.float32(0.5), seed=np.int64(3)).get_config()["seed"] == 3
