"""Products of bfloat16 and int8 on JAX and a CPU are those of Keras, without turned-up weights."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import TokenEmbedding
from keras_transformer.layers.dense import Dense

if keras.backend.backend() != "jax":
    pytest.skip("they are JAX's", allow_module_level=True)

import jax
import jax.numpy as jnp

from keras_transformer.kernels import jax_products

pytestmark = pytest.mark.each_backend

SHAPES = [(1, 16), (1, 1, 16), (3, 16), (2, 3, 16)]


def states(shape, dtype="bfloat16"):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)


def dense(mode=None, **options):
    layer = Dense(7, bias_initializer="normal", activation="tanh", **options)
    layer.build((None, 16))
    if mode:
        layer.quantize(mode)
    return layer


def close(found, wanted, atol):
    found, wanted = (np.asarray(x, "float32") for x in (found, wanted))
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=atol)


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_is_that_of_keras(shape):
    layer = dense(dtype="bfloat16")
    given = states(shape)
    found = layer(given)
    assert found.dtype == "bfloat16"
    close(found, keras.layers.Dense.call(layer, given), 0.02)
    embedding = TokenEmbedding(11, 16, dtype="bfloat16")
    embedding.build()
    logits = embedding(given, reverse=True)
    close(logits, keras.layers.ReversibleEmbedding.call(embedding, given, reverse=True), 0.02)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_bfloat16(shape, axis):
    given, kernel = states(shape), states((16, 7))
    kernel = kernel if axis == 0 else kernel.T
    weights = states((*shape[:-1], 7))

    def found(given, kernel):
        return (jax_products.product(given, kernel, axis) * weights).sum().astype("float32")

    def wanted(given, kernel):
        kernel = kernel if axis == 0 else kernel.T
        return (given @ kernel * weights.astype("float32")).sum()

    for one, other in zip(
        jax.grad(found, (0, 1))(given, kernel),
        jax.grad(wanted, (0, 1))(given.astype("float32"), kernel.astype("float32")),
        strict=True,
    ):
        assert one.dtype == "bfloat16"
        close(one, other, 0.05)


def test_mixed_precision_trains():
    layer = dense(dtype="mixed_bfloat16")
    model = keras.Sequential([keras.Input((16,)), layer])
    before = np.asarray(layer.kernel)
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 16)), np.zeros((4, 7)), verbose=0)
    assert layer.kernel.dtype == "float32"
    assert not np.array_equal(before, np.asarray(layer.kernel))


@pytest.mark.cpu
def test_weights_are_not_converted():
    """XLA gets 16-bit operands and 32-bit sums."""
    layer, embedding = dense(dtype="bfloat16"), TokenEmbedding(11, 16, dtype="bfloat16")
    embedding.build()
    for call in (layer, lambda x: embedding(x, reverse=True)):
        text = jax.jit(call).lower(states((3, 16))).as_text()
        products = [line for line in text.splitlines() if "dot_general" in line]
        assert len(products) == 1
        operands, result = products[0].rsplit(":", 1)[1].split("->")
        assert operands.count("bf16") == 2
        assert "f32" in result and "bf16" not in result


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_is_that_of_keras(shape):
    given = states(shape, "float32")
    given = given.at[..., 0, :].set(0) if shape == (2, 3, 16) else given
    layer = dense("int8")
    close(layer(given), keras.layers.Dense.quantized_call(layer, given), 1e-6)
    embedding = TokenEmbedding(11, 16)
    embedding.build()
    embedding.quantize("int8")
    wanted = keras.layers.ReversibleEmbedding.quantized_call(embedding, given, reverse=True)
    close(embedding(given, reverse=True), wanted, 1e-6)


def test_a_row_of_int8_is_what_it_is_alone():
    layer, given = dense("int8"), states((2, 3, 16), "float32")
    found = layer(given)
    close(layer(given.at[1].multiply(1000))[0], found[0], 1e-6)
    close(layer(given[:1, :1]), found[:1, :1], 1e-6)


def test_int8_has_the_gradient_of_the_inputs():
    layer, given = dense("int8"), states((3, 16), "float32")

    def gradient(call):
        return jax.grad(lambda x: call(x).sum())(given)

    wanted = gradient(lambda x: keras.layers.Dense.quantized_call(layer, x))
    assert np.abs(np.asarray(wanted)).max() > 0.1
    close(gradient(layer), wanted, 1e-5)
