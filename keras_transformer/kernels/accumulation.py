"""Gradient accumulation in which each update equals one step on all its batches together.

Keras 3.15 accumulates within the optimizer, but it evaluates a learning rate schedule at the number
of batches instead of updates, averages weights (`use_ema`) after each batch, and takes the mean of
the batches' gradients regardless of their weights. Here an update equals a step of the same
optimizer, without accumulation, on the rows of all its batches at once.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from keras_transformer.kernels import values
from keras_transformer.kernels.device import on

_WEIGHT = "accumulated_weight"


def count_updates(optimizer: Any) -> None:
    """Make an optimizer with `gradient_accumulation_steps` count updates; leave others alone.

    The schedule of the learning rate, the average of the weights and everything else that depends
    on `iterations` then go by updates. The saved form of the optimizer does not change.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, or an object that a model uses in its place.

    Raises:
        ValueError: if called within a `tf.distribute` strategy, whose replicas cannot accumulate.
    """
    for one in _optimizers_of(optimizer):
        if batches_of_update(one) == 1:
            continue
        if getattr(one, "_accumulation", None) is None:
            _refuse_strategy()
            one._accumulation = Accumulation(one)
        # An outer optimizer, which scales the loss, reads and writes this one's values too.
        for owner in (one, optimizer):
            if "load_own_variables" not in vars(owner):
                _load_older(owner)


def batches_of_update(optimizer: Any) -> int:
    """Count the batches that an optimizer takes for an update of the weights."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return getattr(inner, "gradient_accumulation_steps", None) or 1


def batches_done(optimizer: Any) -> int:
    """Count the batches whose gradients an optimizer has taken, an unfinished update included."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return int(ops.convert_to_numpy(inner._iterations))


@contextlib.contextmanager
def weighed(optimizer: Any, weight) -> Iterator[None]:
    """Tell `optimizer` the weight over which the gradients within this context are a mean.

    Args:
        optimizer: the optimizer of the model.
        weight: float scalar, such as the number of tokens that count in the loss of the batch.
    """
    found = [getattr(one, "_accumulation", None) for one in _optimizers_of(optimizer)]
    accumulations = [accumulation for accumulation in found if accumulation is not None]
    for accumulation in accumulations:
        accumulation.batch_weight = weight
    try:
        yield
    finally:
        for accumulation in accumulations:
            accumulation.batch_weight = 1.0


class Accumulation:
    """Replacement of the gradient accumulation of a Keras optimizer.

    The accumulators of the optimizer hold the weighted mean of the gradients so far, and one more
    variable holds the weight so far. With the last batch of an update the mean is applied.

    Args:
        optimizer: an optimizer with `gradient_accumulation_steps`, whose methods are replaced.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer):
        self.optimizer = optimizer
        self.batch_weight: Any = 1.0
        self.weight: keras.Variable | None = None
        self._build = optimizer.build
        self._current_rate = optimizer._get_current_learning_rate
        optimizer.build = self.build
        optimizer._get_current_learning_rate = self.current_rate
        optimizer._backend_apply_gradients = self.apply
        if optimizer.built:
            self._add_weight()

    def build(self, variables: list) -> None:
        if not self.optimizer.built:
            self._build(variables)
            self._add_weight()

    def _add_weight(self) -> None:
        # Added last: older files have the values of all other variables.
        self.weight = self.optimizer.add_variable(
            (), dtype="float32", aggregation="only_first_replica", name=_WEIGHT
        )

    def current_rate(self):
        schedule = self.optimizer._learning_rate
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            return schedule(self.optimizer.iterations)
        return self._current_rate()

    def apply(self, gradients: list, variables: list) -> None:
        """Take the gradients of a batch; after the last batch of an update, change variables."""
        optimizer = self.optimizer
        gradients, variables = self._with_earlier(gradients, variables)
        accumulators = [
            optimizer._accumulated_gradients[optimizer._get_variable_index(variable)]
            for variable in variables
        ]
        batch = ops.cast(self.batch_weight, "float32")
        total = self.weight + batch
        share = ops.divide_no_nan(batch, total)
        means = [
            # The mean, since in half precision the sum would overflow.
            old + (ops.convert_to_tensor(new) - old) * ops.cast(share, old.dtype)
            for new, old in zip(gradients, accumulators, strict=True)
        ]

        def accumulate():
            for accumulator, mean in zip(accumulators, means, strict=True):
                accumulator.assign(mean)
            self.weight.assign(total)

        def update():
            self._update(means, variables)
            optimizer._backend_reset_gradient_accumulators()
            self.weight.assign(ops.zeros((), "float32"))

        changed = [*optimizer.variables, *optimizer._trainable_variables]
        _do_either(self._is_last(), update, accumulate, changed)

    def _is_last(self):
        """Return whether the batch is the last of an update."""
        optimizer = self.optimizer
        number = values.number_of(optimizer._iterations)
        return (number + 1) % batches_of_update(optimizer) == 0

    def _with_earlier(self, gradients: list, variables: list) -> tuple[list, list]:
        """Add zero gradients for variables that only earlier batches of the update affected.

        Only on PyTorch does the set of variables with gradients differ from batch to batch.
        """
        if not on("torch"):
            return gradients, variables
        optimizer = self.optimizer
        present = {optimizer._get_variable_index(variable) for variable in variables}
        earlier = [
            variable
            for place, variable in enumerate(optimizer._trainable_variables)
            if place not in present and optimizer._accumulated_gradients[place].value.any()
        ]
        zeros = [ops.zeros_like(variable.value) for variable in earlier]
        return [*gradients, *zeros], [*variables, *earlier]

    def _update(self, gradients: list, variables: list) -> None:
        """Make a step of the optimizer, as without accumulation."""
        optimizer = self.optimizer
        gradients = optimizer._clip_gradients(gradients)
        optimizer._apply_weight_decay(variables)
        optimizer._backend_update_step(gradients, variables, optimizer.learning_rate)
        if not optimizer.use_ema:
            return
        averaged = optimizer._trainable_variables
        optimizer._update_model_variables_moving_average(averaged)
        if optimizer.ema_overwrite_frequency:
            is_due = (optimizer.iterations + 1) % optimizer.ema_overwrite_frequency == 0
            averages = optimizer._model_variables_moving_average
            for variable, average in zip(averaged, averages, strict=True):
                if average is not None:
                    variable.assign(ops.where(is_due, average.value, variable.value))


def _optimizers_of(optimizer: Any) -> list:
    """Return the parts of a combined optimizer, or the inner one of a `LossScaleOptimizer`."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return list(getattr(inner, "optimizers", None) or [inner])


def _do_either(condition, yes: Callable, no: Callable, variables: list) -> None:
    """Call one of two functions that change `variables`."""
    if isinstance(condition, bool):
        (yes if condition else no)()
        return
    if not on("jax"):
        ops.cond(condition, yes, no)
        return
    import jax

    def values_behind(function):
        mapping = [(variable, variable.value) for variable in variables]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            function()
        return [scope.get_current_value(variable) for variable in variables]

    values = jax.lax.cond(condition, lambda: values_behind(yes), lambda: values_behind(no))
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _load_older(optimizer: Any) -> None:
    """Let an optimizer load files written before the weight was added."""
    load = optimizer.load_own_variables

    def load_own_variables(store) -> None:
        *before, last = optimizer.variables
        if last.name != _WEIGHT or len(store.keys()) != len(before):
            load(store)
            return
        for place, variable in enumerate(before):
            variable.assign(store[str(place)])

    optimizer.load_own_variables = load_own_variables


def _refuse_strategy() -> None:
    if not on("tensorflow"):
        return
    import tensorflow as tf

    if tf.distribute.has_strategy():
        raise ValueError(
            "An optimizer with `gradient_accumulation_steps` cannot be used within a strategy of "
            "tf.distribute: its replicas would update their weights within a condition. Leave the "
            "option out, and give each replica more rows or a lower learning rate."
        )
