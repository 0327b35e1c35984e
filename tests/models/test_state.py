"""Whatever is raised, wherever: weights, optimizer and metrics are those of the last whole step."""

import contextlib
import threading

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.models.steps import (
    BACKEND,
    BATCH,
    LABELS,
    STEPS,
    TARGETS,
    Raise,
    Run,
    X,
    make_backbone,
    make_task,
)

KINDS = (ValueError, KeyboardInterrupt, SystemExit, GeneratorExit)


@pytest.fixture(scope="module")
def runs():
    backbone = make_backbone()
    backbone.compile(keras.optimizers.Adam(0.01), "mse")
    return {"task": Run(make_task(), LABELS), "backbone": Run(backbone, TARGETS)}


@pytest.fixture(params=["task", "backbone"])
def run(runs, request):
    runs[request.param].begin()
    return runs[request.param]


@pytest.fixture
def task_run(runs):
    runs["task"].begin()
    return runs["task"]


# Where, and how many steps are whole then.
FIT = {
    "on_train_begin": 0, "on_epoch_begin": 0, "on_train_batch_begin": 1, "on_train_batch_end": 2,
    "on_test_begin": STEPS, "on_test_batch_begin": STEPS, "on_test_batch_end": STEPS,
    "on_test_end": STEPS, "on_epoch_end": STEPS, "on_train_end": STEPS,
}  # fmt: skip


def test_in_a_callback_of_fit(run):
    for hook, done in FIT.items():
        for kind in KINDS if hook == "on_train_batch_end" else (KeyboardInterrupt,):
            run.begin()
            with pytest.raises(kind, match="on purpose"):
                run.fit(0, callbacks=[Raise(hook, kind)], validation_data=(X, run.y))
            run.assert_whole(done)
        if "batch" in hook:
            run.assert_goes_on(done)
    run.assert_goes_on(done)


def test_in_the_first_step_of_fit(run):
    for done, hook in enumerate(("on_train_batch_begin", "on_train_batch_end")):
        run.begin()
        with pytest.raises(KeyboardInterrupt):
            run.fit(0, callbacks=[Raise(hook, KeyboardInterrupt, batch=0)])
        run.assert_goes_on(done)


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_in_a_callback_of_evaluate_and_predict(run, verb):
    arguments = (X, run.y) if verb == "evaluate" else (X,)
    for moment in ("begin", "batch_begin", "batch_end", "end"):
        hook = f"on_{'test' if verb == 'evaluate' else verb}_{moment}"
        for kind in KINDS if moment == "batch_end" else (KeyboardInterrupt,):
            with pytest.raises(kind, match="on purpose"):
                getattr(run.model, verb)(
                    *arguments, batch_size=BATCH, verbose=0, callbacks=[Raise(hook, kind)]
                )
            run.assert_whole(0)
    run.assert_goes_on(0)


class Broken(keras.utils.PyDataset):
    """Raises when it is asked for a batch."""

    def __init__(self, y, at=None):
        super().__init__()
        self.y, self.at = y, at

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        if index == self.at:
            raise ValueError("on purpose")
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return {name: array[rows] for name, array in X.items()}, self.y[rows]


def generator(y, at=None):
    data = Broken(y, at)
    for index in range(STEPS):
        yield data[index]


@pytest.mark.parametrize("source", [Broken, generator], ids=["dataset", "generator"])
def test_in_the_data(run, source):
    for verb in ("evaluate", "predict", "fit"):
        options = {"shuffle": False} if verb == "fit" else {}
        # On TensorFlow it comes as an error of its own, with this text in it.
        with pytest.raises(Exception, match="on purpose"):
            getattr(run.model, verb)(source(run.y, 2), verbose=0, **options)
        # TensorFlow fetches some batches ahead, so the error may be heard some steps before.
        assert run.done <= (2 if verb == "fit" else 0)
        run.assert_whole(run.done)
    run.assert_goes_on(run.done)


def test_the_end_of_data_of_unknown_length_is_no_step(run):
    run.model.fit(generator(run.y), verbose=0)
    assert run.done == STEPS
    run.assert_goes_on(STEPS)


def test_in_the_thread_that_prepares_batches(task_run):
    made = []

    def make_batch(arrays, masks):
        if threading.current_thread() is not threading.main_thread():
            made.append(len(made))
            if len(made) == 2:
                raise ValueError("on purpose")
        # A dataset serves its last batch second.
        first = [0, 3, 1, 2].index(arrays["row"][0] // BATCH) * BATCH
        rows = slice(first, first + BATCH)
        return {name: array[rows] for name, array in X.items()}, LABELS[rows]

    data = kt.data.BucketedDataset({"ids": X["token_ids"].tolist()}, make_batch, batch_size=BATCH)
    with pytest.raises(Exception, match="on purpose"):
        task_run.fit(0, data, None, batch_size=None)
    assert task_run.done <= 3
    task_run.assert_goes_on(task_run.done)


STEPWISE = ["train_on_batch", "test_on_batch", "predict_on_batch"]


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize(
    ("verb", "eager"), [(v, False) for v in (*STEPWISE, "fit")] + [(v, True) for v in STEPWISE]
)
def test_while_a_step_is_traced(verb, eager, call):
    """By what Python does of a step: when Keras learns the shapes, and when it is compiled."""
    task = make_task(dropout=0.0, run_eagerly=eager)
    layer, calls = task.output_dense, []
    plain = layer.call

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) == call:
            raise KeyboardInterrupt
        return plain(*args, **kwargs)

    layer.call = interrupted
    before = task.get_weights()
    arguments = (X,) if verb == "predict_on_batch" else (X, LABELS)
    options = {"verbose": 0} if verb == "fit" else {}
    with contextlib.suppress(KeyboardInterrupt):
        getattr(task, verb)(*arguments, **options)
        # It did not come to that; or Keras on PyTorch tried another way to learn the shapes.
        assert len(calls) < call or BACKEND == "torch"
        return
    for found, expected in zip(task.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    found = getattr(task, verb)(*arguments, **options)
    if verb.startswith(("train", "fit")):
        assert int(keras.ops.convert_to_numpy(task.optimizer.iterations)) == 1
        assert any((x != y).any() for x, y in zip(task.get_weights(), before, strict=True))
    else:
        assert np.isfinite(keras.tree.flatten(found)[0]).all()


def test_calls_within_fit_that_fail_and_are_caught(run):
    model = run.model

    class Try(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for hook, call in (
                ("on_test_batch_end", lambda **o: model.evaluate(X, run.y, **o)),
                ("on_predict_batch_end", lambda **o: model.predict(X, **o)),
            ):
                with contextlib.suppress(KeyboardInterrupt):
                    call(verbose=0, batch_size=BATCH, callbacks=[Raise(hook, KeyboardInterrupt)])

    run.fit(0, callbacks=[Try()])
    run.assert_goes_on(STEPS)
