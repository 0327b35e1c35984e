"""Products of matrices, and attention, by the library that is fastest.

PyTorch on a CPU takes products with a matrix by oneDNN, forward and backward, all of them where
there is AVX-512, and else those of few rows.

The library that `torch.matmul` calls for float32 was made by Intel and takes AVX-512 on Intel's own
processors alone; of others oneDNN, which PyTorch carries too, makes twice as much.
"""

import contextlib
import functools
from collections.abc import Callable

import keras

from keras_transformer.layers import xla_attention


def quick_products(x) -> contextlib.AbstractContextManager:
    """The scope of products of `x` with weights: what is quickest on PyTorch and a CPU.

    Not where operations are looked at in place of run (traced, exported, counted), and not within
    autocast: there `torch.matmul` is what is expected.
    """
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    from keras_transformer.layers.torch_products import QuickProducts, needs_float32, suits_matrix

    return QuickProducts() if suits_matrix(x) or needs_float32(x) else contextlib.nullcontext()


def by_rows(product: Callable, inputs):
    """A product of states with a matrix, on JAX of all their rows in one axis.

    The gradient of the matrix is then one product of two matrices. For states of more axes XLA
    transposes them on a CPU, and computes there what it transposes: in a stack that normalizes
    first that is the sum of all residuals, once more for each layer. A training step of ViT-B/16
    took 1.5 times as long.
    """
    shape = inputs.shape
    if keras.backend.backend() != "jax" or len(shape) < 3 or None in shape[:-1]:
        return product(inputs)
    outputs = product(keras.ops.reshape(inputs, (-1, shape[-1])))
    return keras.ops.reshape(outputs, (*shape[:-1], outputs.shape[-1]))


class Dense(keras.layers.Dense):
    """Keras's, by rows. On PyTorch the product adds the bias: no tensor more for the sum."""

    def call(self, inputs, training=None):
        if takes_bfloat16(inputs, self.kernel):
            outputs = bfloat16_product(inputs, self.kernel)
            outputs = outputs if self.bias is None else keras.ops.add(outputs, self.bias)
            return outputs if self.activation is None else self.activation(outputs)
        if keras.backend.backend() != "torch" or self.bias is None:
            return by_rows(super().call, inputs)
        from torch.nn.functional import linear

        kernel, bias = map(keras.ops.convert_to_tensor, (self.kernel, self.bias))
        if inputs.dtype != kernel.dtype:
            return super().call(inputs)
        outputs = linear(inputs, kernel.t(), bias)
        return outputs if self.activation is None else self.activation(outputs)

    def quantize(self, mode=None, type_check: bool = True, config=None):
        # Keras refuses subclasses, which may compute otherwise. This one computes the same.
        super().quantize(mode, type_check=False, config=config)

    def quantized_call(self, inputs, training=None):
        # Keras calls this one instead of `call` once the layer is quantized.
        if takes_int4(self, inputs):
            from keras_transformer.layers import torch_int4

            outputs = int8_product(inputs, *torch_int4.of_dense(self), self.bias)
        elif takes_int8(self, inputs):
            outputs = int8_product(inputs, self._kernel, self.kernel_scale, self.bias)
        else:
            return super().quantized_call(inputs, training=training)
        return outputs if self.activation is None else self.activation(outputs)


def takes_bfloat16(inputs, kernel) -> bool:
    """Whether `bfloat16_product` computes what `keras.ops.matmul` does, and faster."""
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (inputs, kernel)}
    return dtypes == {"bfloat16"} and keras.backend.backend() == "jax" and on_cpu()


def bfloat16_product(inputs, kernel, axis: int = 0):
    """Bfloat16 `(..., in)` by a matrix whose `axis` is the inputs, on JAX and a CPU."""
    from keras_transformer.layers import jax_products

    return jax_products.product(inputs, keras.ops.convert_to_tensor(kernel), axis)


def takes_int8(layer: keras.layers.Layer, inputs) -> bool:
    """Whether `int8_product` computes what a quantized layer of Keras does, of these inputs.

    It is for a CPU: for PyTorch without gradients, where Keras's own product has those of the
    inputs, and for JAX.
    """
    if layer.quantization_mode != "int8" or layer.inputs_quantizer is None or layer.lora_enabled:
        return False
    if keras.backend.backend() == "jax":
        return on_cpu()
    if keras.backend.backend() != "torch":
        return False
    from keras_transformer.layers.torch_products import suits_int8

    return suits_int8(inputs)


def takes_int4(layer: keras.layers.Layer, inputs) -> bool:
    """Whether `torch_int4` computes a layer: on PyTorch and a CPU, without gradients."""
    in_int4 = layer.quantization_mode == "int4" and layer.inputs_quantizer is None
    if not in_int4 or layer.lora_enabled or keras.backend.backend() != "torch":
        return False
    from keras_transformer.layers.torch_products import suits_int8

    return suits_int8(inputs)


def int8_product(inputs, kernel, scale, bias=None, axis: int = 0):
    """`inputs @ (kernel / scale) + bias` in int8, each row of the inputs by a scale of its own.

    A row gives the same whatever rows are beside it. The sums are int32, so nothing is lost there.

    Args:
        inputs: float `(..., in)`.
        kernel: int8 `(in, out)`, as Keras quantizes it.
        scale: float `(out,)`, by which the kernel is divided.
        bias: float `(out,)`, or None.
        axis: int, that of the inputs in the kernel: 1 for `(out, in)`.

    Returns:
        `(..., out)` of the dtype of the inputs.
    """
    given = [x if x is None else keras.ops.convert_to_tensor(x) for x in (kernel, scale, bias)]
    if keras.backend.backend() == "jax":
        from keras_transformer.layers import jax_products

        outputs = jax_products.int8_product(inputs, *given[:2], axis)
        return outputs if bias is None else keras.ops.add(outputs, bias)
    from keras_transformer.layers import torch_products

    if axis == 1:
        given[0] = given[0].t()
    return torch_products.int8_product(inputs, *given)


def attention_kernel(dtype) -> Callable:
    """The fastest attention for queries of a dtype, as `keras.ops.dot_product_attention`.

    On PyTorch its fused kernel, without the copies of queries, keys and values that Keras makes for
    it: of a window on a CPU they took a quarter of the time. On a CPU the other backends have none,
    and what Keras calls takes up to twice as long as `xla_attention`. Of bfloat16 TensorFlow there
    adds up in bfloat16, depending on the number of threads and the processor: 512 equal weights
    give a half, not one.
    """
    if keras.backend.backend() == "torch":
        from keras_transformer.layers.torch_products import attention

        return attention
    in_float32 = keras.backend.standardize_dtype(dtype) == "float32"
    if on_cpu() and (in_float32 or keras.backend.backend() == "tensorflow"):
        return xla_attention.attention
    return keras.ops.dot_product_attention


def in_program(x) -> bool:
    """Whether JAX traces an operation on `x`, of known sizes and for one device."""
    import jax

    if keras.distribution.distribution() is not None or not isinstance(x, jax.core.Tracer):
        return False
    return all(isinstance(size, int) for size in x.shape)


@functools.cache
def on_cpu() -> bool:
    """Whether JAX, or TensorFlow, computes on a CPU."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend() == "cpu"
    import tensorflow as tf

    return not tf.config.list_physical_devices("GPU")
