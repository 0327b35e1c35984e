"""Slots of keys and values by themselves: what is written is read, in every dtype."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.indexing import put
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.attention.key_value_cache import KeyValueCache
from tests.layers.conftest import numpy, random

KEYS, VALUES = random(2, 3, 4, 6), random(2, 3, 4, 6, seed=1)  # rows, length, heads, head size
# The largest error of a number x in a row of numbers up to m.
ERRORS = {
    "float32": lambda x, m: 0 * x,
    "float16": lambda x, m: np.abs(x) * 2**-11 + 1e-7,
    "bfloat16": lambda x, m: np.abs(x) * 2**-8,
    "int8": lambda x, m: 0 * x + m / 254 * 1.0001,
}


def tensors(*arrays):
    return [ops.convert_to_tensor(array) for array in arrays]


def written(dtype, index, slots=8):
    return at(index, KeyValueCache.make(2, 4, slots, 6, dtype)).write(*tensors(KEYS, VALUES))


def at(index, slots):
    return dataclasses.replace(slots, next=index)


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("dtype", ERRORS)
def test_what_is_written_is_read(dtype, known):
    slots = written(dtype, 2 if known else ops.convert_to_tensor(2, "int32"))
    assert keras.backend.standardize_dtype(slots.keys.dtype) == dtype
    assert int(slots.next) == 5 and isinstance(slots.next, int) == known
    slots = slots.full()
    for read, array in zip(slots.read("float32"), (KEYS, VALUES), strict=True):
        assert read.shape == (2, 4, 8, 6)
        read, expected = numpy(read), array.transpose(0, 2, 1, 3)
        error = np.abs(read[:, :, 2:5] - expected)
        assert (error <= ERRORS[dtype](expected, np.abs(expected).max(-1, keepdims=True))).all()
        assert not read[:, :, :2].any() and not read[:, :, 5:].any()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_second_write_leaves_the_first(dtype):
    slots = written(dtype, 0)
    before = [numpy(x) for x in slots.read("float32")]
    slots = slots.write(*tensors(VALUES[:, :1], KEYS[:, :1]))
    for old, new in zip(before, slots.read("float32"), strict=True):
        np.testing.assert_array_equal(numpy(new)[:, :, :3], old)
        assert numpy(new)[:, :, 3].any(axis=-1).all()
    slots = at(1, slots).write(*tensors(VALUES[:, :1], KEYS[:, :1])).full()
    for new in slots.read("float32"):
        np.testing.assert_array_equal(numpy(new)[:, :, 1], numpy(new)[:, :, 3])


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_first_slots_alone(dtype):
    slots = written(dtype, 0)
    for part, whole in zip(at(2, slots).read("float32"), slots.read("float32"), strict=True):
        assert part.shape == (2, 4, 2, 6)
        np.testing.assert_array_equal(numpy(part), numpy(whole)[:, :, :2])


@pytest.mark.parametrize("dtype", ERRORS)
def test_empty_slots_of_the_same_kind(dtype):
    like = written(dtype, 0).like(3)
    assert like.keys.shape == (2, 4, 3, 6)
    assert [x.dtype for x in like.tensors] == [x.dtype for x in written(dtype, 0).tensors]
    assert not any(numpy(x).any() for x in like.tensors)
    assert len(like.tensors) == (4 if dtype == "int8" else 2)
    assert KeyValueCache(*like.tensors).tensors == like.tensors and like.next == 0


def test_zeros_and_large_numbers_in_int8():
    keys, values = np.zeros((1, 2, 1, 4), "float32"), np.full((1, 2, 1, 4), 1e30, "float32")
    slots = KeyValueCache.make(1, 1, 2, 4, "int8").write(*tensors(keys, values)).full()
    keys, values = (numpy(x) for x in slots.read("float32"))
    assert not keys.any()
    np.testing.assert_allclose(values, 1e30, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_put_along_an_axis(dtype):
    random_ = np.random.default_rng(0)
    whole = random_.integers(0, 2, (3, 7, 5)).astype(dtype)
    part = random_.integers(0, 2, (3, 2, 5)).astype(dtype)
    expected = whole.copy()
    expected[:, 4:6] = part
    for index in (4, ops.convert_to_tensor(4, "int32")):
        found = put(*tensors(whole.copy(), part), index, axis=1)
        np.testing.assert_array_equal(ops.convert_to_numpy(found), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_layer_keeps_the_dtype_of_its_slots(dtype):
    layer = MultiHeadAttention(2, 4, dtype="mixed_float16", causal=True)
    slots = KeyValueCache.make(1, 2, 4, 4, dtype)
    _, slots = layer(random(1, 2, 8), cache=slots)
    output, slots = layer(random(1, 1, 8), cache=slots)
    assert keras.backend.standardize_dtype(output.dtype) == "float16"
    assert {keras.backend.standardize_dtype(x.dtype) for x in slots.tensors[:2]} == {dtype}
    assert numpy(slots.keys)[:, :, :3].any(axis=(0, 1, 3)).all()
