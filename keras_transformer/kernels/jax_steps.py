"""Steps on JAX that read their values from the variables and store all new values at once.

Keras's trainer on JAX takes the values out of the variables, gives them to the compiled step, which
may reuse their memory, and puts the new values back at the end of an epoch, an evaluation or a
prediction. An exception before that leaves a model without weights. Here the variables hold the
values at all times: a step reads them there and writes its changes there.
"""

from collections.abc import Callable

import keras
import numpy as np

from keras_transformer.kernels.device import device
from keras_transformer.kernels.jax_step_programs import step_programs
from keras_transformer.support.signals import defer_signals


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


def atomic_step(model: keras.Model, step: Callable, changed: tuple, groups: tuple) -> "AtomicStep":
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

    integers = any(
        getattr(layer, "quantization_mode", None) is not None for layer in model._flatten_layers()
    )
    programs = step_programs(
        values_and_data, compact=integers, donate_argnums=changed, out_shardings=layout
    )
    return AtomicStep(step, programs, changed)


class VariableGroup:
    """Group of variables. Keras would track the items of a list as the model's own."""

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
    (see `kernels.process`): a step of BERT-base took a gigabyte of new pages.
    """
    import jax

    if not device().is_cpu or keras.distribution.distribution() is not None:
        return data
    place = lambda x: jax.device_put(x) if isinstance(x, np.ndarray) else x  # noqa: E731
    return jax.block_until_ready(jax.tree.map(place, data))


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
