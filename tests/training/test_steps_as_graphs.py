"""A step of PyTorch as one graph gives what a plain step gives, run as it is and compiled."""

import os
import shutil

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.training import CachedMultipleNegativesRankingLoss, FineTuningAdamW
from tests.tasks.common import ENGLISH, GERMAN, language_model
from tests.tasks.test_text_embedder import embedder
from tests.training.kinds_of_steps import FEW, KINDS, LABELS, texts

pytestmark = pytest.mark.one_backend("torch")

CLASSES = (ENGLISH, LABELS)
NEVER = 10**9
thorough = pytest.mark.thorough
FURTHER = [pytest.param(kind, marks=thorough) for kind in KINDS if kind not in FEW]


@pytest.fixture
def before(monkeypatch):
    """Set how many steps of a shape run before its graph is compiled; none runs plainly."""
    from keras_transformer.kernels.torch_tracing import step

    monkeypatch.setattr(step, "PLAIN_STEPS", dict.fromkeys(step.PLAIN_STEPS, 0))

    def set_it(steps):
        monkeypatch.setattr(step, "STEPS_BEFORE", steps)

    set_it(NEVER)
    return set_it


def losses(make, data, jit_compile, optimizer=None, steps=20, prepare=None, loss=None, **options):
    keras.utils.set_random_seed(3)
    task = make()
    if prepare is not None:
        prepare(task)
    optimizer = FineTuningAdamW(1e-3) if optimizer is None else optimizer()
    task.compile(optimizer, loss or task.loss, jit_compile=jit_compile)
    found = []
    while len(found) < steps:
        options = {"epochs": 1, "batch_size": 4, "verbose": 0, "shuffle": False, **options}
        found += task.fit(*data, **options).history["loss"]
    return np.array(found[:steps]), task


def assert_same(make, data, rtol=1e-4, **options):
    plain, graph = (losses(make, data, jit, **options)[0] for jit in (False, True))
    assert np.ptp(plain) > 1e-3  # it learns
    np.testing.assert_allclose(graph, plain, rtol=rtol)


@pytest.mark.parametrize("kind", [*FEW, *FURTHER])
def test_losses_are_those_of_plain_steps(before, kind):
    make, data, options = KINDS[kind]
    assert_same(make, data, **options)


@pytest.mark.skipif(
    not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))),
    reason="Inductor needs a C++ compiler: apt-get install g++",
)
@pytest.mark.parametrize(
    "kind", ["classifier", *(pytest.param(k, marks=thorough) for k in FEW[1:])]
)
def test_compiled_losses_are_those_of_plain_steps(before, kind, monkeypatch):
    import torch

    compiled, compile = [], torch._inductor.compile
    monkeypatch.setattr(
        torch._inductor, "compile", lambda *args: compiled.append(compile(*args)) or compiled[-1]
    )
    before(1)
    make, data, options = KINDS[kind]
    assert_same(make, data, **options)
    assert compiled  # and has not failed


def seeded(task):
    """Dropout that draws by the places of the elements, the same however it is run."""
    for layer in task._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.seed = 5


def rematerialized():
    with keras.RematScope("full"):
        return texts(dropout=0.2)


def in_bfloat16():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return texts()
    finally:
        keras.config.set_dtype_policy("float32")


def frozen(task):
    task.backbone.trainable = False


@pytest.mark.parametrize(
    ("make", "data", "options"),
    [
        (lambda: texts(dropout=0.2), CLASSES, {"prepare": seeded}),
        (rematerialized, CLASSES, {"prepare": seeded}),
        (in_bfloat16, CLASSES, {"rtol": 2e-2}),
        (texts, CLASSES, {"prepare": lambda task: task.enable_lora(2)}),
        (texts, CLASSES, {"prepare": frozen}),
        (
            language_model,
            (ENGLISH,),
            {
                "optimizer": lambda: FineTuningAdamW(1e-3, gradient_accumulation_steps=2),
                "batch_size": 1,
            },
        ),
        (
            texts,
            CLASSES,
            {
                "optimizer": lambda: FineTuningAdamW(
                    kt.training.LinearDecay(1e-3, 30, 4), global_clipnorm=0.5, layer_decay=0.9
                )
            },
        ),
        (texts, CLASSES, {"optimizer": lambda: keras.optimizers.SGD(0.05, 0.9, use_ema=True)}),
        (texts, CLASSES, {"optimizer": lambda: keras.optimizers.Nadam(1e-3)}),
        (
            embedder,
            ((ENGLISH[:3], GERMAN),),
            {"loss": lambda: CachedMultipleNegativesRankingLoss(mini_batch_size=2)},
        ),
    ],
    ids=[
        "dropout", "rematerialized", "bfloat16", "lora", "frozen", "accumulation", "clipping",
        "sgd", "nadam", "cached",
    ],
)  # fmt: skip
def test_options_of_training(before, make, data, options):
    if "loss" in options:
        options = {**options, "loss": options["loss"]()}
    assert_same(make, data, steps=8, **options)


def test_what_is_drawn_is_drawn_anew_in_each_step(before):
    """By PyTorch's generator: each step of a model that does not learn has another loss."""
    found, _ = losses(
        lambda: texts(dropout=0.3), CLASSES, True, lambda: keras.optimizers.SGD(0.0), steps=6
    )
    assert len(set(found)) == 6


def test_one_graph_for_each_shape_and_phase(before):
    from keras_transformer.kernels.programs import PROGRAMS

    made = PROGRAMS.made
    _, task = losses(
        texts, CLASSES, True, lambda: FineTuningAdamW(1e-3, gradient_accumulation_steps=2),
        steps=4, batch_size=2,
    )  # fmt: skip
    assert PROGRAMS.made - made <= 2 * len({len(task.tokenizer.encode(text)) for text in ENGLISH})


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("make", "padding", "masked"),
    [
        (lambda: language_model(), [[1, 1, 1, 1], [1, 1, 0, 0]], False),
        (lambda: language_model(), [[1, 1, 1, 1], [0, 0, 1, 1]], True),
        (texts, [[1, 1, 1, 1], [1, 1, 1, 1]], False),
        (texts, [[1, 1, 1, 1], [1, 1, 0, 0]], True),
    ],
)
def test_masks_that_hide_nothing_are_left_out(make, padding, masked):
    """Padding behind real tokens in a causal model, and a mask of whole rows: told on the host."""
    from torch.utils import _pytree as pytree

    from keras_transformer.kernels.torch_steps import variables_of
    from keras_transformer.kernels.torch_tracing.step import written_down
    from keras_transformer.kernels.values import Questions

    task, padding = make(), np.array(padding, bool)
    task.compile(FineTuningAdamW(1e-3), task.loss)
    causal = task.backbone.config.kind == "decoder"
    targets = np.ones((2, 4) if causal else (2,), "int32")
    x = {"token_ids": np.ones((2, 4), "int32"), "padding_mask": padding}
    batch = (x, targets, padding.astype("float32") if causal else None)
    task.train_on_batch(*batch)
    arrays, structure = pytree.tree_flatten(batch)
    leaves = [None if a is None else keras.ops.convert_to_tensor(a) for a in arrays]
    variables = variables_of(task, "train")
    given = [*(v.value for v in variables), *(x for x in leaves if x is not None)]
    questions = Questions(arrays)
    graph, _ = written_down(task.train_step, variables, leaves, structure, given, questions)
    calls = [n for n in graph.graph.nodes if "scaled_dot_product" in str(n.target)]
    forward = [n for n in calls if "backward" not in str(n.target)]
    assert forward and all(("attn_mask" in n.kwargs) == masked for n in forward)


def test_evaluate_and_predict(before):
    found = []
    for jit_compile in (False, True):
        _, task = losses(texts, CLASSES, jit_compile, steps=2)
        found.append((task.evaluate(*CLASSES, verbose=0), task.predict(ENGLISH, verbose=0)))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-5)


def test_packed_weights_are_those_behind_the_step(before):
    _, task = losses(texts, CLASSES, True, steps=1)
    task.compile(FineTuningAdamW(1e-2), task.loss, jit_compile=True, pack_weights=True)
    earlier = task.predict(ENGLISH, verbose=0)
    task.fit(*CLASSES, verbose=0, batch_size=4)
    later = task.predict(ENGLISH, verbose=0)
    task.compile(FineTuningAdamW(1e-2), task.loss)
    assert np.abs(later - earlier).max() > 1e-3
    np.testing.assert_allclose(later, task.predict(ENGLISH, verbose=0), atol=1e-4)


def test_a_step_that_looks_at_numbers_stays_plain(before):
    def loss(y, logits):
        return logits.sum() if logits.sum() > 0 else -logits.sum()

    with pytest.warns(UserWarning, match="whatever the numbers in its tensors are"):
        found, _ = losses(texts, CLASSES, True, loss=loss, steps=3)
    np.testing.assert_allclose(found, losses(texts, CLASSES, False, loss=loss, steps=3)[0])


class Doubled(kt.TextClassifier):
    """A step of a user's own, as Keras's guide for PyTorch has it."""

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        self.zero_grad()
        loss = 2 * self.compute_loss(y=y, y_pred=self(x, training=True))
        loss.backward()
        gradients = [variable.value.grad for variable in self.trainable_weights]
        import torch

        with torch.no_grad():
            self.optimizer.apply(gradients, self.trainable_weights)
        self._loss_tracker.update_state(loss)
        return self.get_metrics_result()


def test_a_step_of_a_users_own(before):
    from keras_transformer.kernels.programs import PROGRAMS

    def make():
        task = texts()
        return Doubled(task.backbone, task.tokenizer, num_classes=2)

    made = PROGRAMS.made
    assert_same(make, CLASSES, steps=6)
    assert PROGRAMS.made == made + 1


def test_plain_steps_where_a_graph_is_not_possible(before):
    """`mixed_float16` scales the loss, and looks whether the gradients are finite."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        task = texts()
    finally:
        keras.config.set_dtype_policy("float32")
    task.compile("adam", task.loss, jit_compile=True)
    task.fit(*CLASSES, verbose=0)
    assert isinstance(task.optimizer, keras.optimizers.LossScaleOptimizer) and task.jit_compile


def test_plain_steps_come_first():
    """A fit of a few steps does not pay for writing them down."""
    from keras_transformer.kernels.programs import PROGRAMS

    made = PROGRAMS.made
    plain, graphs = (losses(texts, CLASSES, jit, steps=6) for jit in (False, True))
    np.testing.assert_allclose(graphs[0], plain[0], rtol=1e-4)
    assert PROGRAMS.made == made + 1
    assert graphs[1].train_function is not None


def test_a_cpu_compiles_nothing_by_itself():
    task = texts()
    task.compile("adam", task.loss)
    assert not task.jit_compile


@pytest.mark.parametrize(("rows", "before"), [(2**13, 0), (2**9, 100)])
def test_a_large_step_of_a_gpu_is_compiled_at_once(rows, before):
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from keras_transformer.kernels.torch_tracing import step

    given = [torch.empty(shape, device="meta") for shape in ((rows, 2**13), (2**13, 2**13))]
    graph = make_fx(lambda x, matrix: x @ matrix, tracing_mode="fake")(*given)
    assert step.flops_of(graph) == 2 * rows * 2**26
    assert step._steps_before(graph, given) == before
    on_host = [torch.empty(2, 3), torch.empty(3, 2)]
    assert step._steps_before(make_fx(torch.matmul)(*on_host), on_host) == step.STEPS_BEFORE
