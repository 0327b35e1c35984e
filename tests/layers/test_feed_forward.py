"""The feed-forward layer against PyTorch and its formula."""

import keras
import numpy as np
import pytest

from keras_transformer.config import ACTIVATIONS
from keras_transformer.layers import FeedForward
from keras_transformer.layers.feed_forward import ResidualFeedForward
from tests.closeness import atol_of
from tests.layers.conftest import assert_close, numpy, random, randomize

X = random(2, 5, 8)


def made(**options):
    layer = FeedForward(12, **options)
    layer.build(X.shape)
    return randomize(layer)


def reference(torch, layer):
    functional = torch.nn.functional
    activation = {
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "silu": functional.silu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "mish": functional.mish,
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "relu_squared": lambda x: functional.relu(x) ** 2,
    }[layer.activation]

    def dense(x, sublayer):
        bias = torch.tensor(numpy(sublayer.bias)) if layer.use_bias else None
        return functional.linear(x, torch.tensor(numpy(sublayer.kernel).T), bias)

    x = torch.tensor(X)
    hidden = dense(x, layer.intermediate_dense)
    hidden = activation(dense(x, layer.gate_dense)) * hidden if layer.gated else activation(hidden)
    return dense(hidden, layer.output_dense).numpy()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
def test_equals_pytorch(torch, activation, gated):
    layer = made(activation=activation, gated=gated)
    assert_close(layer(X), reference(torch, layer), atol=2e-6)


def test_without_bias(torch):
    layer = made(use_bias=False, gated=True)
    assert len(layer.weights) == 3
    assert_close(layer(X), reference(torch, layer))


def test_each_position_is_alone():
    layer = made()
    assert_close(layer(X)[:, 3:4], layer(X[:, 3:4]))
    assert FeedForward(12, output_dim=3)(X).shape == (2, 5, 3)


def test_the_kernels_start_different():
    layer = FeedForward(8, gated=True)
    layer.build(X.shape)
    kernels = [numpy(w) for w in layer.weights if w.name == "kernel"]
    assert len(kernels) == 3
    assert not np.array_equal(kernels[0], kernels[1])
    assert not np.array_equal(kernels[1], kernels[2])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy):
    half, full = made(dtype=policy), made()
    result = half(X)
    assert keras.backend.standardize_dtype(result.dtype) == half.compute_dtype
    assert_close(result, full(X), atol=atol_of(policy))


def test_with_a_linear_layer_beside_it():
    layer = ResidualFeedForward(12, 5, activation="silu", dropout=0.5)
    layer.build(X.shape)
    randomize(layer)
    inner = FeedForward(12, 5, activation="silu")
    inner.build(X.shape)
    for name in ("intermediate_dense", "output_dense"):
        getattr(inner, name).set_weights(getattr(layer, name).get_weights())
    beside = X @ numpy(layer.residual_dense.kernel) + numpy(layer.residual_dense.bias)
    assert_close(layer(X), numpy(inner(X)) + beside)
    # What is dropped are outputs of the feed-forward layer alone.
    dropped = numpy(layer(X, training=True)) - beside
    kept = np.abs(dropped) > 1e-5
    assert 0.2 < kept.mean() < 0.8
    assert np.abs(dropped - 2 * numpy(inner(X)))[kept].max() <= 1e-4
    again = ResidualFeedForward.from_config(layer.get_config())
    again.build(X.shape)
    assert [v.path for v in again.weights] == [v.path for v in layer.weights]
    assert again.dropout_layer.rate == 0.5


def test_unknown_activation():
    with pytest.raises(ValueError, match="Unknown activation 'swish'. Known are: 'relu', 'gelu'"):
        FeedForward(12, activation="swish")


def test_its_products_are_quantized():
    layer = FeedForward(8)
    layer.build((None, None, 4))
    x = random(2, 5, 4)
    expected = numpy(layer(x))
    for dense in (layer.intermediate_dense, layer.output_dense):
        dense.quantize("int8")
        assert dense.quantization_mode == "int8"
    assert_close(layer(x), expected, atol=0.1)
