"""Products of matrices by the library that is fastest.

PyTorch on a CPU takes products with a matrix by oneDNN, forward and backward, all of them where
there is AVX-512, and else those of few rows.

The library that `torch.matmul` calls for float32 was made by Intel and takes AVX-512 on Intel's own
processors alone; of others oneDNN, which PyTorch carries too, makes twice as much.
"""

import contextlib
from collections.abc import Callable

import keras

from keras_transformer.kernels.device import device, on


def quick_products(x) -> contextlib.AbstractContextManager:
    """The scope of products of `x` with weights: what is quickest on PyTorch and a CPU.

    Not where operations are looked at in place of run (traced, exported, counted), and not within
    autocast: there `torch.matmul` is what is expected.
    """
    if not on("torch"):
        return contextlib.nullcontext()
    from keras_transformer.kernels.torch_products import QuickProducts, needs_float32, suits_matrix

    return QuickProducts() if suits_matrix(x) or needs_float32(x) else contextlib.nullcontext()


def by_rows(product: Callable, inputs):
    """A product of states with a matrix, on JAX of all their rows in one axis.

    The gradient of the matrix is then one product of two matrices. For states of more axes XLA
    transposes them on a CPU, and computes there what it transposes: in a stack that normalizes
    first that is the sum of all residuals, once more for each layer. A training step of ViT-B/16
    took 1.5 times as long.
    """
    shape = inputs.shape
    if not on("jax") or len(shape) < 3 or None in shape[:-1]:
        return product(inputs)
    outputs = product(keras.ops.reshape(inputs, (-1, shape[-1])))
    return keras.ops.reshape(outputs, (*shape[:-1], outputs.shape[-1]))


def linear(inputs, kernel, bias=None):
    """`inputs @ kernel + bias`, of states `(..., in)`, a matrix `(in, out)`, and `(out,)` or None.

    On PyTorch the product adds the bias: no tensor more for the sum.
    """
    if takes_bfloat16(inputs, kernel):
        outputs = bfloat16_product(inputs, kernel)
        return outputs if bias is None else keras.ops.add(outputs, bias)
    if on("torch") and bias is not None:
        import torch

        given = [keras.ops.convert_to_tensor(x) for x in (kernel, bias)]
        if inputs.dtype == given[0].dtype:
            return torch.nn.functional.linear(inputs, given[0].t(), given[1])
    outputs = by_rows(lambda rows: keras.ops.matmul(rows, kernel), inputs)
    return outputs if bias is None else keras.ops.add(outputs, bias)


def takes_bfloat16(inputs, kernel) -> bool:
    """Whether `bfloat16_product` computes what `keras.ops.matmul` does, and faster."""
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (inputs, kernel)}
    return dtypes == {"bfloat16"} and on("jax") and device().is_cpu


def bfloat16_product(inputs, kernel, axis: int = 0):
    """Bfloat16 `(..., in)` by a matrix whose `axis` is the inputs, on JAX and a CPU."""
    from keras_transformer.kernels import jax_products

    return jax_products.product(inputs, keras.ops.convert_to_tensor(kernel), axis)


def takes_int8(layer: keras.layers.Layer, inputs) -> bool:
    """Whether `int8_product` computes what a quantized layer of Keras does, of these inputs.

    It is for a CPU: for PyTorch without gradients, where Keras's own product has those of the
    inputs, and for JAX.
    """
    if layer.quantization_mode != "int8" or layer.inputs_quantizer is None or layer.lora_enabled:
        return False
    if on("jax"):
        return device().is_cpu
    if not on("torch"):
        return False
    from keras_transformer.kernels.torch_products import suits_int8

    return suits_int8(inputs)


def takes_int4(layer: keras.layers.Layer, inputs) -> bool:
    """Whether `torch_int4` computes a layer: on PyTorch and a CPU, without gradients."""
    in_int4 = layer.quantization_mode == "int4" and layer.inputs_quantizer is None
    if not in_int4 or layer.lora_enabled or not on("torch"):
        return False
    from keras_transformer.kernels.torch_products import suits_int8

    return suits_int8(inputs)


def int4_as_int8(layer: keras.layers.Layer, of_logits: bool = False) -> tuple:
    """The int8 matrix `(in, out)` of a layer in int4 that `takes_int4`, and its scale `(out,)`.

    Args:
        layer: dense layer, or with `of_logits` a token embedding, whose logits it makes.
        of_logits: bool.
    """
    from keras_transformer.kernels import torch_int4

    return (torch_int4.of_logits if of_logits else torch_int4.of_dense)(layer)


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
    if on("jax"):
        from keras_transformer.kernels import jax_products

        outputs = jax_products.int8_product(inputs, *given[:2], axis)
        return outputs if bias is None else keras.ops.add(outputs, bias)
    from keras_transformer.kernels import torch_products

    if axis == 1:
        given[0] = given[0].t()
    return torch_products.int8_product(inputs, *given)
