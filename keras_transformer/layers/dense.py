"""The linear layer of all blocks, with the fastest matrix product for the device."""

import keras

from keras_transformer.kernels import products


class Dense(keras.layers.Dense):
    """`keras.layers.Dense` with the matrix products of `kernels`."""

    def call(self, inputs, training=None):
        return self._activated(products.linear(inputs, self.kernel, self.bias))

    def quantize(self, mode=None, type_check: bool = True, config=None):
        # Keras refuses subclasses, which may compute something else. This one computes the same.
        super().quantize(mode, type_check=False, config=config)

    def quantized_call(self, inputs, training=None):
        # Keras calls this instead of `call` once the layer is quantized.
        if products.takes_int4(self, inputs):
            return self._activated(products.int4_product(self, inputs, self.bias))
        if products.takes_int8(self, inputs):
            outputs = products.int8_product(inputs, self._kernel, self.kernel_scale, self.bias)
            return self._activated(outputs)
        return super().quantized_call(inputs, training=training)

    def _activated(self, outputs):
        return outputs if self.activation is None else self.activation(outputs)
