"""PyTorch's int8 and int4 products for a GPU, on whatever device there is."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import TokenEmbedding
from keras_transformer.layers.dense import Dense

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="kernels of PyTorch")
RANDOM = np.random.default_rng(0)


def integers(*shape):
    return RANDOM.integers(-127, 128, shape).astype("int8")


@pytest.fixture
def products(monkeypatch):
    """The matrices of each product of int8."""
    import torch

    seen, multiply = [], torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda *given: seen.append(given) or multiply(*given))
    return seen


@pytest.mark.parametrize("order", ["as it is", "turned"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("rows", "outputs"), [(1, 7), (40, 16)])
def test_int8_is_exact(products, order, axis, rows, outputs):
    """And what cuBLAS is given it takes: sizes, and the inputs of the matrix side by side."""
    from keras_transformer.kernels import torch_gpu_int8

    left, matrix = integers(rows, 40), integers(40, outputs)
    given = ops.convert_to_tensor(matrix if axis == 0 else np.ascontiguousarray(matrix.T))
    left = ops.convert_to_tensor(left.astype("float32") + 0.25)
    if order == "turned":
        given, left = (x.t().contiguous().t() for x in (given, left))
    for sign in (1, -1):  # of numbers that change in place
        found = ops.convert_to_numpy(torch_gpu_int8.multiply(left, given, axis))
        wanted = np.round(ops.convert_to_numpy(left)).astype("int64") @ (sign * matrix.astype(int))
        np.testing.assert_array_equal(found, wanted)
        given.neg_()
    for one, other in products:
        assert one.shape[0] > 16 and one.is_contiguous() and other.t().is_contiguous()
        assert all(size % 8 == 0 for size in other.shape)


def quantized(make, block_size):
    layer = make()
    layer.build((None, 128) if isinstance(layer, Dense) else None)
    layer.quantize(config=keras.quantizers.Int4QuantizationConfig(block_size=block_size))
    return layer


MATRICES = {
    "dense": lambda: Dense(13, bias_initializer="normal"),
    "tied": lambda: TokenEmbedding(11, 128),
    "untied": lambda: TokenEmbedding(11, 128, tie_weights=False),
}


@pytest.mark.parametrize("block_size", [-1, 32, 128])
@pytest.mark.parametrize("kind", MATRICES)
def test_int4_is_that_of_floats(kind, block_size):
    """The numbers, scales and zeros of Keras, in the order of PyTorch's operation."""
    import torch

    from keras_transformer.kernels import torch_gpu_int4
    from keras_transformer.kernels.torch_int4 import Int4

    layer = quantized(MATRICES[kind], block_size)
    matrix = Int4(layer, of_logits=kind != "dense")
    states = ops.convert_to_tensor(RANDOM.normal(size=(2, 128, 3)).astype("float32")).mT
    bias = layer.bias.value if kind == "dense" else None
    with torch.no_grad():
        found = torch_gpu_int4.product(states, matrix, bias)
        of_keras = (
            keras.layers.Dense.quantized_call(layer, states)
            if kind == "dense"
            else keras.layers.ReversibleEmbedding.quantized_call(layer, states, reverse=True)
        )
    assert found.dtype == torch.float32 and found.shape == of_keras.shape
    # Rows, scales and results are of bfloat16.
    assert float((found - of_keras).abs().max()) < 0.01 * float(of_keras.abs().max())


def test_int4_of_other_groups_is_keras_own():
    from keras_transformer.kernels import torch_gpu_int4
    from keras_transformer.kernels.torch_int4 import Int4

    assert torch_gpu_int4.group_of(Int4(quantized(MATRICES["dense"], 64))) == 64
    assert torch_gpu_int4.group_of(Int4(quantized(MATRICES["dense"], 8))) is None
    layer = quantized(MATRICES["dense"], 64)
    layer.g_idx.assign(np.arange(128) % 2)  # as where inputs were sorted
    assert torch_gpu_int4.group_of(Int4(layer)) is None


def test_kernels_are_asked_whether_they_are_right():
    """The question that a GPU is asked once has the answer yes where the operations are right."""
    import torch

    from keras_transformer.kernels import torch_gpu_int4, torch_gpu_int8

    device = ops.zeros(()).device
    assert torch_gpu_int8._works(device) and torch_gpu_int4._works(device)
    taken = torch_gpu_int8.takes(ops.zeros((3, 16)))
    assert taken == (device.type == "cuda") and not torch_gpu_int8.takes(torch.zeros(3, 16))
