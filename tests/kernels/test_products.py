"""PyTorch: products by oneDNN are those of `torch.matmul`, and so are their gradients."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.kernels.device import device
from keras_transformer.kernels.products import onednn_matmul_scope
from keras_transformer.layers import TokenEmbedding
from keras_transformer.layers.dense import Dense

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="the other backends have products of their own"
)


def operands(*shape):
    random = np.random.default_rng(0)
    arrays = (random.normal(size=size).astype("float32") for size in (shape, (shape[-1], 7)))
    return tuple(ops.convert_to_tensor(array).requires_grad_() for array in arrays)


@pytest.mark.cpu
@pytest.mark.parametrize("shape", [(5, 6), (3, 5, 6), (2, 3, 5, 6)])
@pytest.mark.parametrize("transposed", [False, True])
def test_values_and_gradients(shape, transposed):
    import torch

    left, right = operands(*shape)
    weight = right.t().contiguous().t() if transposed else right
    with onednn_matmul_scope(left):
        product = torch.matmul(left, weight)
    assert type(product.grad_fn).__name__ == "_ProductBackward"
    expected = left.double() @ right.double()
    upstream = torch.cos(expected.detach())
    found = torch.autograd.grad(product, (left, right), upstream.float())
    wanted = torch.autograd.grad(expected, (left, right), upstream)
    assert torch.allclose(product.double(), expected, atol=1e-5)
    for each, other in zip(found, wanted, strict=True):
        assert each.shape == other.shape and torch.allclose(each, other, atol=1e-5)


@pytest.mark.cpu
def test_a_bias_in_the_product():
    import torch

    left, right = operands(3, 5, 6)
    bias = torch.randn(7, requires_grad=True)
    with onednn_matmul_scope(left):
        product = torch.nn.functional.linear(left, right.t(), bias)
    assert type(product.grad_fn).__name__ == "_ProductBackward"
    expected = left.double() @ right.double() + bias.double()
    upstream = torch.cos(expected.detach())
    found = torch.autograd.grad(product, (left, right, bias), upstream.float())
    wanted = torch.autograd.grad(expected, (left, right, bias), upstream)
    assert torch.allclose(product.double(), expected, atol=1e-5)
    for each, other in zip(found, wanted, strict=True):
        assert each.shape == other.shape and torch.allclose(each, other, atol=1e-5)


@pytest.mark.cpu
@pytest.mark.parametrize("columns", [3, 30])
def test_left_the_other_way_round(columns):
    """The smaller of the two is turned in memory, and the values are the same."""
    import torch

    left, right = torch.randn(20, 9), torch.randn(20, columns)
    with onednn_matmul_scope(left):
        product = torch.matmul(left.t(), right)
    assert product.is_contiguous() == (columns > 9)
    assert torch.allclose(product.double(), left.double().t() @ right.double(), atol=1e-5)


@pytest.mark.cpu
@pytest.mark.parametrize("chosen", ["oneDNN", "matmul"])
def test_large_products_are_those_of_the_library_that_was_faster(chosen, monkeypatch):
    import torch

    from keras_transformer.kernels import torch_products

    asked = []

    def choose(what, ways):
        asked.append(what)
        outputs = [call() for prepare in ways().values() for call in prepare()]
        assert torch.allclose(*outputs, rtol=1e-4, atol=1e-4)
        return chosen

    monkeypatch.setattr(torch_products, "choose", choose)
    left, right = torch.randn(3, 5, 200), torch.randn(200, 400)
    right.requires_grad_()
    with onednn_matmul_scope(left):
        product = torch.matmul(left, right)
    assert asked == [("float32", 16, "rows", 256, 512, "by rows")]
    assert (type(product.grad_fn).__name__ == "_ProductBackward") == (chosen == "oneDNN")
    assert torch.allclose(product.double(), left.double() @ right.double(), atol=1e-4)
    (found,) = torch.autograd.grad(product.sum(), right)
    assert torch.allclose(found, left.reshape(-1, 200).sum(0)[:, None].expand(200, 400), atol=1e-4)


@pytest.mark.cpu
def test_gradients_have_gradients():
    import torch

    def product(left, right):
        with onednn_matmul_scope(left):
            return torch.matmul(left, right)

    left, right = operands(3, 6)
    (slope,) = torch.autograd.grad(product(left, right).pow(2).sum(), left, create_graph=True)
    (found,) = torch.autograd.grad(slope.sum(), right)
    (slope,) = torch.autograd.grad((left @ right).pow(2).sum(), left, create_graph=True)
    (wanted,) = torch.autograd.grad(slope.sum(), right)
    assert torch.allclose(found, wanted, atol=1e-3)


@pytest.mark.cpu
def test_only_what_it_is_for():
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    def name(left, right):
        with onednn_matmul_scope(left):
            return type(torch.matmul(left, right).grad_fn).__name__

    left, right = operands(5, 6)
    assert name(left, right) == "_ProductBackward"
    assert name(left.double(), right.double()) == "MmBackward0"
    assert name(left[:0], right) == "MmBackward0"
    assert name(left, right[:, 0]) == "MvBackward0"
    with FlopCounterMode(display=False) as counter:
        assert name(left, right) == "MmBackward0"
    assert counter.get_total_flops() == 2 * 5 * 6 * 7
    with torch.autocast("cpu", torch.bfloat16), onednn_matmul_scope(left):
        assert torch.matmul(left, right).dtype == torch.bfloat16
    assert name(left, right) == "_ProductBackward"


@pytest.mark.cpu
def test_bfloat16_without_instructions_for_it(monkeypatch):
    """The product is that of float32, rounded once, and has its gradients."""
    import torch

    from keras_transformer.kernels import torch_products

    monkeypatch.setattr(torch_products, "takes_bfloat16", lambda: False)
    left, right = (x.detach().bfloat16().requires_grad_() for x in operands(3, 5, 6))
    bias = torch.randn(7).bfloat16()
    with onednn_matmul_scope(left):
        plain = torch.matmul(left, right)
        biased = torch.nn.functional.linear(left, right.t(), bias)
    expected = left.float() @ right.float()
    assert torch.equal(plain, expected.bfloat16())
    assert torch.equal(biased, (expected + bias.float()).bfloat16())
    plain.sum().backward()
    assert left.grad.dtype == right.grad.dtype == torch.bfloat16
    assert torch.allclose(left.grad.float(), right.float().sum(1).expand(3, 5, 6), rtol=0.01)


@pytest.mark.cpu
def test_models_use_it():
    """Every product with a weight of a step, forward and backward, and none of the library's."""
    import torch

    config = kt.TransformerConfig(
        kind="seq2seq",
        vocabulary_size=32,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
    )
    lm = kt.Seq2SeqLM(kt.models.Seq2Seq(config))
    rng = np.random.default_rng(0)
    ids = rng.integers(4, 32, (4, 8)).astype("int32")
    inputs = dict.fromkeys(("encoder_token_ids", "decoder_token_ids"), ids)
    lm.compile(keras.optimizers.SGD(0.1), kt.training.TokenCrossEntropy())
    lm.train_on_batch(inputs, ids)  # Keras looks at it first, without numbers.
    with torch.profiler.profile() as profile:
        lm.train_on_batch(inputs, ids)
    calls = {event.key: event.count for event in profile.key_averages()}
    matrices = 3 * 4 + 2 * 2 + 1  # of three attentions, two feed-forward layers, the logits
    assert calls["mkldnn::_linear_pointwise"] == 3 * matrices
    assert calls.get("aten::mm", 0) == calls.get("aten::addmm", 0) == 0


def by_levels(states, kernel, scale):
    """Return the product with an int8 matrix `(in, out)` in float64, with rows in 8 or 7 bits.

    With int8 instructions, as in Keras, rows have 8 bits; otherwise they have 7 bits.
    """
    step = states.double().abs().amax(-1, keepdim=True) / levels()
    rounded = (states / step.float()).round().nan_to_num()
    return rounded.double() @ kernel.double() / scale.double() * step


def levels():
    from keras_transformer.kernels import torch_int8

    return torch_int8.LEVELS if device().is_cpu else 127


def seven_bits():
    """Whether the processor has no instructions for int8, and rows fewer levels than Keras's."""
    return levels() < 127


def largest_error(found, wanted):
    return float((found - wanted).detach().abs().max())


def is_near(found, of_keras):
    """Whether int4 is rounded once more, a little. On a GPU so few inputs are Keras's own."""
    error = largest_error(found, of_keras)
    return (error > 0) == device().is_cpu and error < 0.02 * float(of_keras.detach().abs().max())


@pytest.mark.cpu
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("library", ["_OfOneDNN", "_OfFBGEMM"])
def test_int8_products_are_those_of_keras(use_bias, library, monkeypatch):
    import torch

    from keras_transformer.kernels import torch_int8

    monkeypatch.setattr(torch_int8, "_KIND", getattr(torch_int8, library))
    layer = Dense(7, use_bias=use_bias, bias_initializer="normal", activation="tanh")
    states = operands(2, 3, 16)[0].detach()
    states[0, 1] = 0
    layer.build(states.shape)
    layer.quantize("int8")
    with torch.no_grad():
        found = layer(states)
        wanted = by_levels(states, layer._kernel.value, layer.kernel_scale.value)
        wanted = torch.tanh(wanted if layer.bias is None else wanted + layer.bias.value)
        assert largest_error(found, wanted) < 1e-6
        of_keras = keras.layers.Dense.quantized_call(layer, states)
        assert largest_error(found, of_keras) < (0.03 if seven_bits() else 1e-6)
        # A row gives what it gives alone, however large its neighbours are.
        larger = states.clone()
        larger[1] *= 1000
        assert torch.equal(layer(larger)[0], found[0])
        assert torch.equal(layer(states[:1, :1]), found[:1, :1])


@pytest.mark.cpu
@pytest.mark.parametrize("rows", [1, 5, 200])
def test_libraries_of_int8_agree(rows):
    import torch

    from keras_transformer.kernels import torch_int8

    torch.manual_seed(0)
    weight = torch.randint(-127, 128, (300, 70), dtype=torch.int8)
    scale = torch.rand(300) + 0.5
    # Not halfway between two integers, where they round differently.
    most = torch_int8.LEVELS
    given = torch.randint(-most, most + 1, (rows, 70)) + 0.8 * torch.rand(rows, 70) - 0.4
    given = given.clamp(-most, most)
    kinds = (torch_int8._OfOneDNN, torch_int8._OfFBGEMM)
    found = [torch_int8.multiply(torch_int8.pack(kind, weight, scale), given) for kind in kinds]
    wanted = given.round().double() @ weight.double().t() / scale.double()
    for each in found:
        assert torch.allclose(each.double(), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.cpu
def test_large_int8_matrices_are_packed_for_each_library_once(monkeypatch):
    import torch

    from keras_transformer.kernels import torch_int8

    def choose(what, ways):
        assert next(iter(ways())) == torch_int8._KIND.__name__
        outputs = [call() for prepare in ways().values() for call in prepare()]
        assert torch.equal(*outputs)
        return "_OfFBGEMM" if what[1] == 1 else "_OfOneDNN"

    monkeypatch.setattr(torch_int8, "choose", choose)
    weight, scale = torch.ones(200, 400, dtype=torch.int8), torch.ones(400)
    one, many = (torch_int8.packed_once(rows, weight, scale) for rows in (1, 40))
    assert isinstance(one, torch_int8._OfFBGEMM) and isinstance(many, torch_int8._OfOneDNN)
    assert torch_int8.packed_once(1, weight, scale) is one
    assert torch_int8.packed_once(30, weight, scale) is many
    weight.zero_()
    assert torch_int8.packed_once(1, weight, scale) is not one


def test_int8_products_have_gradients():
    layer = Dense(7)
    states = operands(3, 16)[0]
    layer.build(states.shape)
    weight = layer.kernel.value.detach().clone()
    layer.quantize("int8")
    layer(states).sum().backward()
    assert largest_error(states.grad, weight.sum(1)) < 0.05


@pytest.mark.parametrize("tie_weights", [True, False])
def test_int8_logits_are_those_of_keras(tie_weights):
    import torch

    embedding = TokenEmbedding(11, 16, tie_weights=tie_weights)
    embedding.build()
    embedding.quantize("int8")
    states = operands(2, 3, 16)[0].detach()
    with torch.no_grad():
        found = embedding(states, reverse=True)
        if tie_weights:
            kernel, scale = embedding._embeddings.value.t(), embedding.embeddings_scale.value
        else:
            kernel = embedding.reverse_embeddings.value
            scale = embedding.reverse_embeddings_scale.value
        assert largest_error(found, by_levels(states, kernel, scale)) < 1e-6
        wanted = keras.layers.ReversibleEmbedding.quantized_call(embedding, states, reverse=True)
        assert largest_error(found, wanted) < (0.02 if seven_bits() else 1e-6)


def test_sums_of_int8_products_are_never_cut():
    """The largest numbers there are, whose pairs have no room in 16 bits at 8 bits each."""
    import torch

    layer = Dense(3, use_bias=False)
    layer.build((None, 64))
    layer.quantize("int8")
    layer._kernel.assign(np.full((64, 3), 127, "int8"))
    layer.kernel_scale.assign(np.full(3, 127.0))
    with torch.no_grad():
        for sign in (1.0, -1.0):
            states = ops.full((2, 64), sign)
            assert torch.allclose(layer(states), ops.full((2, 3), 64 * sign))


def test_int8_products_follow_new_numbers():
    import torch

    layer = Dense(7)
    states = operands(3, 16)[0].detach()
    layer.build(states.shape)
    layer.quantize("int8")
    with torch.no_grad():
        before = layer(states)
        layer._kernel.assign(-keras.ops.convert_to_numpy(layer._kernel))
        assert torch.equal(layer(states), -before)
        layer.kernel_scale.assign(layer.kernel_scale * 2)
        assert torch.allclose(layer(states), -before / 2)


@pytest.mark.cpu
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("seen", ["all", "mask", "bias", "none"])
def test_attention_in_bfloat16_is_that_of_float32(heads, seen, monkeypatch):
    import torch

    from keras_transformer.kernels import attention as kernels
    from keras_transformer.kernels.torch_products import takes_bfloat16

    torch.manual_seed(0)
    queries, keys, values = (torch.randn(2, 5, n, 8) for n in (4, heads, heads))
    options = {}
    if seen in ("mask", "none"):
        mask = torch.rand(2, 1, 5, 5) > 0.4
        mask[0, 0, 2] = seen == "mask"
        options = {"mask": mask}
    elif seen == "bias":
        options = {"bias": torch.randn(1, 4, 5, 5)}
    expected = kernels.attention(queries, keys, values, **options)

    def found():
        half = {k: x if k == "mask" else x.bfloat16() for k, x in options.items()}
        given = (x.bfloat16() for x in (queries, keys, values))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            attended = kernels.attention(*given, **half)
        fused = "aten::scaled_dot_product_attention" in {x.key for x in profile.key_averages()}
        assert attended.dtype == torch.bfloat16 and attended.isfinite().all()
        assert torch.allclose(attended.float(), expected, atol=0.03)
        return fused

    # Without instructions for bfloat16 the fused kernel is the quick one.
    assert found() != takes_bfloat16()
    monkeypatch.setattr(kernels, "_MOST_SCORES", 2 * 4 * 5 * 5 - 1)
    assert found()


@pytest.mark.parametrize("block_size", [8, -1])
@pytest.mark.parametrize("traced", [False, True])
def test_int4_products_are_nearly_those_of_keras(block_size, traced):
    """Twice: a matrix that changes is made of int8 anew."""
    import torch

    from keras_transformer.kernels.torch_tracing.traced import TracedFunction

    layer = Dense(7, bias_initializer="normal")
    states = operands(2, 3, 16)[0].detach()
    layer.build(states.shape)
    layer.quantize(config=keras.quantizers.Int4QuantizationConfig(block_size=block_size))
    run = TracedFunction(layer, layer) if traced else layer
    for _ in range(2):
        with torch.inference_mode():
            found = run(run.weights_key(), states) if traced else run(states)
        of_keras = keras.layers.Dense.quantized_call(layer, states)
        assert is_near(found, of_keras)
        layer.kernel_scale.assign(layer.kernel_scale * 0.5)


@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("block_size", [8, -1])
def test_int4_logits_are_nearly_those_of_keras(tie_weights, block_size):
    import torch

    embedding = TokenEmbedding(11, 16, tie_weights=tie_weights)
    embedding.build()
    embedding.quantize(config=keras.quantizers.Int4QuantizationConfig(block_size=block_size))
    states = operands(2, 3, 16)[0].detach()
    with torch.no_grad():
        found = embedding(states, reverse=True)
        of_keras = keras.layers.ReversibleEmbedding.quantized_call(embedding, states, reverse=True)
    assert found.shape == (2, 3, 11)
    assert is_near(found, of_keras)


def test_int4_has_gradients():
    layer = Dense(7)
    states = operands(3, 16)[0]
    layer.build(states.shape)
    layer.quantize("int4")
    layer(states).sum().backward()
    assert float(states.grad.abs().max()) > 0


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch's kernel drops weights")
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_of_attention(causal):
    """With equal weights and values of 1 the kept ones remain, divided by their share."""
    import torch

    from keras_transformer.kernels.attention import attention

    torch.manual_seed(0)
    queries, ones = ops.zeros((4, 64, 2, 8)), ops.ones((4, 64, 2, 8))
    found = attention(queries, queries, ones, is_causal=causal, dropout=0.25)
    assert abs(found.mean() - 1) < 0.02 and found.std() > 0.05
    assert torch.allclose(found, found[..., :1].expand_as(found))  # a weight is dropped whole
    assert torch.allclose(attention(queries, queries, ones, is_causal=causal), ones)
