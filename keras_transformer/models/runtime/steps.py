"""Training and evaluation steps that weight a batch by what its loss averages over.

Keras weights a batch by its number of rows. If rows differ in their numbers of tokens, the loss of
an epoch then depends on the batch size, and so do gradients accumulated over several batches.
"""

import contextlib

import keras
from keras import ops

from keras_transformer.models.runtime.accumulation import weighed


class TrainingLoss:
    """Computation of a training or evaluation step: forward pass, loss, and metrics.

    Args:
        model: the `keras.Model` of the step.
    """

    def __init__(self, model: keras.Model):
        self.model = model

    def batch(self, x, y, sample_weight, training: bool) -> tuple:
        """Return the batch that the step computes with: here the given one, unchanged."""
        return x, y, sample_weight

    def states(self, x, sample_weight, training: bool):
        """Run the forward pass, from which loss and metrics are computed."""
        raise NotImplementedError

    def loss(self, states, x, y, sample_weight, training: bool):
        """Compute the loss, a scalar, from the states of the inputs `x`."""
        raise NotImplementedError

    def weight(self, x, y, sample_weight):
        """Return the weight that the loss averages over, a float scalar: here the rows of `x`."""
        rows = ops.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]
        return ops.cast(rows, "float32")

    def apply(self, gradients: list, variables: list, weight) -> None:
        """Give the optimizer the gradients of a loss that is a mean over `weight`."""
        with weighed(self.model.optimizer, weight):
            self.model.optimizer.apply(gradients, variables)

    def logs(self, states, x, y, sample_weight) -> dict:
        """Return the values of all metrics after the step."""
        return self.model.get_metrics_result()


class OutputLoss(TrainingLoss):
    """Keras's loss and metrics, computed from the outputs of `call`."""

    def states(self, x, sample_weight, training):
        options = {"training": training} if self.model._call_has_training_arg else {}
        return self.model(x, **options)

    def loss(self, states, x, y, sample_weight, training):
        return self.model._compute_loss(x, y, states, sample_weight, training=training)

    def weight(self, x, y, sample_weight):
        loss = self.model.loss
        # A loss defined by the user has the meaning that Keras gives it.
        if not _is_of_library(type(self.model), "compute_loss"):
            return super().weight(x, y, sample_weight)
        if hasattr(loss, "total_weight"):
            return loss.total_weight(y, sample_weight)
        of_weights = getattr(loss, "reduction", None) == "mean_with_sample_weight"
        if not of_weights or sample_weight is None or keras.tree.is_nested(sample_weight):
            return super().weight(x, y, sample_weight)
        return ops.sum(ops.cast(sample_weight, "float32"))

    def logs(self, states, x, y, sample_weight):
        return self.model.compute_metrics(x, y, states, sample_weight)


def _is_of_library(kind: type, method: str) -> bool:
    """Return whether a method is defined by this library or Keras, not by a user's subclass."""
    owner = next(base for base in kind.__mro__ if method in vars(base))
    return owner.__module__.partition(".")[0] in ("keras", "keras_transformer")


def compute_step(loss: TrainingLoss, *args, training: bool):
    """Run a step of training or evaluation, with the arguments and results of Keras's steps."""
    step = _step_of_jax if keras.backend.backend() == "jax" else _step_of_variables
    return step(loss, *args, training=training)


def _logs(loss: TrainingLoss, value, weight, states, x, y, weights) -> dict:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Keras divides losses by the number of replicas, so that their sum is the mean.
        value = value * tf.distribute.get_strategy().num_replicas_in_sync
    loss.model._loss_tracker.update_state(value, sample_weight=weight)
    return loss.logs(states, x, y, weights)


def _step_of_jax(loss: TrainingLoss, state, data, training: bool):
    import jax

    model = loss.model
    trainable, others, *optimizer, metrics = state
    groups = [model.non_trainable_variables, model.metrics_variables]

    def scope_of(trainable, others, metrics):
        variables = [*model.trainable_variables, *groups[0], *groups[1]]
        pairs = list(zip(variables, [*trainable, *others, *metrics], strict=True))
        if optimizer:
            pairs += zip(model.optimizer.variables, optimizer[0], strict=True)
        return keras.StatelessScope(state_mapping=pairs, collect_losses=True)

    given = keras.utils.unpack_x_y_sample_weight(data)
    weight = loss.weight(*given)

    def forward(trainable):
        with scope_of(trainable, others, metrics) as scope:
            x, y, weights = loss.batch(*given, training)
            states = loss.states(x, weights, training)
            value = loss.loss(states, x, y, weights, training)
            scaled = model.optimizer.scale_loss(value) if training else value
        new = [[scope.get_current_value(v) for v in group] for group in groups]
        return scaled, (value, states, (x, y, weights), new)

    if training:
        gradients, aux = jax.grad(forward, has_aux=True)(trainable)
        with weighed(model.optimizer, weight):
            trainable, new_optimizer = model.optimizer.stateless_apply(
                optimizer[0], gradients, trainable
            )
    else:
        _, aux = forward(trainable)
        new_optimizer = None
    value, states, batch, (others, metrics) = aux
    with scope_of(trainable, others, metrics) as scope:
        logs = _logs(loss, value, weight, states, *batch)
    metrics = [scope.get_current_value(v) for v in groups[1]]
    if training:
        return logs, (trainable, others, new_optimizer, metrics)
    return logs, (trainable, others, metrics)


def _step_of_variables(loss: TrainingLoss, data, training: bool):
    """Run a step on TensorFlow or PyTorch, where a step changes the variables themselves."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    model, tape = loss.model, contextlib.nullcontext()
    weight = loss.weight(x, y, weights)
    tensorflow = keras.backend.backend() == "tensorflow"
    if tensorflow and training:
        import tensorflow as tf

        tape = tf.GradientTape()
    with tape:
        x, y, weights = loss.batch(x, y, weights, training)
        states = loss.states(x, weights, training)
        value = loss.loss(states, x, y, weights, training)
        scaled = model.optimizer.scale_loss(value) if training else value
    trained = model.trainable_weights[:]
    if training and tensorflow:
        loss.apply(tape.gradient(scaled, trained), trained, weight)
    elif training:
        import torch

        from keras_transformer.kernels.torch_gradients import gradients_of

        gradients = gradients_of(scaled, trained, model)
        with torch.no_grad():
            loss.apply(gradients, trained, weight)
    return _logs(loss, value, weight, states, x, y, weights)
