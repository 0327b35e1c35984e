"""Paths that PyTorch takes on a GPU alone, called with tensors of a CPU: they give the same."""

import itertools

import keras
import numpy as np
import pytest

from keras_transformer.generation import BeamSearch, Engine, Greedy, Settings
from keras_transformer.kernels import attention, rotary
from tests.generation.common import PAD, engine_inputs, make_backbone, make_prompts

pytestmark = pytest.mark.one_backend("torch")


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_are_rotated(interleaved):
    import torch

    for pairs, dtype in itertools.product((3, 4), (torch.float32, torch.bfloat16)):
        x = torch.randn(2, 5, 3, 8).to(dtype)
        angles = torch.randn(2, 5, 1, pairs)
        given = (x, angles.sin(), angles.cos(), interleaved)
        expected, found = rotary.rotate(*given), rotary.by_partners(*given)
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "kind, sampler, options",
    [
        ("decoder", Greedy(), {"position": "rotary", "num_key_value_heads": 2}),
        ("decoder", BeamSearch(3), {"position": "rotary", "num_key_value_heads": 2}),
        ("decoder", BeamSearch(2), {"position": "alibi", "num_key_value_heads": 2}),
        ("decoder", Greedy(), {"position": "alibi", "window": 4}),
        ("seq2seq", BeamSearch(3), {"position": "relative"}),
    ],
)
def test_cached_keys_in_one_kernel(kind, sampler, options, monkeypatch):
    backbone = make_backbone(kind, **options)
    inputs = engine_inputs(backbone, make_prompts([4, 7, 2]))
    settings = Settings(sampler, None, (), PAD)
    expected = Engine(backbone).generate(inputs, settings, 12)
    called, plain = [], attention.cached_attention

    def counted(*given):
        called.append(1)
        return plain(*given)

    monkeypatch.setattr(attention, "takes_cached", lambda queries, keys: True)
    monkeypatch.setattr(attention, "cached_attention", counted)
    found = Engine(backbone).generate(inputs, settings, 12)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    assert called


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["layer_norm", "layer_norm_no_bias", "rms_norm"])
def test_a_normalization_is_one_kernel(kind, dtype):
    """PyTorch's kernels give what Keras's casts and operations do, to the last bit."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from keras_transformer.kernels.torch_tracing.fused import fuse_normalizations
    from keras_transformer.kernels.torch_tracing.simplify import simplified
    from keras_transformer.layers.normalization import make_normalization

    layer = make_normalization(kind, 1e-6, dtype=dtype)
    x = keras.ops.convert_to_tensor(np.random.default_rng(0).normal(size=(2, 3, 16)), dtype)
    layer.build(x.shape)
    for weight in layer.weights:
        weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    with torch.inference_mode():
        graph = simplified(make_fx(lambda x: layer(x), _allow_non_fake_inputs=True)(x))
        expected = graph(x)
        graph = fuse_normalizations(graph, on_gpu=True)
        graph.recompile()
        assert torch.equal(graph(x), expected)
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    assert len(calls) == 2, graph.code  # the norm, and the first of what it gives


def test_no_casts_around_the_rms_norm_of_a_gpu():
    """There PyTorch records its own kernel, in float32, where it records operations on a CPU."""
    import operator

    import torch
    from torch import fx

    from keras_transformer.kernels.torch_tracing.fused import fuse_normalizations

    aten, cast = torch.ops.aten, torch.ops.aten._to_copy.default
    given = [torch.randn(shape, dtype=torch.bfloat16) for shape in ((2, 3, 16), (16,))]
    nodes = fx.Graph()
    x, weight = (nodes.placeholder(name) for name in ("x", "weight"))
    for node, tensor in zip((x, weight), given, strict=True):
        node.meta["val"] = tensor
    in_float = [nodes.call_function(cast, (y,), {"dtype": torch.float32}) for y in (x, weight)]
    options = (in_float[0], [16], in_float[1], 1e-6)
    norm = nodes.call_function(aten._fused_rms_norm.default, options)
    first = nodes.call_function(operator.getitem, (norm, 0))
    nodes.output(nodes.call_function(cast, (first,), {"dtype": torch.bfloat16}))
    graph = fx.GraphModule({}, nodes)
    with torch.inference_mode():
        expected = graph(*given)
        graph = fuse_normalizations(graph, on_gpu=True)
        graph.recompile()
        assert torch.equal(graph(*given), expected)
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    assert len(calls) == 2, graph.code


def test_layers_share_what_they_only_read():
    """The place of a token in the cache is computed once, not for each layer's keys and values."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from keras_transformer.kernels.torch_tracing.simplify import simplified

    def written(place, keys, values, token):
        for cache in (keys, values):
            cache.index_copy_(1, place + torch.zeros(1, dtype=torch.int64), token)
        return keys, values

    tensors = torch.tensor(2), torch.zeros(3, 4), torch.zeros(3, 4), torch.ones(3, 1)
    graph = simplified(make_fx(written)(*tensors))
    graph.recompile()
    names = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert names.count(torch.ops.aten.add.Tensor) == 1
    assert names.count(torch.ops.aten.index_copy_.default) == 2
    for cache in graph(*tensors):
        assert cache[:, 2].eq(1).all() and cache.sum() == 3


def test_equal_constants_of_layers_are_one():
    """The angles of all layers are made once in a step."""
    import torch

    backbone = make_backbone("decoder", num_layers=3, position="rotary")
    engine, settings = Engine(backbone), Settings(Greedy(), None, (), PAD)
    inputs = engine_inputs(backbone, make_prompts([4, 7]))
    batch = engine.prefill(inputs, settings, np.full((2,), 8, "int32"))
    engine.extend(batch, 1)  # which traces
    with torch.profiler.profile() as profile:
        engine.extend(batch, 1)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["aten::sin"] == counts["aten::cos"] == 1


def test_packed_weights_are_kept_beside_fused_norms():
    """A product behind a norm in bfloat16 still finds its packed weight."""
    keras.config.set_dtype_policy("bfloat16")
    backbone = make_backbone("decoder", seed=2)
    inputs = engine_inputs(backbone, make_prompts([4, 7]))
    plain, packed = (
        Engine(backbone).generate(inputs, Settings(Greedy(), None, (), PAD, pack_weights=pack), 8)
        for pack in (False, True)
    )
    assert (plain.tokens == packed.tokens).mean() > 0.8
