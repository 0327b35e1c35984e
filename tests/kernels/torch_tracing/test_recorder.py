"""PyTorch: the recorded operations are those of `make_fx`, and give the same numbers."""

import keras
import numpy as np
import pytest

from tests.kernels.torch_tracing.test_traced import tensor

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="PyTorch alone has operations that are recorded"
)


def functions():
    """Functions of three tensors, by what is particular about them."""
    import torch

    weight = torch.nn.Parameter(tensor(8, 4, seed=5))

    def in_place(x, y, z):
        rows = x[:, :2]
        rows.mul_(2.0)
        x.index_copy_(1, torch.tensor([0, 3]), y[:, :2])
        return [x, rows]

    def pieces(x, y, z):
        first, second = torch.split(x, 2, dim=1)
        values, places = torch.topk(y, 2)
        return [first @ second.T, values, places, None]

    def casts(x, y, z):
        same = x.to(torch.float32).to("cpu")
        return [same, x.to(torch.bfloat16).float(), same.to(torch.float32, copy=True)]

    return {
        "weights": lambda x, y, z: [torch.nn.functional.linear(x, weight[:4, :4]), weight],
        "in place": in_place,
        "pieces": pieces,
        "casts": casts,
        "constants": lambda x, y, z: [x + torch.tensor(2.0), torch.tensor([1, 2])],
        "keras": lambda x, y, z: [keras.ops.softmax(keras.ops.matmul(x, keras.ops.transpose(y)))],
        "none": lambda x, y, z: [x if z is None else z],
    }


def by_make_fx(function, given):
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with tracing(TracingContext(FakeTensorMode(allow_non_fake_inputs=True))):
        return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)


@pytest.mark.parametrize(
    "name", ["weights", "in place", "pieces", "casts", "constants", "keras", "none"]
)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_operations_are_those_of_make_fx(name, with_gradients):
    """In inference mode, where operations arrive whole, and where autograd takes them apart."""
    import torch

    from keras_transformer.kernels.torch_tracing.recorder import record_operations

    function = functions()[name]
    mode = torch.no_grad if with_gradients else torch.inference_mode
    with mode():
        given = [tensor(3, 4), tensor(3, 4, seed=1), None]
        expected, found = by_make_fx(function, given), record_operations(function, given)
        found.recompile()
        called = [
            [node.target for node in graph.graph.nodes if node.op == "call_function"]
            for graph in (found, expected)
        ]
        assert called[0] == called[1]
        copies = ([None if x is None else x.clone() for x in given] for _ in range(2))
        results = [
            graph.forward(*each) for graph, each in zip((found, expected), copies, strict=True)
        ]
    for ours, theirs in zip(*results, strict=True):
        if theirs is None:
            assert ours is None
        else:
            np.testing.assert_array_equal(ours.detach().float(), theirs.detach().float())


def test_results_are_known_and_nothing_is_computed():
    import torch
    from torch._subclasses import FakeTensor

    from keras_transformer.kernels.torch_tracing.recorder import record_operations

    x, seen = tensor(3, 4), []

    def function(x):
        seen.append(type(x))
        x.add_(1.0)
        return [x.half().T]

    with torch.inference_mode():
        graph = record_operations(function, [x])
    *_, cast, turned, _ = graph.graph.nodes
    assert seen == [FakeTensor] and bool((x == tensor(3, 4)).all())
    assert cast.meta["val"].dtype == torch.float16
    assert tuple(turned.meta["val"].shape) == (4, 3)
