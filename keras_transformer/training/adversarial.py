"""Adversarial training: the loss at its worst point near the embeddings of a batch."""

from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.kernels.gradients import gradient_of


def adversarial_loss(loss_of_inputs: Callable, task: keras.Model, inputs: dict, norm: float):
    """Compute the loss with the token embeddings moved in the direction that increases it most.

    The L2 norm of a row's step is `norm` times the L2 norm of the embeddings of its real tokens.

    Source: Miyato et al. 2017, "Adversarial Training Methods for Semi-Supervised Text
    Classification", section 3, equations 4 and 5. The paper normalizes the embeddings first; this
    function scales the step instead.
    """
    mask = inputs["padding_mask"]
    real = ops.cast(ops.expand_dims(mask, -1), "float32")
    embedding = task.backbone.token_embedding
    # Only the embeddings need this gradient, so the weights are constants.
    constants = [(v, ops.stop_gradient(v.value)) for v in task.trainable_variables]
    constants += [(v, v.value) for v in task.non_trainable_variables]

    def moved(offset_of: Callable) -> dict:
        x = embedding(inputs["token_ids"])
        return {**inputs, "token_embeddings": x + ops.cast(offset_of(x), x.dtype)}

    def loss_beside(offset):
        with keras.StatelessScope(state_mapping=constants):
            return loss_of_inputs(moved(lambda x: offset))

    nowhere = ops.zeros((*ops.shape(mask), task.backbone.config.embedding_dim), "float32")
    gradient = ops.stop_gradient(gradient_of(loss_beside, nowhere))
    # Normalized in two steps, since the squares of a gradient may underflow float32.
    gradient = ops.divide_no_nan(gradient, ops.max(ops.abs(gradient), axis=(1, 2), keepdims=True))
    direction = ops.divide_no_nan(gradient, _length(gradient))

    def step(x):
        size = norm * _length(ops.stop_gradient(ops.cast(x, "float32")) * real)
        return size * direction

    return loss_of_inputs(moved(step))


def _length(x):
    """Return the L2 norm of each row, float `(batch, 1, 1)`."""
    return ops.sqrt(ops.sum(ops.square(x), axis=(1, 2), keepdims=True))
