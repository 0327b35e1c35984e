"""Models that survive an interrupt: a step is done completely or not at all.

Keras's trainer on JAX takes the values out of the variables, gives them to the compiled step, which
may reuse their memory, and puts the new values back at the end of an epoch, an evaluation or a
prediction. An exception before that leaves a model without weights. Here the variables hold the
values at all times: a step reads them there and writes its changes there.
"""

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator

import keras
import numpy as np

from keras_transformer.kernels.device import device, on
from keras_transformer.models.runtime.accumulation import count_updates
from keras_transformer.models.runtime.quantized import mode_of
from keras_transformer.models.runtime.step_programs import step_programs, traced_step

_SIGNALS = sorted(number for number in signal.valid_signals() if number < 32)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Defer Python's signal handlers to the end of this context.

    Within it no handler raises `KeyboardInterrupt` or another exception between two statements.
    Python calls handlers in the main thread only; in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list = []
    handlers = {n: h for n in _SIGNALS if callable(h := signal.getsignal(n))}
    try:
        for number in handlers:
            signal.signal(number, lambda *call: came.append(call))
        yield
    finally:
        _restore(list(handlers.items()), came)


def _restore(handlers: list, came: list) -> None:
    """Restore all handlers, even if one that is already restored raises."""
    try:
        while handlers:
            signal.signal(*handlers[-1])
            handlers.pop()
    finally:
        if handlers:
            _restore(handlers, came)
        elif came:
            number, frame = came.pop(0)
            try:
                signal.getsignal(number)(number, frame)
            finally:
                _restore([], came)


def make_train_function(model: keras.Model, make: Callable, force: bool) -> None:
    """Make the function of `fit`; `make` is Keras's `make_train_function`."""
    if model.train_function is not None and not force:
        return
    if on("jax"):
        # The memory of all values that every step changes is reused for the new ones.
        step = _atomic_step(model, model.train_step, changed=(0, 2, 3), groups=(0, 1, 2, 3))
        model.train_function = model._make_function(step)
        model.train_function.programs = step.programs
        return
    model.train_function = _step_as_graph(model, "train")
    if model.train_function is None:
        with _as_keras_has_it(model):
            make(force=True)
        if on("torch"):
            # The optimizer changes one weight after the other.
            model.train_function = _until_done(model.train_function)


def make_test_function(model: keras.Model, make: Callable, force: bool) -> None:
    """Make the function of `evaluate`; `make` is Keras's `make_test_function`."""
    if model.test_function is not None and not force:
        return
    model.test_function = _step_as_graph(model, "test")
    if model.test_function is None and not on("jax"):
        with _as_keras_has_it(model):
            make(force=True)
    elif model.test_function is None:
        step = _atomic_step(model, model.test_step, changed=(), groups=(0, 1, 3))
        model.test_function = model._make_function(step)
        model.test_function.programs = step.programs


def make_predict_function(model: keras.Model, make: Callable, force: bool) -> None:
    """Make the function of `predict`; `make` is Keras's `make_predict_function`."""
    if model.predict_function is not None and not force:
        return
    model.predict_function = _step_as_graph(model, "predict")
    if model.predict_function is None and not on("jax"):
        with _as_keras_has_it(model):
            make(force=True)
    elif model.predict_function is None:

        def predict_step(state, data):
            outputs, others = model.predict_step(state, data)
            return outputs, (state[0], others)

        step = _atomic_step(model, predict_step, changed=(), groups=(0, 1))
        model.predict_function = model._make_function(step, concatenate_outputs=True)


def batch_function(model: keras.Model) -> Callable:
    """Return a function from a batch to a model's outputs, which may return before they are ready.

    Only on JAX does it return early.
    """
    model.make_predict_function()
    function = model.predict_function
    if not on("jax"):
        return lambda batch: function([batch])
    state = model._get_jax_state(trainable_variables=True, non_trainable_variables=True)
    return lambda batch: function(state, iter([batch]))[0]


def atomic_step_function(model: keras.Model, step: Callable) -> Callable:
    """Wrap the step that Keras makes a function from, so that no interrupt leaves it half done."""
    if not on("tensorflow"):
        return step
    return _until_done(step) if model.run_eagerly else _behind_its_data(step)


def symbolic_build(model: keras.Model, build: Callable, iterator=None, data_batch=None) -> None:
    """Create the variables of optimizer and metrics on TensorFlow before a step is traced.

    A variable that is created during a trace has no value if the trace is stopped. `build` is
    Keras's `_maybe_symbolic_build`.
    """
    strategy = model._distribute_strategy
    if strategy is not None:
        # Keras 3.15 infers shapes from the mean of the replicas' batches, but boolean masks have no
        # mean. The batch of one replica serves as well. Read outside of an epoch, it does not count
        # as a pass over a dataset of few batches.
        if iterator is not None:
            data_batch = keras.tree.map_structure(
                lambda value: strategy.experimental_local_results(value)[0],
                next(iter(iterator._get_iterator())),
            )
        build(None, data_batch)
        return
    if iterator is not None:
        # The shapes are known, so no batch is taken from a generator.
        data_batch = keras.tree.map_structure(
            lambda spec: spec if hasattr(spec, "dtype") else None,  # an Optional, here None
            iterator._distributed_dataset.element_spec,
        )
    model._symbolic_build(data_batch=data_batch)


def state_groups(
    model: keras.Model,
    trainable_variables: bool = False,
    non_trainable_variables: bool = False,
    optimizer_variables: bool = False,
    metrics_variables: bool = False,
    purge_model_variables: bool = False,
) -> tuple["VariableGroup", ...]:
    """Return the state that Keras's loops on JAX carry from step to step: the variables."""
    groups = []
    if trainable_variables:
        groups.append(model.trainable_variables)
    if non_trainable_variables:
        groups.append(model.non_trainable_variables)
    if optimizer_variables:
        groups.append(model.optimizer.variables)
    if metrics_variables:
        groups.append(model.metrics_variables)
    return tuple(map(VariableGroup, groups))


def compiles_by_default(default: bool) -> bool:
    """Return whether `jit_compile="auto"` compiles; `default` is Keras's answer."""
    # By default Keras does not compile on PyTorch.
    return device().kind == "cuda" if on("torch") else default


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
    step = traced_step(model, verb)
    if step is None:
        return None

    def whole(data):
        run = step(data)  # tracing and compiling may take long, and may be interrupted
        with defer_signals():
            return run()

    return whole


def _atomic_step(model: keras.Model, step: Callable, changed: tuple, groups: tuple) -> "AtomicStep":
    """Wrap a `step` of Keras's trainer, compiled if the model is.

    Args:
        model: the model.
        step: function of `(values, data)` that returns outputs and values.
        changed: indices of the groups of values that are always changed.
        groups: indices of the groups it takes: trainable and other variables of the model,
            variables of the optimizer and of metrics.
    """
    if model.run_eagerly or not model.jit_compile:
        return AtomicStep(step, None, ())
    layout = shardings = None
    if keras.distribution.distribution() is not None:
        spec = model._get_state_sharding_spec()
        shardings = [spec[group] for group in groups]
        layout = (None, [s if i in changed else None for i, s in enumerate(shardings)])

    def values_and_data(*arguments):
        *values, data = arguments
        outputs, new = step(tuple(values), data)
        # Values that a step only reads are not returned.
        new = [
            list(group) if i in changed else _replaced(group, values[i], shardings, i)
            for i, group in enumerate(new)
        ]
        return outputs, new

    programs = step_programs(
        values_and_data, mode_of(model) is not None, donate_argnums=changed, out_shardings=layout
    )
    return AtomicStep(step, programs, changed)


class InterruptSafe:
    """A `keras.Model` whose weights, optimizer and metrics always match its last whole step.

    This holds even if an exception is raised within `fit`, `evaluate`, `predict` or one of their
    steps: by a callback, the data, the compiler, or a signal at any moment. Models of this package
    have it from `Runtime`. For a model of your own, put it before `keras.Model`; on TensorFlow such
    a model must be built before `predict`. On TensorFlow an operation that fails within a step
    compiled without XLA may leave the step half done.

    Example:

    ```python
    from keras_transformer.models import InterruptSafe
    import keras
    import numpy as np

    class Model(InterruptSafe, keras.Model):
        pass

    inputs = keras.Input((3,))
    model = Model(inputs, keras.layers.Dense(2)(inputs))

    class Interrupt(keras.callbacks.Callback):
        def on_predict_batch_begin(self, batch, logs=None):
            raise KeyboardInterrupt

    try:
        model.predict(np.ones((4, 3)), verbose=0, callbacks=[Interrupt()])
    except KeyboardInterrupt:
        pass
    assert model.predict(np.ones((4, 3)), verbose=0).shape == (4, 2)
    ```
    """

    def __setattr__(self, name, value):
        # Not in an own `compile`: Keras would not call it for a model loaded from a file.
        if name == "optimizer":
            count_updates(value)
        super().__setattr__(name, value)

    def make_train_function(self, force: bool = False):
        make_train_function(self, super().make_train_function, force)

    def make_test_function(self, force: bool = False):
        make_test_function(self, super().make_test_function, force)

    def make_predict_function(self, force: bool = False):
        make_predict_function(self, super().make_predict_function, force)

    def _resolve_auto_jit_compile(self) -> bool:
        return compiles_by_default(super()._resolve_auto_jit_compile())

    def _make_function(self, step_function, *args, **kwargs):
        return super()._make_function(atomic_step_function(self, step_function), *args, **kwargs)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        symbolic_build(self, super()._maybe_symbolic_build, iterator, data_batch)

    # Keras's loops carry a state from step to step. Here the variables themselves are the state.

    def _get_jax_state(self, **groups) -> tuple["VariableGroup", ...]:
        return state_groups(self, **groups)

    def jax_state_sync(self):
        self._jax_state_synced = True


class VariableGroup:
    """Group of variables. It is no list, since Keras would track its items as the model's own."""

    def __init__(self, variables: list):
        self._variables = variables

    def values(self) -> list:
        # Faster than `.value`, which checks scopes for each of hundreds of variables in a step.
        return [v.value if v._value is None else v._value for v in self._variables]

    def store(self, values: list) -> None:
        """Store values in the variables; None keeps a variable's value."""
        for variable, value in zip(self._variables, values, strict=True):
            if value is not None:
                variable._value = value


class AtomicStep:
    """Step that reads values from variables, and stores all new values in them at once.

    Args:
        step: function of Keras's trainer that maps `(values, data)` to outputs and new values. It
            is called directly if `programs` is None.
        programs: `StepPrograms` that map values and data to outputs and new values, in which None
            marks an unchanged value. None runs `step`.
        donated: indices of the groups of values whose memory the program reuses.
    """

    def __init__(self, step: Callable, programs, donated: tuple[int, ...]):
        self._step = step
        self.programs = programs
        self._donated = donated

    def __call__(self, groups: tuple[VariableGroup, ...], data):
        values = [group.values() for group in groups]
        if self.programs is None:
            outputs, new = self._step(tuple(values), data)
            with defer_signals():
                _store(groups, new)
            return outputs, groups
        data = _arrived(data)
        # Traced and compiled first: that may take long, and may be interrupted.
        program = self.programs.program(*values, data)
        with defer_signals():
            try:
                outputs, new = program(*values, data)
            except BaseException as error:
                self._raise_if_lost(values, error)
                raise
            _store(groups, new)
        return outputs, groups

    def _raise_if_lost(self, values: list, error: BaseException) -> None:
        if any(value.is_deleted() for i in self._donated for value in values[i]):
            raise RuntimeError(
                "The step failed after the memory of the weights had been given to it, and "
                "weights and optimizer are lost. Load the model again, or resume from the last "
                "saved state, for example with `ResumableRun`."
            ) from error


def _arrived(data):
    """Return the data as JAX arrays, on a CPU after their transfer is finished.

    Otherwise a program waits for a large NumPy array in another thread, whose memory is not reused
    (see `support.process`): a step of BERT-base took a gigabyte of new pages.
    """
    import jax

    if not device().is_cpu or keras.distribution.distribution() is not None:
        return data
    place = lambda x: jax.device_put(x) if isinstance(x, np.ndarray) else x  # noqa: E731
    return jax.block_until_ready(jax.tree.map(place, data))


def _until_done(function: Callable) -> Callable:
    @functools.wraps(function)
    def whole(*args):
        with defer_signals():
            return function(*args)

    return whole


def _behind_its_data(step: Callable) -> Callable:
    """Wrap a TensorFlow `step` so that no operation runs before its batch is available.

    Operations that need no data, such as counting the step and drawing random numbers, would else
    run while the batch is fetched, and take effect even if fetching fails or finds no more data.
    """
    import tensorflow as tf

    @functools.wraps(step)
    def whole(data):
        leaves = tf.nest.flatten(data, expand_composites=True)
        with tf.control_dependencies([leaf for leaf in leaves if tf.is_tensor(leaf)]):
            return step(data)

    return whole


def _store(groups: tuple[VariableGroup, ...], new: list) -> None:
    for group, values in zip(groups, new, strict=True):
        group.store(values)


def _replaced(new: list, old: list, shardings: list | None, place: int) -> list:
    """Return the new values, with the layout of the old ones; None marks an unchanged value."""
    import jax

    found = [None if value is before else value for value, before in zip(new, old, strict=True)]
    if shardings is None:
        return found
    return [
        None if value is None else jax.lax.with_sharding_constraint(value, sharding)
        for value, sharding in zip(found, shardings[place], strict=True)
    ]
