"""The gradients of a step on PyTorch."""

import keras
import torch

from keras_transformer.kernels.torch_modes import computes_now


def gradients_of(loss: torch.Tensor, variables: list, model: keras.Model) -> list:
    """Return the gradients of a loss by variables of Keras, None where there is none.

    They are those of `backward`, which replicas add up by hooks of it; or, where a step is
    written down and not run, functions of the values that the variables have there.
    """
    if computes_now():
        model.zero_grad()
        loss.backward()
        return [variable.value.grad for variable in variables]
    values = [variable.value for variable in variables]
    return list(torch.autograd.grad(loss, values, allow_unused=True))
