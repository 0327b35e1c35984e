"""Steps of training and evaluation: the loss, its gradients, and the change of the weights."""

import contextlib

import keras

from keras_transformer.kernels.accumulation import weighed
from keras_transformer.kernels.device import on


def compute_step(loss, *args, training: bool):
    """Run a step of training or evaluation, with the arguments and results of Keras's steps.

    `loss` is a `training.TrainingLoss`.
    """
    step = _step_of_jax if on("jax") else _step_of_variables
    return step(loss, *args, training=training)


def _logs(loss, value, weight, states, x, y, weights) -> dict:
    if on("tensorflow"):
        import tensorflow as tf

        # Keras divides losses by the number of replicas, so that their sum is the mean.
        value = value * tf.distribute.get_strategy().num_replicas_in_sync
    loss.model._loss_tracker.update_state(value, sample_weight=weight)
    return loss.logs(states, x, y, weights)


def _step_of_jax(loss, state, data, training: bool):
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
        with weight_of_batch(model.optimizer, weight):
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


def weight_of_batch(optimizer, weight) -> contextlib.AbstractContextManager:
    """Tell an optimizer that accumulates gradients over what the loss of a batch is a mean."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if getattr(inner, "_accumulation", None) is None:
        return contextlib.nullcontext()
    return weighed(optimizer, weight)


def _step_of_variables(loss, data, training: bool):
    """Run a step on TensorFlow or PyTorch, where a step changes the variables themselves."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    model, tape = loss.model, contextlib.nullcontext()
    weight = loss.weight(x, y, weights)
    if training and on("tensorflow"):
        import tensorflow as tf

        tape = tf.GradientTape()
    with tape:
        x, y, weights = loss.batch(x, y, weights, training)
        states = loss.states(x, weights, training)
        with model.kept_losses() if on("tensorflow") else contextlib.nullcontext():
            value = loss.loss(states, x, y, weights, training)
        scaled = model.optimizer.scale_loss(value) if training else value
    trained = model.trainable_weights[:]
    if training and on("tensorflow"):
        loss.apply(tape.gradient(scaled, trained), trained, weight)
    elif training:
        import torch

        gradients = _gradients_on_torch(scaled, trained, model)
        with torch.no_grad():
            loss.apply(gradients, trained, weight)
    return _logs(loss, value, weight, states, x, y, weights)


def _gradients_on_torch(loss, variables: list, model: keras.Model) -> list:
    """Return the gradients of a loss by Keras variables, None where a variable has no gradient.

    They are computed by `backward`, whose hooks let replicas sum them. In a step that is traced
    instead of run, they are computed by the values that the variables have in the trace.
    """
    import torch

    from keras_transformer.kernels.values import is_eager

    if is_eager():
        model.zero_grad()
        loss.backward()
        return [variable.value.grad for variable in variables]
    values = [variable.value for variable in variables]
    return list(torch.autograd.grad(loss, values, allow_unused=True))
