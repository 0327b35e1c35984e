"""Gradients of a training step on PyTorch."""

import keras
import torch

from keras_transformer.kernels.torch_modes import is_eager


def gradients_of(loss: torch.Tensor, variables: list, model: keras.Model) -> list:
    """Return the gradients of a loss by Keras variables, None where a variable has no gradient.

    They are computed by `backward`, whose hooks let replicas sum them. In a step that is traced
    instead of run, they are computed by the values that the variables have in the trace.
    """
    if is_eager():
        model.zero_grad()
        loss.backward()
        return [variable.value.grad for variable in variables]
    values = [variable.value for variable in variables]
    return list(torch.autograd.grad(loss, values, allow_unused=True))
