"""A step of Adam as one operation.

XLA fuses Adam's dozen sums and products into one loop. Elsewhere Keras calls them one by one, which
takes half the time of a step on a CPU. TensorFlow and PyTorch have the whole step as one operation:
TensorFlow for each variable, PyTorch for all variables, on a CPU and on a GPU.
"""

import keras
from keras import ops

from keras_transformer.kernels.device import on


def takes_one(optimizer: keras.optimizers.Adam, gradient, variable) -> bool:
    """Return True if `update_one` can make the step of a variable: only on TensorFlow."""
    if not on("tensorflow") or optimizer.amsgrad:
        return False
    import tensorflow as tf

    return (
        isinstance(gradient, tf.Tensor)  # not the slices of an embedding
        and gradient.dtype == variable.dtype == tf.float32
        and not tf.distribute.has_strategy()
    )


def update_one(optimizer: keras.optimizers.Adam, gradient, variable, learning_rate):
    """Update a TensorFlow variable and its moments by a step of Adam, without weight decay."""
    import tensorflow as tf

    index = optimizer._get_variable_index(variable)
    step = ops.cast(optimizer.iterations + 1, "float32")
    return tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=optimizer._momentums[index].value.handle,
        v=optimizer._velocities[index].value.handle,
        beta1_power=ops.power(optimizer.beta_1, step),
        beta2_power=ops.power(optimizer.beta_2, step),
        lr=ops.cast(learning_rate, "float32"),
        beta1=optimizer.beta_1,
        beta2=optimizer.beta_2,
        epsilon=optimizer.epsilon,
        grad=gradient,
    )


def takes_decay() -> bool:
    """Return True if weight decay is part of the update: only on PyTorch."""
    return on("torch")


def takes_all(optimizer: keras.optimizers.Adam, tensors: list) -> bool:
    """Return True if `update_all` takes these weights and gradients of PyTorch: in float32."""
    import torch
    from torch._subclasses import FakeTensor

    from keras_transformer.kernels.values import is_eager

    kinds = (torch.Tensor, torch.nn.Parameter)
    if not is_eager():
        from keras_transformer.kernels.torch_tracing.recorder import is_recorded

        if not is_recorded():
            return False
        kinds = (FakeTensor,)
    return not optimizer.amsgrad and all(
        tensor.dtype == torch.float32
        and tensor.device.type in ("cpu", "cuda")
        and type(tensor) in kinds
        for tensor in tensors
    )


def update_all(
    optimizer: keras.optimizers.Adam, gradients: list, variables: list, learning_rate, decayed: list
) -> None:
    """Update PyTorch variables and their moments by a step of Adam.

    Args:
        optimizer: the optimizer with its moments and settings.
        gradients: float32 tensors, one for each variable.
        variables: Keras variables.
        learning_rate: float or scalar tensor. The host does not read a tensor on a GPU.
        decayed: bools, True for variables with weight decay.
    """
    import torch

    from keras_transformer.kernels.values import is_eager

    rows = [
        # Contiguous, since the operation processes all tensors in memory order.
        (v.value, gradient.contiguous(), *_moments(optimizer, v))
        for v, gradient in zip(variables, gradients, strict=True)
    ]
    numbers = _as_floats if _on_host(rows[0][0]) and is_eager() else _as_tensors
    rate, step, epsilon = numbers(optimizer, learning_rate)
    if isinstance(rate, torch.Tensor):
        own = [v for v, decays in zip(variables, decayed, strict=True) if decays]
        decay_all(own, 1 - (optimizer.weight_decay or 0) * learning_rate)
        decayed = [False] * len(rows)
    for decay in set(decayed):
        part = [row for row, own in zip(rows, decayed, strict=True) if own == decay]
        torch._fused_adamw_(
            *map(list, zip(*part, strict=True)),
            [],
            [step] * len(part),
            lr=rate,
            beta1=optimizer.beta_1,
            beta2=optimizer.beta_2,
            weight_decay=optimizer.weight_decay if decay else 0.0,
            eps=epsilon,
            amsgrad=False,
            maximize=False,
        )
    # Packed copies are renewed when the version changes, which the operation itself does not do.
    torch.autograd.graph.increment_version([value for value, *_ in rows])


def _on_host(tensor) -> bool:
    return tensor.device.type == "cpu"


def _as_floats(optimizer: keras.optimizers.Adam, learning_rate) -> tuple:
    """Return rate, step and epsilon of PyTorch's operation, for variables on the host."""
    import torch

    step = float(ops.convert_to_tensor(optimizer.iterations)) + 1.0
    # PyTorch adds epsilon to the bias-corrected root of the second moment, Keras to the uncorrected
    # one.
    epsilon = optimizer.epsilon / (1.0 - optimizer.beta_2**step) ** 0.5
    return float(learning_rate), torch.tensor(step), epsilon


def _as_tensors(optimizer: keras.optimizers.Adam, learning_rate) -> tuple:
    """Return the same as tensors: for a device that the host should not wait for, or a recording.

    The bias corrections are part of the learning rate. The step is so large that the operation
    itself has nothing left to correct.
    """
    import torch

    step = ops.cast(optimizer.iterations, "float32") + 1.0
    corrections = (1.0 - optimizer.beta_2**step) ** 0.5 / (1.0 - optimizer.beta_1**step)
    return learning_rate * corrections, torch.full_like(step, 1e9), optimizer.epsilon


def decay_all(variables: list, factor) -> None:
    """Multiply PyTorch variables by a factor."""
    import torch

    if variables:
        torch._foreach_mul_([variable.value for variable in variables], factor)


def _moments(optimizer: keras.optimizers.Adam, variable) -> tuple:
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index].value, optimizer._velocities[index].value
