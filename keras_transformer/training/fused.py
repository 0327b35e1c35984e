"""Adam's step of a variable in one pass over the memory, on PyTorch and TensorFlow too.

XLA makes one loop of Adam's dozen sums and products. Keras calls them one after the other
elsewhere, on a CPU half of the time of a step; both libraries have the whole step as one operation.
"""

import keras
from keras import ops


class OnePass:
    """Mixin before `keras.optimizers.Adam` or what derives from it; the numbers are Adam's."""

    def update_step(self, gradient, variable, learning_rate):
        # Of TensorFlow and JAX; PyTorch's come all at once, see below.
        if not self._suits_tensorflow(gradient, variable):
            return super().update_step(gradient, variable, learning_rate)
        import tensorflow as tf

        index = self._get_variable_index(variable)
        step = ops.cast(self.iterations + 1, "float32")
        return tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=ops.power(self.beta_1, step),
            beta2_power=ops.power(self.beta_2, step),
            lr=ops.cast(learning_rate, "float32"),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def _suits_tensorflow(self, gradient, variable) -> bool:
        if keras.backend.backend() != "tensorflow" or self.amsgrad:
            return False
        import tensorflow as tf

        return (
            isinstance(gradient, tf.Tensor)  # and no slices of an embedding
            and gradient.dtype == variable.dtype == tf.float32
            and not tf.distribute.has_strategy()
        )

    def _parallel_update_step(self, grads, variables, learning_rate):
        import torch

        values = [variable.value for variable in variables]
        tensors = (*values, *grads)
        if self.amsgrad or any(
            tensor.dtype != torch.float32
            or tensor.device.type != "cpu"
            or type(tensor) not in (torch.Tensor, torch.nn.Parameter)
            for tensor in tensors
        ):
            return super()._parallel_update_step(grads, variables, learning_rate)
        indices = [self._get_variable_index(variable) for variable in variables]
        step = float(ops.convert_to_numpy(self.iterations)) + 1.0
        torch._fused_adam_(
            values,
            # The operation goes through all of them in the order of memory.
            [gradient.contiguous() for gradient in grads],
            [self._momentums[index].value for index in indices],
            [self._velocities[index].value for index in indices],
            [],
            [torch.tensor(step)] * len(values),
            lr=float(learning_rate),
            beta1=self.beta_1,
            beta2=self.beta_2,
            weight_decay=0.0,
            # PyTorch adds it to the corrected root of the second moment, Keras to that as it is.
            eps=self.epsilon / (1.0 - self.beta_2**step) ** 0.5,
            amsgrad=False,
            maximize=False,
        )
        return None
