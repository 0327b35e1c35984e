"""Products by the fastest library, with gradients. Imported only on PyTorch; see `products`."""

import contextlib
from collections.abc import Callable

import keras
import torch
from torch.overrides import TorchFunctionMode

from keras_transformer.kernels import torch_gpu_int4, torch_gpu_int8, torch_int8
from keras_transformer.kernels.torch_choices import (
    LARGE,
    MANY,
    choose,
    measured_outputs,
    up_to_power_of_two,
)
from keras_transformer.kernels.torch_int4 import Int4
from keras_transformer.kernels.values import is_eager

# Up to this many rows oneDNN is no slower than `torch.matmul` on any processor.
_FEW_ROWS = 32


def linear(inputs, kernel, bias=None):
    """Compute `products.linear`: the product adds the bias, without a tensor for the sum."""
    if bias is not None:
        given = [keras.ops.convert_to_tensor(x) for x in (kernel, bias)]
        if inputs.dtype == given[0].dtype:
            return torch.nn.functional.linear(inputs, given[0].t(), given[1])
    outputs = keras.ops.matmul(inputs, kernel)
    return outputs if bias is None else keras.ops.add(outputs, bias)


def onednn_matmul_scope(x) -> contextlib.AbstractContextManager:
    """Compute `products.onednn_matmul_scope`.

    It does nothing where operations are recorded instead of run (traced, exported, counted), and
    within autocast: there `torch.matmul` is expected.
    """
    return QuickProducts() if suits_matrix(x) or needs_float32(x) else contextlib.nullcontext()


def _by_weight(x, weight, bias=None):
    """Return `x @ weight.T + bias` by oneDNN, in any memory order. Has no gradients."""
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")


def by_onednn(left, right, bias=None):
    """Return `left @ right + bias` by oneDNN, with a matrix on the right. Has no gradients."""
    if bias is None and left.ndim == 2 and left.stride(0) == 1 and left.numel() > right.numel():
        # oneDNN's operation transposes its left input in memory, which should be the smaller one.
        return _by_weight(right.t(), left).t()
    return _by_weight(left, right.t(), bias)


def is_onednn_fastest(rows: int, matrix: torch.Tensor) -> bool:
    """Return True if oneDNN multiplies rows by a float32 matrix `(in, out)` faster than `torch.mm`.

    This is measured for large matrices. The calls of small products cost more than the products:
    there `suits_rows` decides.
    """
    if matrix.numel() < LARGE:
        return suits_rows(rows)
    by_rows = matrix.stride(-1) == 1
    known = min(up_to_power_of_two(rows), MANY)
    sizes = map(up_to_power_of_two, matrix.shape)
    what = ("float32", known, "rows", *sizes, "by rows" if by_rows else "by columns")
    return choose(what, lambda: _ways(known, matrix.detach())) == "oneDNN"


def _ways(rows: int, matrix: torch.Tensor) -> dict[str, Callable]:
    right = matrix[:, : measured_outputs(*reversed(matrix.shape))]

    def of(multiply: Callable) -> Callable:
        def prepared():
            left = torch.ones(rows, len(right), device="cpu")
            return [lambda: multiply(left, right)]

        return prepared

    ways = {"oneDNN": of(by_onednn), "matmul": of(torch.mm)}
    return ways if suits_rows(rows) else dict(reversed(ways.items()))


def suits_rows(rows: int) -> bool:
    """Return True if oneDNN takes products of this many rows where nothing is measured.

    The library behind `torch.matmul` uses AVX-512 only on Intel's processors. Without AVX-512 it is
    no slower than oneDNN once there are many rows.
    """
    return rows <= _FEW_ROWS or torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def takes_bfloat16() -> bool:
    """Return True if oneDNN has bfloat16 products for this processor."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def suits(left, right) -> bool:
    """Return True if `left @ right`, with a matrix on the right, should be computed by oneDNN.

    Gradients of matrices, whose left side lies in memory by columns, are not measured.
    """
    if not (suits_matrix(left) and suits_matrix(right)):
        return False
    rows = left.numel() // left.shape[-1]
    return suits_rows(rows) if left.stride(-1) != 1 else is_onednn_fastest(rows, right)


def suits_matrix(x) -> bool:
    """Return True if oneDNN takes products with a matrix."""
    return (
        type(x) in (torch.Tensor, torch.nn.Parameter)
        and x.device.type == "cpu"
        # For narrower dtypes `torch.matmul` calls oneDNN itself.
        and x.dtype == torch.float32
        and x.numel() > 0
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
        and is_eager()
    )


def needs_float32(x) -> bool:
    """Return True if a bfloat16 product should be computed in float32.

    On a CPU without bfloat16 instructions `torch.matmul` would compute number by number, which
    takes fifty times as long.
    """
    return (
        isinstance(x, torch.Tensor)
        and x.device.type == "cpu"
        and x.dtype == torch.bfloat16
        and not takes_bfloat16()
        and not torch.is_autocast_enabled("cpu")
        # Exported programs run on other processors too.
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
    )


def suits_int8(x) -> bool:
    """Return True if `int8_product` takes a tensor: not in an export or with gradients."""
    return _is_inference(x) and (_on_host(x) or torch_gpu_int8.takes(x))


def suits_int4(layer, x, of_logits: bool = False) -> bool:
    """Return True if `int4_product` takes a tensor: not in an export or with gradients."""
    return _is_inference(x) and (_on_host(x) or torch_gpu_int4.takes(x, Int4(layer, of_logits)))


def _is_inference(x) -> bool:
    return (
        isinstance(x, torch.Tensor)
        and x.numel() > 0
        and not (x.requires_grad and torch.is_grad_enabled())
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
    )


def _on_host(x) -> bool:
    """Return True if a tensor is on a CPU that has fast int8 products."""
    return x.device.type == "cpu" and torch.backends.mkldnn.is_available()


def int4_product(layer, inputs, bias=None, of_logits: bool = False):
    """Compute `products.int4_product`, on a CPU with an int8 matrix."""
    matrix = Int4(layer, of_logits)
    if inputs.device.type == "cpu":
        return int8_product(inputs, *matrix.as_int8(), bias)
    return torch_gpu_int4.product(inputs, matrix, bias)


def int8_product(inputs, kernel, scale, bias=None, axis: int = 0):
    """Compute `products.int8_product` by the fastest int8 product of the device.

    `torch_tracing.fastest_products` recognizes these steps in traces on a CPU, and replaces them by
    its own product.
    """
    on_host = inputs.device.type == "cpu"
    rows = inputs.reshape(-1, inputs.shape[-1]).float()
    step = rows.abs().amax(-1, keepdim=True) / (torch_int8 if on_host else torch_gpu_int8).LEVELS
    rows = rows / step  # rows of zeros become arbitrary int8: times a step of 0 they give 0
    if not on_host:
        outputs = torch_gpu_int8.multiply(rows, kernel, axis).div_(scale.float())
    else:
        matrix = kernel if axis == 0 else kernel.t()
        if is_eager():
            outputs = torch_int8.multiply(torch_int8.packed_once(len(rows), matrix, scale), rows)
        else:
            sums = torch._int_mm(rows.round_().to(torch.int8), matrix)
            outputs = sums.float().div_(scale.float())
    outputs = outputs.mul_(step) if bias is None else torch.addcmul(bias.float(), outputs, step)
    return outputs.to(inputs.dtype).reshape(*inputs.shape[:-1], kernel.shape[1 - axis])


class QuickProducts(TorchFunctionMode):
    """Scope in which `linear` and `torch.matmul`, with a matrix, use the fastest library."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if kwargs or function not in (torch.matmul, torch.nn.functional.linear):
            return function(*args, **(kwargs or {}))
        if needs_float32(args[0]):
            return function(*(x if x is None else x.float() for x in args)).bfloat16()
        if function is torch.matmul and len(args) == 2:
            left, right = args
            if left.ndim > 1 and right.ndim == 2 and suits(left, right):
                return _Product.apply(left, right, None)
        if function is torch.nn.functional.linear and len(args) == 3:
            left, right, bias = args
            if left.ndim > 1 and suits(left, right.t()):
                return _Product.apply(left, right.t(), bias)
        return function(*args)


class _Product(torch.autograd.Function):
    """Product `left @ right + bias` by oneDNN, with gradients by the fastest library."""

    @staticmethod
    def forward(left, right, bias):
        return by_onednn(left, right, bias)

    @staticmethod
    def setup_context(context, inputs, output):
        context.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(context, gradient):
        left, right = context.saved_tensors
        by_left = by_right = by_bias = None
        if context.needs_input_grad[0]:
            by_left = _product(gradient, right.t())
        if context.needs_input_grad[1]:
            rows, columns = left.reshape(-1, left.shape[-1]), gradient.reshape(-1, right.shape[1])
            by_right = _product(rows.t(), columns)
        if context.needs_input_grad[2]:
            by_bias = gradient.reshape(-1, right.shape[1]).sum(0)
        return by_left, by_right, by_bias


def _product(left, right):
    return _Product.apply(left, right, None) if suits(left, right) else left @ right
