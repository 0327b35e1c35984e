"""Gradient accumulation that counts updates, and whose step is that of the whole batch.

Keras 3.15 accumulates within the optimizer, but asks a schedule for the rate of the batch and not
of the update, averages weights (`use_ema`) after each batch, and takes the mean of the batches'
gradients, whatever each of them is a mean over. Here an update is what the same optimizer does
without accumulation, for the rows of all its batches at once.
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

    The learning rate of a schedule, the average of the weights and all that depends on
    `iterations` then go by updates. What the optimizer is saved as does not change.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, or what a model has in its place.

    Raises:
        ValueError: within a strategy of `tf.distribute`, whose replicas cannot accumulate.
    """
    for one in _optimizers_of(optimizer):
        if batches_of_update(one) == 1:
            continue
        if getattr(one, "_accumulation", None) is None:
            _refuse_strategy()
            one._accumulation = Accumulation(one)
        # An optimizer around it, which scales the loss, reads and writes its values too.
        for owner in (one, optimizer):
            if "load_own_variables" not in vars(owner):
                _load_older(owner)


def batches_of_update(optimizer: Any) -> int:
    """How many batches an optimizer takes for an update of the weights."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return getattr(inner, "gradient_accumulation_steps", None) or 1


def batches_done(optimizer: Any) -> int:
    """How many batches an optimizer has taken gradients of, those of no update yet included."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return int(ops.convert_to_numpy(inner._iterations))


@contextlib.contextmanager
def weighed(optimizer: Any, weight) -> Iterator[None]:
    """Within, the gradients that `optimizer` is given are a mean over so much.

    Args:
        optimizer: the optimizer of the model.
        weight: float scalar, such as the number of tokens that the loss of the batch counts.
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
    """What an optimizer of Keras does in place of its own accumulation.

    The accumulators of the optimizer hold the mean of the gradients so far, by weight, and one
    more variable the weight so far. With the last batch of an update the mean is applied.

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
        # Behind all others: files of before have the values of these.
        self.weight = self.optimizer.add_variable(
            (), dtype="float32", aggregation="only_first_replica", name=_WEIGHT
        )

    def current_rate(self):
        schedule = self.optimizer._learning_rate
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            return schedule(self.optimizer.iterations)
        return self._current_rate()

    def apply(self, gradients: list, variables: list) -> None:
        """Take the gradients of a batch; if it is the last of an update, change the variables."""
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
            # A mean and no sum: half precision would overflow.
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
        """Whether the batch is the last of an update."""
        optimizer = self.optimizer
        number = values.number_of(optimizer._iterations)
        return (number + 1) % batches_of_update(optimizer) == 0

    def _with_earlier(self, gradients: list, variables: list) -> tuple[list, list]:
        """Gradients of 0 for variables that an earlier batch of the update had gradients of.

        Only PyTorch's differ from batch to batch in which variables they are of.
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
        zeros = [ops.zeros(variable.shape, variable.dtype) for variable in earlier]
        return [*gradients, *zeros], [*variables, *earlier]

    def _update(self, gradients: list, variables: list) -> None:
        """A step of the optimizer, as it is without accumulation."""
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
    """An optimizer without the one around it, which scales the loss; or several of parts."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return list(getattr(inner, "optimizers", None) or [inner])


def _do_either(condition, yes: Callable, no: Callable, variables: list) -> None:
    """Call one of two functions, which change `variables`."""
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
    """Let an optimizer take the values in a file that was written before there was the weight."""
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
