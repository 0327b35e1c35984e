"""Training and evaluation steps of a model whose loss is not one of what `call` returns."""

import contextlib

import keras


class TrainingLoss:
    """What a step computes in place of Keras's loss and metrics of the outputs of `call`."""

    def __init__(self, model: keras.Model):
        self.model = model

    def states(self, x, sample_weight, training: bool):
        """The forward pass: what loss and metrics are computed from."""
        raise NotImplementedError

    def loss(self, states, x, y, sample_weight, training: bool):
        """The loss, a scalar, from the states of the inputs `x`."""
        raise NotImplementedError

    def logs(self, states, x, y, sample_weight) -> dict:
        """The values of all metrics after the step."""
        return self.model.get_metrics_result()


def compute_step(loss: TrainingLoss, *args, training: bool):
    """A step of training or evaluation; arguments and results are those of Keras's."""
    step = _step_of_jax if keras.backend.backend() == "jax" else _step_of_variables
    return step(loss, *args, training=training)


def _logs(loss: TrainingLoss, value, states, x, y, weights) -> dict:
    rows = keras.ops.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Keras divides losses by the number of replicas, whose sum then is the mean.
        value = value * tf.distribute.get_strategy().num_replicas_in_sync
    loss.model._loss_tracker.update_state(value, sample_weight=rows)
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

    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)

    def forward(trainable):
        with scope_of(trainable, others, metrics) as scope:
            states = loss.states(x, weights, training)
            value = loss.loss(states, x, y, weights, training)
            scaled = model.optimizer.scale_loss(value) if training else value
        new = [[scope.get_current_value(v) for v in group] for group in groups]
        return scaled, (value, states, new)

    if training:
        gradients, aux = jax.grad(forward, has_aux=True)(trainable)
        trainable, new_optimizer = model.optimizer.stateless_apply(
            optimizer[0], gradients, trainable
        )
    else:
        _, aux = forward(trainable)
        new_optimizer = None
    value, states, (others, metrics) = aux
    with scope_of(trainable, others, metrics) as scope:
        logs = _logs(loss, value, states, x, y, weights)
    metrics = [scope.get_current_value(v) for v in groups[1]]
    if training:
        return logs, (trainable, others, new_optimizer, metrics)
    return logs, (trainable, others, metrics)


def _step_of_variables(loss: TrainingLoss, data, training: bool):
    """On TensorFlow and PyTorch, where a step changes the variables themselves."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    model, tape = loss.model, contextlib.nullcontext()
    tensorflow = keras.backend.backend() == "tensorflow"
    if tensorflow and training:
        import tensorflow as tf

        tape = tf.GradientTape()
    with tape:
        states = loss.states(x, weights, training)
        value = loss.loss(states, x, y, weights, training)
        scaled = model.optimizer.scale_loss(value) if training else value
    trained = model.trainable_weights[:]
    if training and tensorflow:
        model.optimizer.apply_gradients(zip(tape.gradient(scaled, trained), trained, strict=True))
    elif training:
        import torch

        model.zero_grad()
        scaled.backward()
        with torch.no_grad():
            model.optimizer.apply([weight.value.grad for weight in trained], trained)
    return _logs(loss, value, states, x, y, weights)
