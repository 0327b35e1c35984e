"""Attention in operations for XLA, against Keras's own."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.attention import kernel_of
from keras_transformer.kernels.attention import on_xla as attention


def states(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.parametrize("key_heads", [6, 2, 1])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_keras_s(key_heads, is_causal, masked):
    queries, keys, values = (states(2, 7, n, 5, seed=n) for n in (6, key_heads, key_heads))
    mask = np.ones((2, 1, 7, 7), bool)
    mask[1, ..., 4:] = False
    options = {"mask": mask if masked else None, "scale": 0.3, "is_causal": is_causal}
    found = attention(*map(ops.convert_to_tensor, (queries, keys, values)), **options)
    # Keras's of TensorFlow takes no single key head.
    keys, values = (np.repeat(x, 6 // key_heads, axis=2) for x in (keys, values))
    expected = ops.dot_product_attention(queries, keys, values, **options)
    assert np.abs(ops.convert_to_numpy(found - expected)).max() < 2e-6


def test_a_bias_and_other_keys_than_queries():
    queries, keys, values = states(2, 3, 4, 8), states(2, 9, 4, 8, seed=1), states(2, 9, 4, 8)
    bias = 3 * states(1, 4, 3, 9, seed=3)
    given = tuple(map(ops.convert_to_tensor, (queries, keys, values, bias)))
    expected = ops.dot_product_attention(*given[:3], bias=given[3])
    found = ops.convert_to_numpy(attention(*given))
    assert np.abs(found - ops.convert_to_numpy(expected)).max() < 2e-6


def test_large_scores_and_a_query_that_sees_nothing():
    queries, values = 100 * states(1, 4, 2, 8), states(1, 4, 2, 8, seed=1)
    mask = np.ones((1, 1, 4, 4), bool)
    mask[0, 0, 2] = False
    given = tuple(map(ops.convert_to_tensor, (queries, queries, values)))
    found = ops.convert_to_numpy(attention(*given, mask=ops.convert_to_tensor(mask)))
    assert np.allclose(found[0, 2], values[0].mean(0), atol=1e-5)
    assert np.abs(found[0, [0, 1, 3]] - values[0, [0, 1, 3]]).max() < 1e-3


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch has a kernel on a CPU")
def test_what_is_called_for_which_dtype():
    if keras.backend.backend() == "jax":
        import jax

        on_cpu = jax.default_backend() == "cpu"
    else:
        import tensorflow as tf

        on_cpu = not tf.config.list_physical_devices("GPU")
    on_tensorflow = keras.backend.backend() == "tensorflow"
    for dtype, ours in (("float32", on_cpu), ("bfloat16", on_cpu and on_tensorflow)):
        states = keras.KerasTensor((2, 4, 2, 8), dtype)
        assert (kernel_of(states, states, False) is attention) == ours


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_a_backend_calls_for_few_bits_adds_up_in_float32(dtype):
    given = [states(2, 600, 3, 8, seed=n) for n in range(3)]
    halves = [ops.cast(x, dtype) for x in given]
    found = kernel_of(*halves[:2], False)(*halves)
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    expected = attention(*(ops.cast(x, "float32") for x in halves))
    found, expected = (ops.convert_to_numpy(ops.cast(x, "float32")) for x in (found, expected))
    # Half a step of the outputs, which stay below one half, and weights rounded before the sum.
    assert np.abs(found - expected).max() < (4e-3 if dtype == "bfloat16" else 5e-4)
