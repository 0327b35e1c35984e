"""The functions that `fit`, `evaluate` and `predict` call for a batch.

A step is done completely or not at all, even if an interrupt or an error ends it at any moment.
"""

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator

import keras

from keras_transformer.kernels import jax_steps, tensorflow_steps
from keras_transformer.kernels.device import on
from keras_transformer.kernels.jax_step_programs import AheadOfTime, compiles_ahead
from keras_transformer.kernels.values import is_on_cpu
from keras_transformer.support.backend import WAITING
from keras_transformer.support.signals import defer_signals

# A step is slow if it takes this many times as long as the fastest step of its size; and the number
# of slow steps before the warning.
_SLOW, _OFTEN = 5, 3


def make_train_function(model: keras.Model, make: Callable, force: bool) -> None:
    """Make the function of `fit`; `make` is Keras's `make_train_function`."""
    if model.train_function is not None and not force:
        return
    if on("jax"):
        # The memory of all values that every step changes is reused for the new ones.
        step = jax_steps.atomic_step(
            model, model.train_step, changed=(0, 2, 3), groups=(0, 1, 2, 3)
        )
        model.train_function = model._make_function(step)
        model.train_function.programs = step.programs
        return
    model.train_function = _step_as_graph(model, "train")
    if model.train_function is None:
        _make_as_keras(model, "train_function", make)
        if on("torch"):
            # The optimizer changes one weight after the other.
            model.train_function = _until_done(model.train_function)


def make_test_function(model: keras.Model, make: Callable, force: bool) -> None:
    """Make the function of `evaluate`; `make` is Keras's `make_test_function`."""
    if model.test_function is not None and not force:
        return
    model.test_function = _step_as_graph(model, "test")
    if model.test_function is None and not on("jax"):
        _make_as_keras(model, "test_function", make)
    elif model.test_function is None:
        step = jax_steps.atomic_step(model, model.test_step, changed=(), groups=(0, 1, 3))
        model.test_function = model._make_function(step)
        model.test_function.programs = step.programs


def make_predict_function(model: keras.Model, make: Callable, force: bool) -> None:
    """Make the function of `predict`; `make` is Keras's `make_predict_function`."""
    if model.predict_function is not None and not force:
        return
    model.predict_function = _step_as_graph(model, "predict")
    if model.predict_function is None and not on("jax"):
        _make_as_keras(model, "predict_function", make)
    elif model.predict_function is None:

        def predict_step(state, data):
            outputs, others = model.predict_step(state, data)
            return outputs, (state[0], others)

        step = jax_steps.atomic_step(model, predict_step, changed=(), groups=(0, 1))
        model.predict_function = model._make_function(step, concatenate_outputs=True)


def batch_function(model: keras.Model) -> Callable:
    """Return a function from a batch to a model's outputs, which may return before they are ready.

    Only on JAX does it return early.
    """
    if on("torch") and model.training:
        model.eval()  # as Keras does in `predict`
    model.make_predict_function()
    function = model.predict_function
    if not on("jax"):
        return lambda batch: function([batch])
    state = model._get_jax_state(trainable_variables=True, non_trainable_variables=True)
    return lambda batch: function(state, iter([batch]))[0]


def computes_batches_apart() -> bool:
    """Return whether `batch_function`, called for each batch, gives what `predict` gives.

    It does not on TensorFlow, where Keras combines batches into one data set, nor with a
    distribution, where Keras shards batches.
    """
    return not on("tensorflow") and keras.distribution.distribution() is None


def atomic_step_function(model: keras.Model, step: Callable) -> Callable:
    """Wrap the step that Keras makes a function from, so that no interrupt leaves it half done."""
    if not on("tensorflow"):
        return step
    return _until_done(step) if model.run_eagerly else tensorflow_steps.behind_its_data(step)


def expect(model: keras.Model, step: str, data, is_batch: bool = False) -> None:
    """Announce the data of a step, such as `"train"`, to the programs of a model."""
    if on("tensorflow") and model.jit_compile:
        tensorflow_steps.reserve(model, f"{step}_function", data, is_batch)
    if not on("jax") or is_batch or not model.compiled or not compiles_ahead():
        return
    getattr(model, f"make_{step}_function")()
    programs = getattr(getattr(model, f"{step}_function"), "programs", None)
    if isinstance(programs, AheadOfTime):
        programs.expect(data)


def runs_at_once(model: keras.Model) -> bool:
    """Return whether a call of a step lasts as long as the step: PyTorch on a CPU, uncompiled."""
    return on("torch") and not model.jit_compile and is_on_cpu(model)


class SlowSteps:
    """Detector of steps that take much longer than others of the same size; it warns once.

    The usual cause is PyTorch on a busy CPU: its threads spin while they wait for each other, if
    OpenMP was loaded before `let_threads_sleep` could configure it.
    """

    def __init__(self):
        self._quickest: dict = {}
        self._count = 0

    def note(self, size, seconds: float) -> None:
        """Record how many seconds a step took. `size` is any key that steps of one size share."""
        quickest = self._quickest[size] = min(seconds, self._quickest.get(size, seconds))
        if seconds < _SLOW * quickest:
            return
        self._count += 1
        if self._count == _OFTEN and not set(WAITING) & set(os.environ):
            logging.getLogger("keras_transformer").warning(
                "Steps of one size take from %.2g to %.2g seconds: other programs use the cores, "
                "and PyTorch's threads spin while they wait. To let them sleep, set "
                "OMP_WAIT_POLICY=PASSIVE in the environment, or `import keras_transformer` before "
                "`import torch`.",
                quickest,
                seconds,
            )


SLOW_STEPS = SlowSteps()


def _make_as_keras(model: keras.Model, name: str, make: Callable) -> None:
    """Make a function by Keras's own method; on TensorFlow one for each size that must be known."""
    rank = getattr(model, "known_sizes_from", None)
    if on("tensorflow") and rank is not None and not model.run_eagerly:
        setattr(model, name, tensorflow_steps.StepsOfSizes(model, name, make, rank))
        return
    with _as_keras_has_it(model):
        make(force=True)


@contextlib.contextmanager
def _as_keras_has_it(model: keras.Model) -> Iterator[None]:
    """Make functions as Keras does, but on PyTorch without compiling.

    `torch.compile` takes minutes for a step of a Keras model.
    """
    compiles, model._jit_compile = model.jit_compile, model.jit_compile and not on("torch")
    try:
        yield
    finally:
        model._jit_compile = compiles


def _step_as_graph(model: keras.Model, verb: str) -> Callable | None:
    """Return the function that runs a step as a PyTorch graph, or None if it is not traced."""
    if not on("torch") or not model.jit_compile or model.run_eagerly:
        return None
    from keras_transformer.kernels.torch_steps import step_as_graph

    return step_as_graph(model, verb)


def _until_done(function: Callable) -> Callable:
    @functools.wraps(function)
    def whole(*args):
        with defer_signals():
            return function(*args)

    return whole
