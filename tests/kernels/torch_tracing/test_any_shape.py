"""A pass as one list of operations for batches of all sizes."""

import numpy as np
import pytest

from keras_transformer.kernels.programs import PROGRAMS
from tests.tasks.common import ENGLISH, classifier
from tests.tasks.test_text_embedder import embedder

pytestmark = pytest.mark.one_backend("torch")


def batch(rows, length, whole=False, seed=0):
    rng = np.random.default_rng(seed)
    mask = np.arange(length) < rng.integers(1, length + 1, (rows, 1))
    mask[0, -1] = whole
    ids = rng.integers(5, 20, (rows, length)).astype("int32")
    return {"token_ids": ids, "padding_mask": mask | whole}


def test_one_list_for_all_sizes():
    from keras_transformer.kernels.torch_tracing.any_shape import PLAIN_BATCHES, AnyShape

    task = embedder()
    passes = AnyShape(lambda x: task(x, training=False), task)
    sizes = [(2, 8)] * PLAIN_BATCHES + [(16, 16), (5, 12), (3, 31), (64, 64)]
    for place, size in enumerate(sizes):
        x = batch(*size)
        found = passes.ready(x)().numpy()
        np.testing.assert_allclose(found, task(x).detach().numpy(), atol=1e-6)
        assert len(PROGRAMS.keys(passes)) == int(place >= PLAIN_BATCHES)


def test_what_depends_on_a_size_is_another_list():
    import torch

    from keras_transformer.kernels.torch_tracing.any_shape import PLAIN_BATCHES, AnyShape

    passes = AnyShape(lambda x: x.sum(1) if x.shape[1] > 10 else x.amax(1))
    for length in [5] * (PLAIN_BATCHES + 1) + [12, 7, 30]:
        x = torch.arange(3 * length).reshape(3, length) * 1.0
        assert passes.ready(x)().equal(x.sum(1) if length > 10 else x.amax(1))
    assert len(PROGRAMS.keys(passes)) == 2


def test_what_depends_on_numbers_runs_plainly():
    import torch

    from keras_transformer.kernels.torch_tracing.any_shape import PLAIN_BATCHES, AnyShape

    passes = AnyShape(lambda x: x + 1 if float(x.sum()) > 0 else x - 1)
    for _ in range(PLAIN_BATCHES):
        passes.ready(torch.ones(2, 3))()
    with pytest.warns(UserWarning, match="depends on the numbers in its tensors"):
        assert passes.ready(-torch.ones(2, 3))().equal(-2 * torch.ones(2, 3))
    assert passes.ready(torch.ones(2, 3))().equal(2 * torch.ones(2, 3))


def test_a_list_that_does_not_run_is_not_taken(monkeypatch):
    import torch

    from keras_transformer.kernels.torch_tracing import any_shape

    def broken(graph):
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
            node.target = torch.ops.aten.linear.default  # of tensors alone
        return graph

    monkeypatch.setattr(any_shape, "use_fast_calls", broken)
    passes = any_shape.AnyShape(lambda x: x + 1)
    for _ in range(any_shape.PLAIN_BATCHES):
        passes.ready(torch.ones(2, 3))()
    with pytest.warns(UserWarning, match="cannot be traced as one list"):
        assert passes.ready(torch.ones(2, 3))().equal(2 * torch.ones(2, 3))
    assert passes.ready(torch.ones(2, 3))().equal(2 * torch.ones(2, 3))


def test_predict_of_a_compiled_model_sees_new_weights():
    task = classifier(num_classes=2)
    task.compile("adam", task.loss, jit_compile=True)
    given = ENGLISH * 3
    wanted = classifier(num_classes=2)
    wanted.set_weights(task.get_weights())
    for change in (0.0, 0.5):
        for each in (task, wanted):
            each.set_weights([w + change for w in each.get_weights()])
        for size in (2, 3):
            np.testing.assert_allclose(
                task.predict(given, batch_size=size, verbose=0),
                wanted.predict(given, batch_size=size, verbose=0),
                atol=1e-4,
            )
