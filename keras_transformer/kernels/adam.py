"""A step of Adam as one operation.

XLA makes one loop of Adam's dozen sums and products. Keras calls them one after the other
elsewhere, on a CPU half of the time of a step. TensorFlow and PyTorch have the whole step as one
operation: TensorFlow's of a variable, PyTorch's of all of them, on a CPU and on a GPU.
"""

import keras
from keras import ops

from keras_transformer.kernels.device import on


def takes_one(optimizer: keras.optimizers.Adam, gradient, variable) -> bool:
    """Return whether `update_one` takes a step of a variable: TensorFlow's."""
    if not on("tensorflow") or optimizer.amsgrad:
        return False
    import tensorflow as tf

    return (
        isinstance(gradient, tf.Tensor)  # and no slices of an embedding
        and gradient.dtype == variable.dtype == tf.float32
        and not tf.distribute.has_strategy()
    )


def update_one(optimizer: keras.optimizers.Adam, gradient, variable, learning_rate):
    """Change a variable and its moments by a step of Adam, without weight decay."""
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
    """Return whether weight decay is a part of the update: on PyTorch."""
    return on("torch")


def takes_all(optimizer: keras.optimizers.Adam, tensors: list) -> bool:
    """Return whether `update_all` takes such weights and gradients: PyTorch's, in float32.

    Not where a step is compiled: Inductor makes one kernel of the sums and products themselves.
    """
    import torch

    from keras_transformer.kernels.torch_modes import computes_now

    return (
        not optimizer.amsgrad
        and computes_now()
        and all(
            tensor.dtype == torch.float32
            and tensor.device.type in ("cpu", "cuda")
            and type(tensor) in (torch.Tensor, torch.nn.Parameter)
            for tensor in tensors
        )
    )


def update_all(
    optimizer: keras.optimizers.Adam, gradients: list, variables: list, learning_rate, decayed: list
) -> None:
    """Change variables of PyTorch and their moments by a step of Adam.

    Args:
        optimizer: its moments and numbers.
        gradients: float32 tensors, one for each variable.
        variables: of Keras.
        learning_rate: float or scalar tensor. A tensor of a GPU is not read by the host.
        decayed: bools, which variables have weight decay.
    """
    import torch

    rows = [
        # The operation goes through all of them in the order of memory.
        (v.value, gradient.contiguous(), *_moments(optimizer, v))
        for v, gradient in zip(variables, gradients, strict=True)
    ]
    rate, step, epsilon = (_as_floats if _on_host(rows[0][0]) else _as_tensors)(
        optimizer, learning_rate
    )
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
    # The operation does not count as a change by itself, which packed copies are made anew for.
    torch.autograd.graph.increment_version([value for value, *_ in rows])


def _on_host(tensor) -> bool:
    return tensor.device.type == "cpu"


def _as_floats(optimizer: keras.optimizers.Adam, learning_rate) -> tuple:
    """The rate, the step and the epsilon of PyTorch's operation, where reading them is for free."""
    import torch

    step = float(ops.convert_to_tensor(optimizer.iterations)) + 1.0
    # PyTorch adds it to the corrected root of the second moment, Keras to it as it is.
    epsilon = optimizer.epsilon / (1.0 - optimizer.beta_2**step) ** 0.5
    return float(learning_rate), torch.tensor(step), epsilon


def _as_tensors(optimizer: keras.optimizers.Adam, learning_rate) -> tuple:
    """The same where the host would wait for them: the rate has the corrections of the moments.

    So many steps are given as leave the operation none to make.
    """
    import torch

    step = ops.cast(optimizer.iterations, "float32") + 1.0
    corrections = (1.0 - optimizer.beta_2**step) ** 0.5 / (1.0 - optimizer.beta_1**step)
    return learning_rate * corrections, torch.full_like(step, 1e9), optimizer.epsilon


def decay_all(variables: list, factor) -> None:
    """Multiply variables of PyTorch."""
    import torch

    if variables:
        torch._foreach_mul_([variable.value for variable in variables], factor)


def _moments(optimizer: keras.optimizers.Adam, variable) -> tuple:
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index].value, optimizer._velocities[index].value
