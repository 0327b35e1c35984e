"""`torch.matmul` by oneDNN, with its gradients. Imported on PyTorch alone; see `products`."""

import torch
from torch.overrides import TorchFunctionMode

from keras_transformer.kernels.torch_modes import computes_now
from keras_transformer.kernels.torch_tracing import int8, onednn

# So many rows oneDNN multiplies with a matrix sooner than `torch.matmul` on any processor.
_FEW_ROWS = 32


def linear(x, weight, bias=None):
    """`x @ weight.T + bias` by oneDNN, in any order in memory. No gradients."""
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")


def by_onednn(left, right, bias=None):
    """`left @ right + bias` by oneDNN, of a matrix on the right. No gradients."""
    if bias is None and left.ndim == 2 and left.stride(0) == 1 and left.numel() > right.numel():
        # oneDNN's operation turns what is on the left in memory: the smaller one.
        return linear(right.t(), left).t()
    return linear(left, right.t(), bias)


def suits(x) -> bool:
    """Whether products of the rows of a tensor are to go to oneDNN.

    The library behind `torch.matmul` takes AVX-512 on Intel's processors alone: where there is none
    it is no slower, once there are many rows.
    """
    return suits_matrix(x) and (
        x.numel() <= _FEW_ROWS * x.shape[-1]
        or torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    )


def suits_matrix(x) -> bool:
    """Whether oneDNN takes products with a matrix."""
    return (
        type(x) in (torch.Tensor, torch.nn.Parameter)
        and x.device.type == "cpu"
        # Of fewer bits `torch.matmul` asks oneDNN by itself.
        and x.dtype == torch.float32
        and x.numel() > 0
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
        and computes_now()
    )


def needs_float32(x) -> bool:
    """Whether a product of bfloat16 is to be one of float32: no instruction there is for it.

    `torch.matmul` then goes number by number, which takes fifty times as long.
    """
    return (
        isinstance(x, torch.Tensor)
        and x.device.type == "cpu"
        and x.dtype == torch.bfloat16
        and not onednn.takes_bfloat16()
        and not torch.is_autocast_enabled("cpu")
        # What leaves is for other processors too.
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
    )


def suits_int8(x) -> bool:
    """Whether `int8_product` takes a tensor. Not to be exported, or with a gradient."""
    return (
        isinstance(x, torch.Tensor)
        and x.device.type == "cpu"
        and x.numel() > 0
        and not (x.requires_grad and torch.is_grad_enabled())
        and torch.backends.mkldnn.is_available()
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
    )


def int8_product(inputs, kernel, scale, bias=None):
    """As `products.int8_product`, by the product of int8 matrices that is quick here.

    `torch_tracing.onednn` knows these steps where they are traced, and has its product there too.
    """
    rows = inputs.reshape(-1, inputs.shape[-1]).float()
    step = rows.abs().amax(-1, keepdim=True) / int8.LEVELS
    rows = rows / step  # Rows of zeros: whatever the product, times a step of zero.
    if computes_now():
        outputs = int8.multiply(int8.packed_once(kernel, scale), rows)
    else:
        outputs = torch._int_mm(rows.round_().to(torch.int8), kernel).float().div_(scale.float())
    outputs = outputs.mul_(step) if bias is None else torch.addcmul(bias.float(), outputs, step)
    return outputs.to(inputs.dtype).reshape(*inputs.shape[:-1], kernel.shape[1])


class QuickProducts(TorchFunctionMode):
    """Within, `torch.matmul` of a tensor and a matrix, and `linear`, are what is quickest."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if kwargs or function not in (torch.matmul, torch.nn.functional.linear):
            return function(*args, **(kwargs or {}))
        if needs_float32(args[0]):
            return function(*(x if x is None else x.float() for x in args)).bfloat16()
        if function is torch.matmul and len(args) == 2:
            left, right = args
            if left.ndim > 1 and right.ndim == 2 and suits(left) and suits_matrix(right):
                return _Product.apply(left, right, None)
        if function is torch.nn.functional.linear and len(args) == 3:
            left, right, bias = args
            if left.ndim > 1 and suits(left) and suits_matrix(right):
                return _Product.apply(left, right.t(), bias)
        return function(*args)


class _Product(torch.autograd.Function):
    """`left @ right`, perhaps with a bias. Its gradients are such products: they have some too."""

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
            by_left = _Product.apply(gradient, right.t(), None)
        if context.needs_input_grad[1]:
            rows, columns = left.reshape(-1, left.shape[-1]), gradient.reshape(-1, right.shape[1])
            by_right = _Product.apply(rows.t(), columns, None)
        if context.needs_input_grad[2]:
            by_bias = gradient.reshape(-1, right.shape[1]).sum(0)
        return by_left, by_right, by_bias
