"""Whatever is raised, wherever: weights, optimizer and metrics are those of the last whole step."""

import contextlib
import os
import random
import signal
import threading
import time

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.models.state import Group, WholeStep, signals_wait
from tests.thorough import seeds

BACKEND = keras.backend.backend()
KINDS = (ValueError, KeyboardInterrupt, SystemExit, GeneratorExit)
ROWS, BATCH = 8, 2
STEPS = ROWS // BATCH
RNG = np.random.default_rng(0)
X = {"token_ids": RNG.integers(1, 20, (ROWS, 6)), "padding_mask": np.ones((ROWS, 6), bool)}
LABELS = RNG.integers(0, 2, ROWS).astype("int32")
TARGETS = RNG.normal(size=(ROWS, 6, 8)).astype("float32")


class Run:
    """A model, the data that it takes, and its state after each step of an undisturbed run."""

    def __init__(self, model, y):
        self.model, self.y = model, y
        self.model.optimizer.build(self.model.trainable_variables)
        self.first = self.state()
        self.after = [self.first]
        watch = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: self.after.append(self.state())
        )
        self.fit(0, callbacks=[watch])
        self.predictions = self.model.predict(X, batch_size=BATCH, verbose=0)

    def variables(self):
        return [*self.model.variables, *self.model.optimizer.variables]

    def state(self):
        return [np.array(keras.ops.convert_to_numpy(v)) for v in self.variables()]

    def begin(self):
        for variable, value in zip(self.variables(), self.first, strict=True):
            variable.assign(value)

    def fit(self, first, x=None, y=None, **options):
        rows = {name: array[first * BATCH :] for name, array in X.items()} if x is None else x
        y = self.y[first * BATCH :] if x is None else y
        options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, **options}
        return self.model.fit(rows, y, **options)

    def assert_whole(self, done):
        for found, expected in zip(self.state(), self.after[done], strict=True):
            np.testing.assert_array_equal(found, expected)

    def assert_goes_on(self, done):
        """The rest of the epoch gives what an undisturbed run has, and so does `predict`."""
        self.assert_whole(done)
        if done < STEPS:
            self.fit(done)
        for found, expected in zip(self.state(), self.after[-1], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        found = self.model.predict(X, batch_size=BATCH, verbose=0)
        np.testing.assert_allclose(found, self.predictions, rtol=1e-4, atol=1e-5)

    @property
    def done(self):
        return int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))


def make_backbone(dropout=0.0 if BACKEND == "torch" else 0.1):
    # PyTorch's dropout draws from a generator that is no part of the model.
    keras.utils.set_random_seed(1)
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=20, hidden_dim=8, num_layers=1, num_heads=2,
        intermediate_dim=8, dropout=dropout,
    )  # fmt: skip
    return kt.models.Encoder(config)


def make_task(dropout=None, **options):
    backbone = make_backbone() if dropout is None else make_backbone(dropout)
    task = kt.TextClassifier(backbone, num_classes=2)
    task.compile(keras.optimizers.Adam(0.01), task.loss, metrics=["accuracy"], **options)
    return task


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


class Raise(keras.callbacks.Callback):
    """Raises in a hook, when it is called for the second batch, or for another one."""

    def __init__(self, hook, kind, batch=1):
        super().__init__()

        def raise_it(number=None, logs=None):
            if "batch" not in hook or number == batch:
                raise kind("on purpose")

        setattr(self, hook, raise_it)


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment(task_run, number):
    """Sent by another thread while steps run: a step is whole, or was not begun."""

    def stop(*_):
        raise SystemExit("on purpose")

    before = signal.signal(number, stop)
    moments = random.Random(seeds(1)[0])
    try:
        for _ in range(5):
            task_run.begin()
            delay = moments.uniform(0, 0.03)
            sender = threading.Timer(delay, os.kill, (os.getpid(), number))

            class Start(keras.callbacks.Callback):
                def on_train_batch_begin(self, batch, logs=None, sender=sender):
                    if batch == 0:
                        sender.start()

            with contextlib.suppress(SystemExit):
                task_run.fit(0, callbacks=[Start()], epochs=1)
                sender.join()
                time.sleep(0.01)
            sender.join()
            task_run.assert_whole(task_run.done)
    finally:
        signal.signal(number, before)
    task_run.assert_goes_on(task_run.done)


@pytest.mark.backend_independent
def test_signals_wait_and_are_heard_in_their_order():
    heard = []

    def handler(number, frame):
        heard.append(number)
        if number == signal.SIGUSR1:
            raise KeyError("the first")

    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        with pytest.raises(KeyError, match="the first"), signals_wait():
            for number in numbers:
                signal.raise_signal(number)
            with signals_wait():
                signal.raise_signal(signal.SIGUSR2)
            assert not heard
            inside = "reached"
        assert inside == "reached"
        assert heard == [signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR2]
        assert all(signal.getsignal(number) is handler for number in numbers)
        with pytest.raises(KeyError, match="the body"), signals_wait():
            raise KeyError("the body")
        assert all(signal.getsignal(number) is handler for number in numbers)
    finally:
        for number, former in before.items():
            signal.signal(number, former)


if BACKEND == "jax":
    import jax
    import jax.numpy as jnp

    class Program:
        """A compiled step that gives its first argument's memory away, and what is done behind."""

        def __init__(self, then):
            self.then = then
            self.jitted = jax.jit(
                lambda one, other, data: (data.sum(), [[one[0] + 1], [None]]), donate_argnums=0
            )

        def program(self, *arguments):
            def run(*arguments):
                outputs = self.jitted(*arguments)
                self.then()
                return outputs

            return run

    def pair():
        return [keras.Variable(jnp.zeros(3)), keras.Variable(jnp.ones(3))]

    def test_a_signal_behind_the_program_comes_when_its_values_are_kept():
        one, other = pair()
        step = WholeStep(None, Program(lambda: signal.raise_signal(signal.SIGINT)), (0,))
        with pytest.raises(KeyboardInterrupt):
            step((Group([one]), Group([other])), jnp.ones(2))
        assert np.asarray(one).tolist() == [1, 1, 1] and np.asarray(other).tolist() == [1, 1, 1]

    def test_an_error_of_the_program_says_what_is_lost():
        def fail():
            raise ValueError("out of memory")

        one, other = pair()
        step = WholeStep(None, Program(fail), (0,))
        with pytest.raises(RuntimeError, match="weights and optimizer are lost") as error:
            step((Group([one]), Group([other])), jnp.ones(2))
        assert "out of memory" in str(error.value.__cause__)
        with pytest.raises(RuntimeError, match="deleted"):
            np.asarray(one.value)
        assert np.asarray(other).tolist() == [1, 1, 1]


if BACKEND == "tensorflow":
    import tensorflow as tf

    def test_an_operation_that_fails_outside_of_xla_leaves_the_weights():
        """And what gradients change beside them. The step may have counted itself already."""
        fails = tf.Variable(False)

        def loss(labels, logits):
            with tf.control_dependencies([tf.debugging.Assert(~fails, ["asked to"])]):
                return keras.losses.sparse_categorical_crossentropy(labels, logits, True)

        task = make_task()
        task.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], jit_compile=False)
        task.train_on_batch(X, LABELS)
        kept = [*task.trainable_variables, *task.optimizer.variables[2:]]
        before = [np.array(variable) for variable in kept]
        fails.assign(True)
        with pytest.raises(tf.errors.InvalidArgumentError, match="asked to"):
            task.train_on_batch(X, LABELS)
        for variable, value in zip(kept, before, strict=True):
            np.testing.assert_array_equal(np.array(variable), value)
        assert int(task.optimizer.iterations) in (1, 2)
        fails.assign(False)
        assert np.isfinite(task.train_on_batch(X, LABELS)[0])
        assert any((np.array(v) != b).any() for v, b in zip(kept, before, strict=True))
