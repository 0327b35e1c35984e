"""A step is whole, or was not begun: signals at any moment, and programs that fail."""

import contextlib
import os
import random
import signal
import threading
import time

import keras
import numpy as np
import pytest

from keras_transformer.kernels.jax_steps import AtomicStep, VariableGroup
from keras_transformer.support.signals import defer_signals
from tests.models.steps import (
    BACKEND,
    LABELS,
    Run,
    X,
    make_task,
)
from tests.thorough import seeds


@pytest.fixture(scope="module")
def made():
    return Run(make_task(), LABELS)


@pytest.fixture
def task_run(made):
    made.begin()
    return made


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
        with pytest.raises(KeyError, match="the first"), defer_signals():
            for number in numbers:
                signal.raise_signal(number)
            with defer_signals():
                signal.raise_signal(signal.SIGUSR2)
            assert not heard
            inside = "reached"
        assert inside == "reached"
        assert heard == [signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR2]
        assert all(signal.getsignal(number) is handler for number in numbers)
        with pytest.raises(KeyError, match="the body"), defer_signals():
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
        step = AtomicStep(None, Program(lambda: signal.raise_signal(signal.SIGINT)), (0,))
        with pytest.raises(KeyboardInterrupt):
            step((VariableGroup([one]), VariableGroup([other])), jnp.ones(2))
        assert np.asarray(one).tolist() == [1, 1, 1] and np.asarray(other).tolist() == [1, 1, 1]

    def test_an_error_of_the_program_says_what_is_lost():
        def fail():
            raise ValueError("out of memory")

        one, other = pair()
        step = AtomicStep(None, Program(fail), (0,))
        with pytest.raises(RuntimeError, match="weights and optimizer are lost") as error:
            step((VariableGroup([one]), VariableGroup([other])), jnp.ones(2))
        assert "out of memory" in str(error.value.__cause__)
        with pytest.raises(RuntimeError, match="deleted"):
            np.asarray(one.value)
        assert np.asarray(other).tolist() == [1, 1, 1]

    def test_a_program_gets_arrays_that_are_there():
        """For NumPy's it waits in a thread whose memory is not kept."""
        seen, program = [], Program(lambda: None)
        run = program.program()
        program.program = lambda *_: lambda *given: seen.append(given[2]) or run(*given)
        one, other = pair()
        step = AtomicStep(None, program, (0,))
        outputs, _ = step(
            (VariableGroup([one]), VariableGroup([other])), np.ones(100_000, "float32")
        )
        assert outputs == 100_000
        assert isinstance(seen[0], jax.Array) and seen[0].is_ready()


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
