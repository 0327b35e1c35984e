"""A model's values outlive whatever ends a step: a step is done and kept, or was not begun.

Keras's trainer on JAX takes the values from the variables, gives them to the compiled step, which
may reuse their memory, and puts the new ones back when an epoch, an evaluation or a prediction is
over. Whatever is raised before that leaves a model without weights. Here the variables hold the
values at all times: a step reads them there, and writes there what it changed.
"""

import contextlib
import functools
import signal
import threading
import weakref
from collections.abc import Callable, Iterator

import keras
import numpy as np

from keras_transformer.kernels.device import device, on
from keras_transformer.kernels.programs import PROGRAMS, Compiled
from keras_transformer.models.accumulation import count_updates
from keras_transformer.models.traced_steps import traced_step

_SIGNALS = sorted(number for number in signal.valid_signals() if number < 32)


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Within, Python's handlers of signals are not called; those that came are called at the end.

    So no `KeyboardInterrupt`, or whatever a handler raises, comes between two statements. Python
    calls handlers in the main thread alone: in others nothing is to be done.
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
    """All of them, also when one that is there again already raises."""
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


class KeepsState:
    """A `keras.Model` whose weights, optimizer and metrics are those of its last whole step.

    This holds also when something is raised within `fit`, `evaluate`, `predict` or one of their
    steps: by a callback, by the data, by the compiler, or by a signal at any moment. For a model of
    your own, put it before `keras.Model`; on TensorFlow such a model is to be built before
    `predict`. An operation that fails there within a step compiled without XLA may leave it half
    done.

    Example:

    ```python
    from keras_transformer.models import KeepsState
    import keras
    import numpy as np

    class Model(KeepsState, keras.Model):
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
        # Not in a `compile` of its own: Keras would not call it for a model from a file.
        if name == "optimizer":
            count_updates(value)
        super().__setattr__(name, value)

    def make_train_function(self, force: bool = False):
        if self.train_function is not None and not force:
            return
        if on("jax"):
            # The memory of what every step changes is reused for the new values.
            step = self._whole_step(self.train_step, changed=(0, 2, 3), groups=(0, 1, 2, 3))
            self.train_function = self._make_function(step)
            self.train_function.programs = step.programs
            return
        self.train_function = self._step_as_graph("train")
        if self.train_function is None:
            with self._as_keras_has_it():
                super().make_train_function(force=True)
            if on("torch"):
                # The optimizer changes one weight after the other.
                self.train_function = _until_done(self.train_function)

    def make_test_function(self, force: bool = False):
        if self.test_function is not None and not force:
            return
        self.test_function = self._step_as_graph("test")
        if self.test_function is None and not on("jax"):
            with self._as_keras_has_it():
                super().make_test_function(force=True)
        elif self.test_function is None:
            step = self._whole_step(self.test_step, changed=(), groups=(0, 1, 3))
            self.test_function = self._make_function(step)
            self.test_function.programs = step.programs

    def make_predict_function(self, force: bool = False):
        if self.predict_function is not None and not force:
            return
        self.predict_function = self._step_as_graph("predict")
        if self.predict_function is None and not on("jax"):
            with self._as_keras_has_it():
                super().make_predict_function(force=True)
        elif self.predict_function is None:

            def predict_step(state, data):
                outputs, others = self.predict_step(state, data)
                return outputs, (state[0], others)

            step = self._whole_step(predict_step, changed=(), groups=(0, 1))
            self.predict_function = self._make_function(step, concatenate_outputs=True)

    @contextlib.contextmanager
    def _as_keras_has_it(self) -> Iterator[None]:
        """Within, functions are made as Keras makes them, on PyTorch without compiling.

        `torch.compile` of a step of Keras takes minutes for a model.
        """
        compiles, self._jit_compile = self.jit_compile, self.jit_compile and not on("torch")
        try:
            yield
        finally:
            self._jit_compile = compiles

    def _step_as_graph(self, verb: str) -> Callable | None:
        """The function of a verb whose step is a graph of PyTorch, None where it is none."""
        step = traced_step(self, verb)
        if step is None:
            return None

        def whole(data):
            run = step(data)  # traced and compiled: that may take long, and be interrupted
            with signals_wait():
                return run()

        return whole

    def _resolve_auto_jit_compile(self) -> bool:
        # Keras compiles nothing on PyTorch by itself.
        if on("torch"):
            return device().kind == "cuda"
        return super()._resolve_auto_jit_compile()

    def _make_function(self, step_function, *args, **kwargs):
        if on("tensorflow"):
            whole = _until_done if self.run_eagerly else _behind_its_data
            step_function = whole(step_function)
        return super()._make_function(step_function, *args, **kwargs)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """On TensorFlow, the variables of optimizer and metrics exist before a step is traced.

        What is made while a function is traced has no value if the trace is stopped.
        """
        if self._distribute_strategy is not None:
            super()._maybe_symbolic_build(iterator, data_batch)
            return
        if iterator is not None:
            # The shapes are known, and no batch is taken out of a generator.
            data_batch = keras.tree.map_structure(
                lambda spec: spec if hasattr(spec, "dtype") else None,  # None is an Optional there.
                iterator._distributed_dataset.element_spec,
            )
        self._symbolic_build(data_batch=data_batch)

    def _whole_step(self, step: Callable, changed: tuple, groups: tuple) -> "WholeStep":
        """`step` of Keras's trainer, compiled if the model is.

        Args:
            step: `(values, data)` to outputs and values.
            changed: places of the groups of values that are always changed.
            groups: which of trainable and other variables, those of optimizer and metrics it takes.
        """
        if self.run_eagerly or not self.jit_compile:
            return WholeStep(step, None, ())
        layout = shardings = None
        if keras.distribution.distribution() is not None:
            spec = self._get_state_sharding_spec()
            shardings = [spec[group] for group in groups]
            layout = (None, [s if i in changed else None for i, s in enumerate(shardings)])

        def values_and_data(*arguments):
            *values, data = arguments
            outputs, new = step(tuple(values), data)
            # What a step only reads it does not return.
            new = [
                list(group) if i in changed else _replaced(group, values[i], shardings, i)
                for i, group in enumerate(new)
            ]
            return outputs, new

        programs = self._step_programs(
            values_and_data, donate_argnums=changed, out_shardings=layout
        )
        return WholeStep(step, programs, changed)

    def _step_programs(self, function, **options) -> "StepPrograms":
        """The programs of a step, see `StepPrograms`."""
        return StepPrograms(function, **options)

    # Keras's loops carry a state from step to step. Here it is the variables themselves.

    def _get_jax_state(
        self,
        trainable_variables: bool = False,
        non_trainable_variables: bool = False,
        optimizer_variables: bool = False,
        metrics_variables: bool = False,
        purge_model_variables: bool = False,
    ) -> tuple["Group", ...]:
        groups = []
        if trainable_variables:
            groups.append(self.trainable_variables)
        if non_trainable_variables:
            groups.append(self.non_trainable_variables)
        if optimizer_variables:
            groups.append(self.optimizer.variables)
        if metrics_variables:
            groups.append(self.metrics_variables)
        return tuple(map(Group, groups))

    def jax_state_sync(self):
        self._jax_state_synced = True


class Group:
    """Variables. No list: Keras would take what is in one, kept by a model, for the model's own."""

    def __init__(self, variables: list):
        self._variables = variables

    def values(self) -> list:
        # Without the looks at scopes of `.value`: there are hundreds, in each step.
        return [v.value if v._value is None else v._value for v in self._variables]

    def store(self, values: list) -> None:
        """None leaves a variable as it is."""
        for variable, value in zip(self._variables, values, strict=True):
            if value is not None:
                variable._value = value


class WholeStep:
    """A step that takes its values from variables, and gives them the new ones, all at once.

    Args:
        step: of Keras's trainer, `(values, data)` to outputs and values; it is called as it is if
            there are no `programs`.
        programs: `StepPrograms` of values and data to outputs and values, with None for a value
            that stays. None to run `step`.
        donated: places of the groups of values whose memory the program reuses.
    """

    def __init__(self, step: Callable, programs, donated: tuple[int, ...]):
        self._step = step
        self.programs = programs
        self._donated = donated

    def __call__(self, groups: tuple[Group, ...], data):
        values = [group.values() for group in groups]
        if self.programs is None:
            outputs, new = self._step(tuple(values), data)
            with signals_wait():
                _store(groups, new)
            return outputs, groups
        data = _arrived(data)
        # Traced and compiled before: that may take long, and be interrupted.
        program = self.programs.program(*values, data)
        with signals_wait():
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
                "The step failed when the memory of the weights was given to it already, and "
                "weights and optimizer are lost. Load the model again, or go on from the last "
                "state that was saved, such as that of `ResumableRun`."
            ) from error


def _arrived(data):
    """Data as arrays of JAX that are there, on a CPU.

    For a large NumPy array a program waits in another thread, whose memory is not kept, see
    `process`: a step of BERT-base took a gigabyte of new pages.
    """
    import jax

    if not device().is_cpu or keras.distribution.distribution() is not None:
        return data
    place = lambda x: jax.device_put(x) if isinstance(x, np.ndarray) else x  # noqa: E731
    return jax.block_until_ready(jax.tree.map(place, data))


class StepPrograms:
    """The compiled programs of a step, one for each shape of the data, in `PROGRAMS`.

    Args:
        function: of values and data, what `jax.jit` compiles.
        **options: of `jax.jit`.
    """

    def __init__(self, function: Callable, **options):
        self._function = function
        self._options = options

    def program(self, *arguments) -> Callable:
        """The program for values and data of such shapes, compiled."""

        def make():
            jitted = self._jitted()
            jitted.lower(*arguments).compile()  # The call finds again what is compiled here.
            return Compiled(jitted, compiled=True)

        return PROGRAMS.get(self, signature_of(*arguments), make)

    def _jitted(self):
        """A function of `jax.jit` of its own: dropped with it is all that JAX keeps of it."""
        import jax

        # A program is not to keep the model: then nothing would ever drop it.
        this = weakref.ref(self)
        return jax.jit(lambda *arguments: this()._function(*arguments), **self._options)


def signature_of(*values_and_data) -> tuple:
    """What tells the programs of a step apart.

    The number of values in each group, which changes with `trainable`, and of the data structure,
    shapes and dtypes.
    """
    import jax

    *values, data = values_and_data
    leaves, structure = jax.tree.flatten(data)
    return (
        tuple(map(len, values)),
        structure,
        tuple((np.shape(x), str(getattr(x, "dtype", type(x)))) for x in leaves),
    )


def _until_done(function: Callable) -> Callable:
    @functools.wraps(function)
    def whole(*args):
        with signals_wait():
            return function(*args)

    return whole


def _behind_its_data(step: Callable) -> Callable:
    """`step` of TensorFlow, no operation of which runs before its batch is there.

    What needs no data, such as to count the step and to draw random numbers, would else run beside
    the fetching of the batch, and be done when that fails or finds no more.
    """
    import tensorflow as tf

    @functools.wraps(step)
    def whole(data):
        leaves = tf.nest.flatten(data, expand_composites=True)
        with tf.control_dependencies([leaf for leaf in leaves if tf.is_tensor(leaf)]):
            return step(data)

    return whole


def _store(groups: tuple[Group, ...], new: list) -> None:
    for group, values in zip(groups, new, strict=True):
        group.store(values)


def _replaced(new: list, old: list, shardings: list | None, place: int) -> list:
    """The new values, None for those that are the old ones; laid out as those are."""
    import jax

    found = [None if value is before else value for value, before in zip(new, old, strict=True)]
    if shardings is None:
        return found
    return [
        None if value is None else jax.lax.with_sharding_constraint(value, sharding)
        for value, sharding in zip(found, shardings[place], strict=True)
    ]
