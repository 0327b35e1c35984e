"""The linear layer of all blocks, whose products are those that the device computes fastest."""

import keras

from keras_transformer.kernels import products


class Dense(keras.layers.Dense):
    """`keras.layers.Dense`, by the products of `kernels`."""

    def call(self, inputs, training=None):
        return self._activated(products.linear(inputs, self.kernel, self.bias))

    def quantize(self, mode=None, type_check: bool = True, config=None):
        # Keras refuses subclasses, which may compute otherwise. This one computes the same.
        super().quantize(mode, type_check=False, config=config)

    def quantized_call(self, inputs, training=None):
        # Keras calls this one instead of `call` once the layer is quantized.
        if products.takes_int4(self, inputs):
            kernel, scale = products.int4_as_int8(self)
        elif products.takes_int8(self, inputs):
            kernel, scale = self._kernel, self.kernel_scale
        else:
            return super().quantized_call(inputs, training=training)
        return self._activated(products.int8_product(inputs, kernel, scale, self.bias))

    def _activated(self, outputs):
        return outputs if self.activation is None else self.activation(outputs)
