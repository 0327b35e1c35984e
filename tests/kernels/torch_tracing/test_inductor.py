"""PyTorch: graphs that Inductor compiles, beside an optimizer's operations on all weights."""

import os
import shutil

import keras
import numpy as np
import pytest

from keras_transformer.training import FineTuningAdamW
from tests.training.kinds_of_steps import KINDS

pytestmark = [
    pytest.mark.one_backend("torch"),
    pytest.mark.skipif(
        not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))),
        reason="Inductor needs a C++ compiler: apt-get install g++",
    ),
]


def update(weight, gradient, first, second, rate, step):
    """An update, and reads and writes of the same memory before and after it."""
    import torch

    before = (weight * rate).sum()
    gradient = gradient * rate + torch.arange(4.0)
    options = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    torch._fused_adamw_(
        [weight], [gradient], [first], [second], [], [step], lr=rate, amsgrad=False,
        maximize=False, **options,
    )  # fmt: skip
    step.add_(1)  # which the update reads
    seen = weight.view(-1)[2:].sum()  # after the update
    torch._foreach_mul_([first, second], 0.5)
    return [before, gradient.sum(), seen, first.sum(), step * 2]


def test_what_an_optimizer_writes_is_read_after_it():
    import torch

    from keras_transformer.kernels.torch_tracing.inductor import by_inductor
    from keras_transformer.kernels.torch_tracing.recorder import record_operations

    random = torch.Generator().manual_seed(0)
    given = [torch.rand(3, 4, generator=random) for _ in range(4)]
    given += [torch.tensor(0.1), torch.tensor(3.0)]
    with torch.no_grad():
        graph = record_operations(update, given)
        compiled = by_inductor(graph, [x.clone() for x in given])
        assert "submod_0" in compiled.__self__._modules  # it has not failed
        plain, other = ([x.clone() for x in given] for _ in "ab")
        for _ in range(2):
            for found, expected in zip(compiled(*other), update(*plain), strict=True):
                torch.testing.assert_close(found, expected)
        for found, expected in zip(other, plain, strict=True):
            torch.testing.assert_close(found, expected)


def test_inductor_gets_none_of_an_optimizers_lists(monkeypatch):
    """A step has one update for all weights with decay, and one for those without."""
    import torch

    from keras_transformer.kernels.torch_tracing import step

    monkeypatch.setattr(step, "PLAIN_STEPS", dict.fromkeys(step.PLAIN_STEPS, 0))
    monkeypatch.setattr(step, "STEPS_BEFORE", 0)
    operations, whole, compile = [], [], torch._inductor.compile

    def noted(graph, given):
        operations.extend(str(node.target) for node in graph.graph.nodes)
        return compile(graph, given)

    made = step._Graph.__init__
    monkeypatch.setattr(torch._inductor, "compile", noted)
    monkeypatch.setattr(
        step._Graph, "__init__",
        lambda self, graph, *rest: whole.extend(str(n.target) for n in graph.graph.nodes)
        or made(self, graph, *rest),
    )  # fmt: skip
    make, data, _ = KINDS["classifier"]
    keras.utils.set_random_seed(0)
    task = make()
    task.compile(FineTuningAdamW(1e-3), task.loss, jit_compile=True)
    losses = task.fit(*data, epochs=2, batch_size=4, shuffle=False, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    graphs = whole.count("output")
    assert graphs and operations.count("output") == graphs
    updates = [name for name in whole if "_fused_adamw_" in name]
    assert graphs <= len(updates) <= 2 * graphs
    assert any("mm" in name for name in operations)
    assert not any("_fused_adam" in name or "_foreach_" in name for name in operations)
