"""Matrix products by the fastest library.

PyTorch on a CPU computes products with a matrix by oneDNN, forward and backward: all of them with
AVX-512, otherwise those with few rows.

The library behind `torch.matmul` for float32 was made by Intel and uses AVX-512 only on Intel's own
processors; on others oneDNN, which PyTorch includes too, is twice as fast.
"""

import contextlib
from collections.abc import Callable

import keras

from keras_transformer.kernels.device import device, on
from keras_transformer.kernels.quantized_matrix import QuantizedMatrix


def by_rows(product: Callable, inputs):
    """Multiply states by a matrix, on JAX with all their rows in one axis.

    The gradient of the matrix is then one product of two matrices. States with more axes would be
    transposed by XLA on a CPU, which recomputes what it transposes: in a pre-norm stack the sum of
    all residuals, once more for each layer. A training step of ViT-B/16 took 1.5 times as long.
    """
    shape = inputs.shape
    if not on("jax") or len(shape) < 3 or None in shape[:-1]:
        return product(inputs)
    outputs = product(keras.ops.reshape(inputs, (-1, shape[-1])))
    return keras.ops.reshape(outputs, (*shape[:-1], outputs.shape[-1]))


def _linear(inputs, kernel, bias=None):
    """Compute `linear` on JAX and TensorFlow."""
    if takes_bfloat16(inputs, kernel):
        outputs = bfloat16_product(inputs, kernel)
        return outputs if bias is None else keras.ops.add(outputs, bias)
    outputs = by_rows(lambda rows: keras.ops.matmul(rows, kernel), inputs)
    return outputs if bias is None else keras.ops.add(outputs, bias)


def _torch_products():
    from keras_transformer.kernels import torch_products

    return torch_products


# Whether XLA computes products.
BY_XLA = not on("torch")
# `linear(inputs, kernel, bias=None)` is `inputs @ kernel + bias`, of `(..., in)`, a matrix
# `(in, out)`, and `(out,)` or None.
linear = _linear if BY_XLA else _torch_products().linear
# `onednn_matmul_scope(x)` is the scope in which products of `x` with weights are fastest on PyTorch
# and a CPU; elsewhere it does nothing.
onednn_matmul_scope = contextlib.nullcontext if BY_XLA else _torch_products().onednn_matmul_scope


def takes_bfloat16(inputs, kernel) -> bool:
    """Return True if `bfloat16_product` computes the same as `keras.ops.matmul`, but faster."""
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (inputs, kernel)}
    return dtypes == {"bfloat16"} and on("jax") and device().is_cpu


def bfloat16_product(inputs, kernel, axis: int = 0):
    """Multiply bfloat16 `(..., in)` by a matrix with the inputs on its `axis`, on JAX and a CPU."""
    from keras_transformer.kernels import jax_products

    return jax_products.product(inputs, keras.ops.convert_to_tensor(kernel), axis)


def takes_int8(layer: keras.layers.Layer, inputs) -> bool:
    """Return True if `int8_product` computes the same as Keras's quantized layer for these inputs.

    On PyTorch this holds on a CPU and on a GPU with int8 products, without gradients: Keras's own
    product has gradients of the inputs. On JAX it holds on a CPU.
    """
    if layer.quantization_mode != "int8" or layer.inputs_quantizer is None or layer.float_states:
        return False
    if on("jax"):
        return device().is_cpu
    if not on("torch"):
        return False
    from keras_transformer.kernels.torch_products import suits_int8

    return suits_int8(inputs)


def takes_int4(layer: keras.layers.Layer, inputs, of_logits: bool = False) -> bool:
    """Return True if `int4_product` computes a layer for these inputs.

    It does so on PyTorch without gradients: on a CPU, and on CUDA for a few rows.
    """
    in_int4 = layer.quantization_mode == "int4" and layer.inputs_quantizer is None
    if not in_int4 or layer.float_states or not on("torch"):
        return False
    from keras_transformer.kernels.torch_products import suits_int4

    return suits_int4(layer, inputs, of_logits)


def int4_product(layer: keras.layers.Layer, inputs, bias=None, of_logits: bool = False):
    """Return the product of a layer that `takes_int4`, without its activation.

    Args:
        layer: dense layer, or with `of_logits` a token embedding, for its logits.
        inputs: float `(..., in)`.
        bias: float `(out,)`, or None.
        of_logits: bool, whether to compute logits of a token embedding.
    """
    from keras_transformer.kernels import torch_products

    bias = None if bias is None else keras.ops.convert_to_tensor(bias)
    return torch_products.int4_product(layer, inputs, bias, of_logits)


def int8_product(inputs, kernel, scale, bias=None, axis: int = 0):
    """Return `inputs @ (kernel / scale) + bias` in int8, with a scale for each row of the inputs.

    The result of a row does not depend on the values of others. Sums are int32, hence exact.

    Args:
        inputs: float `(..., in)`.
        kernel: int8 `(in, out)`, as Keras quantizes it.
        scale: float `(out,)`, by which the kernel is divided.
        bias: float `(out,)`, or None.
        axis: int, the axis of the inputs in the kernel: 1 for `(out, in)`.

    Returns:
        `(..., out)` in the dtype of the inputs.
    """
    given = [x if x is None else keras.ops.convert_to_tensor(x) for x in (kernel, scale, bias)]
    if on("jax"):
        from keras_transformer.kernels import jax_products

        outputs = jax_products.int8_product(inputs, *given[:2], axis)
        return outputs if bias is None else keras.ops.add(outputs, bias)
    from keras_transformer.kernels import torch_products

    return torch_products.int8_product(inputs, *given, axis)


def dequantized_product(inputs, matrix: QuantizedMatrix):
    """Return `inputs @ matrix`, float `(..., in)` to `(..., out)`, in the dtype of the inputs.

    The inputs are not rounded, unlike in `int8_product`, so the product has the gradient of the
    matrix that the integers stand for. It reaches the inputs alone, and needs only the integers,
    from which the matrix is made again: no layer keeps a matrix of floats.

    Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", section 3,
    https://arxiv.org/abs/2305.14314.
    """
    dtype = keras.backend.standardize_dtype(inputs.dtype)

    def multiplied(inputs, tensors, turned: bool):
        inputs, tensors = _after(inputs, tensors)
        floats = matrix.of(*tensors, dtype=dtype)
        with onednn_matmul_scope(inputs):
            return linear(inputs, keras.ops.transpose(floats) if turned else floats)

    @keras.ops.custom_gradient
    def differentiated(inputs, *tensors):
        def backward(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream  # PyTorch passes it by name
            return (multiplied(upstream, tensors, turned=True), *[None] * len(tensors))

        return multiplied(inputs, tensors, turned=False), backward

    return differentiated(inputs, *matrix.tensors())


def _after(inputs, tensors: tuple) -> tuple:
    """Make XLA convert a matrix when its product is due, and not once for all of its products.

    A matrix of floats would otherwise be kept from the forward pass to the backward pass.
    """
    if not on("jax"):
        return inputs, tensors
    import jax

    return jax.lax.optimization_barrier((inputs, tensors))
