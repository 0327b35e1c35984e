"""The quick argmax and top-k against NumPy's sort."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.generation.samplers.samplers import broken
from keras_transformer.kernels import selection
from keras_transformer.kernels.programs import compile_function
from keras_transformer.kernels.selection import argmax, top_k

# Around multiples of the chunks of 128, and where chunks begin to be used.
SIZES = [1, 2, 127, 128, 129, 383, 384, 385, 511, 512, 513, 1023, 1024, 1025, 1500, 5000]


@pytest.fixture(autouse=True)
def _none_are_few(monkeypatch):
    """On PyTorch chunks are looked at too, which otherwise are for many numbers."""
    monkeypatch.setattr(selection, "_FEW", 0)


def scores(shape, seed=0, values=None):
    """Random numbers, or of so few values that many are equal."""
    random = np.random.default_rng(seed)
    if values is None:
        return random.normal(size=shape).astype("float32")
    return random.integers(0, values, shape).astype("float32")


def check(array, k):
    """The values are NumPy's, and the places are different ones that hold them."""
    values, places = (ops.convert_to_numpy(x) for x in top_k(ops.convert_to_tensor(array), k))
    expected = -np.sort(-array, axis=-1)[..., :k]
    np.testing.assert_array_equal(values, expected)
    assert places.dtype == "int32" and places.shape == (*array.shape[:-1], k)
    assert places.min() >= 0 and places.max() < array.shape[-1]
    np.testing.assert_array_equal(np.take_along_axis(array, places, axis=-1), expected)
    assert (np.diff(np.sort(places, axis=-1), axis=-1) > 0).all()


@pytest.mark.parametrize("size", SIZES)
def test_top_k_of_different_numbers(size):
    array = scores((3, size))
    for k in {1, 2, 5, 10} & set(range(1, size + 1)):
        check(array, k)
        places = ops.convert_to_numpy(top_k(ops.convert_to_tensor(array), k)[1])
        np.testing.assert_array_equal(places, np.argsort(-array, axis=-1)[:, :k])


@pytest.mark.parametrize("size", SIZES)
def test_top_k_of_equal_numbers(size):
    for k in {1, 2, 5, 10} & set(range(1, size + 1)):
        for values in (1, 2, 7):
            check(scores((4, size), values, values), k)


@pytest.mark.parametrize("size", SIZES)
def test_argmax_is_the_first_of_equal_numbers(size):
    for values in (None, 1, 2, 7, 1000):
        array = scores((5, size), 1, values)
        found = argmax(ops.convert_to_tensor(array))
        np.testing.assert_array_equal(ops.convert_to_numpy(found), array.argmax(axis=-1))


@pytest.mark.parametrize("size", [5, 600, 1025, 3000])
def test_forbidden_numbers_come_last(size):
    """-inf, of which there may be more than others: then they too are places of the array."""
    array = scores((6, size))
    allowed = np.arange(6)[:, None] * 2
    array = np.where(np.arange(size) >= size - allowed, array, -np.inf).astype("float32")
    for k in (1, 2, 5):
        check(array, k)
    found = ops.convert_to_numpy(argmax(ops.convert_to_tensor(array)))
    np.testing.assert_array_equal(found, array.argmax(axis=-1))


@pytest.mark.parametrize("shape", [(1300,), (2, 1300), (2, 3, 1300), (700,), (2, 3, 9)])
def test_ranks(shape):
    array = scores(shape, values=50)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(argmax(ops.convert_to_tensor(array))), array.argmax(axis=-1)
    )
    check(array, 3)


def test_one_number_that_is_none_is_found():
    array = scores((8, 1000))
    array[1, 7] = array[2, 0] = array[5] = np.nan
    array[3, 999], array[4, 5] = np.inf, -np.inf
    expected = [False, True, True, True, True, True, False, False]
    compiled = compile_function(broken)
    assert ops.convert_to_numpy(compiled(ops.convert_to_tensor(array))).tolist() == expected
    assert ops.convert_to_numpy(broken(ops.convert_to_tensor(array))).tolist() == expected
