"""PyTorch: products by oneDNN are those of `torch.matmul`, and so are their gradients."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.layers.products import quick_products

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="the other backends have products of their own"
)


def operands(*shape):
    import torch

    generator = torch.Generator().manual_seed(0)
    left = torch.randn(*shape, generator=generator, requires_grad=True)
    right = torch.randn(shape[-1], 7, generator=generator, requires_grad=True)
    return left, right


@pytest.mark.parametrize("shape", [(5, 6), (3, 5, 6), (2, 3, 5, 6)])
@pytest.mark.parametrize("transposed", [False, True])
def test_values_and_gradients(shape, transposed):
    import torch

    left, right = operands(*shape)
    weight = right.t().contiguous().t() if transposed else right
    with quick_products(left):
        product = torch.matmul(left, weight)
    assert type(product.grad_fn).__name__ == "_ProductBackward"
    expected = left.double() @ right.double()
    upstream = torch.cos(expected.detach())
    found = torch.autograd.grad(product, (left, right), upstream.float())
    wanted = torch.autograd.grad(expected, (left, right), upstream)
    assert torch.allclose(product.double(), expected, atol=1e-5)
    for each, other in zip(found, wanted, strict=True):
        assert each.shape == other.shape and torch.allclose(each, other, atol=1e-5)


def test_a_bias_in_the_product():
    import torch

    left, right = operands(3, 5, 6)
    bias = torch.randn(7, requires_grad=True)
    with quick_products(left):
        product = torch.nn.functional.linear(left, right.t(), bias)
    assert type(product.grad_fn).__name__ == "_ProductBackward"
    expected = left.double() @ right.double() + bias.double()
    upstream = torch.cos(expected.detach())
    found = torch.autograd.grad(product, (left, right, bias), upstream.float())
    wanted = torch.autograd.grad(expected, (left, right, bias), upstream)
    assert torch.allclose(product.double(), expected, atol=1e-5)
    for each, other in zip(found, wanted, strict=True):
        assert each.shape == other.shape and torch.allclose(each, other, atol=1e-5)


@pytest.mark.parametrize("columns", [3, 30])
def test_left_the_other_way_round(columns):
    """The smaller of the two is turned in memory, and the values are the same."""
    import torch

    left, right = torch.randn(20, 9), torch.randn(20, columns)
    with quick_products(left):
        product = torch.matmul(left.t(), right)
    assert product.is_contiguous() == (columns > 9)
    assert torch.allclose(product.double(), left.double().t() @ right.double(), atol=1e-5)


def test_gradients_have_gradients():
    import torch

    def product(left, right):
        with quick_products(left):
            return torch.matmul(left, right)

    left, right = operands(3, 6)
    (slope,) = torch.autograd.grad(product(left, right).pow(2).sum(), left, create_graph=True)
    (found,) = torch.autograd.grad(slope.sum(), right)
    (slope,) = torch.autograd.grad((left @ right).pow(2).sum(), left, create_graph=True)
    (wanted,) = torch.autograd.grad(slope.sum(), right)
    assert torch.allclose(found, wanted, atol=1e-3)


def test_only_what_it_is_for():
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    def name(left, right):
        with quick_products(left):
            return type(torch.matmul(left, right).grad_fn).__name__

    left, right = operands(5, 6)
    assert name(left, right) == "_ProductBackward"
    assert name(left.double(), right.double()) == "MmBackward0"
    assert name(left[:0], right) == "MmBackward0"
    assert name(left, right[:, 0]) == "MvBackward0"
    with FlopCounterMode(display=False) as counter:
        assert name(left, right) == "MmBackward0"
    assert counter.get_total_flops() == 2 * 5 * 6 * 7
    with torch.autocast("cpu", torch.bfloat16), quick_products(left):
        assert torch.matmul(left, right).dtype == torch.bfloat16
    assert name(left, right) == "_ProductBackward"


def test_models_use_it():
    """Every product with a weight of a step, forward and backward, and none of the library's."""
    import torch

    config = kt.TransformerConfig(
        kind="seq2seq",
        vocabulary_size=50,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
    )
    lm = kt.Seq2SeqLM(kt.models.Seq2Seq(config))
    rng = np.random.default_rng(0)
    ids = rng.integers(4, 50, (4, 9)).astype("int32")
    inputs = dict.fromkeys(("encoder_token_ids", "decoder_token_ids"), ids)
    lm.compile(keras.optimizers.SGD(0.1), kt.training.TokenCrossEntropy())
    lm.train_on_batch(inputs, ids)  # Keras looks at it first, without numbers.
    with torch.profiler.profile() as profile:
        lm.train_on_batch(inputs, ids)
    calls = {event.key: event.count for event in profile.key_averages()}
    matrices = 3 * 4 + 2 * 2 + 1  # of three attentions, two feed-forward layers, the logits
    assert calls["mkldnn::_linear_pointwise"] == 3 * matrices
    assert calls.get("aten::mm", 0) == calls.get("aten::addmm", 0) == 0
