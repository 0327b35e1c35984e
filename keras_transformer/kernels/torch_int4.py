"""int4 on PyTorch and a CPU, which has no quick product of it: by a matrix of int8.

What int4 holds is rounded once more, to 254 steps for each output, which is little beside the 15 of
int4 itself. States then are quantized as they come, as for int8.
"""

from collections.abc import Callable

import keras
import torch
from keras import ops
from torch.utils.weak import WeakTensorKeyDictionary

from keras_transformer.kernels.torch_modes import not_traced

# By the numbers of int4: their versions, and what was made of them.
_MADE = WeakTensorKeyDictionary()


def of_dense(layer: keras.layers.Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """The int8 matrix `(in, out)` of a dense layer in int4, and what divides it, `(out,)`."""

    def floats():
        numbers = keras.quantizers.unpack_int4(layer._kernel, layer._orig_output_dim, axis=-1)
        return _floats(layer, numbers, layer.kernel_scale, getattr(layer, "kernel_zero", None))

    return _once(layer._kernel, layer.kernel_scale, floats)


def of_logits(layer: keras.layers.Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of an embedding with `reverse=True`: its inputs are `output_dim`."""
    name = "embeddings" if layer.tie_weights else "reverse_embeddings"
    numbers = layer._embeddings if layer.tie_weights else layer.reverse_embeddings
    scale, zero = getattr(layer, f"{name}_scale"), getattr(layer, f"{name}_zero", None)

    def floats():
        given = [numbers, scale, zero]
        if layer.tie_weights:
            given = [None if x is None else ops.transpose(x) for x in given]
        unpacked = keras.quantizers.unpack_int4(given[0], layer.output_dim, axis=0)
        return _floats(layer, unpacked, *given[1:])

    return _once(numbers, scale, floats)


def _floats(layer, numbers, scale, zero) -> torch.Tensor:
    """The matrix as float32, `(in, out)`."""
    numbers = ops.cast(numbers, "float32")
    if zero is None:
        return ops.divide(numbers, scale)
    groups = ops.cast(layer.g_idx, "int32")
    scale, zero = (ops.cast(ops.take(x, groups, axis=0), "float32") for x in (scale, zero))
    return (numbers - zero) * scale


def _once(numbers, scale, floats: Callable) -> tuple[torch.Tensor, torch.Tensor]:
    versions = (numbers.value._version, scale.value._version)
    kept, made = _MADE.get(numbers.value, (None, None))
    if kept != versions:
        # For calls with gradients too.
        with not_traced(), torch.inference_mode(False), torch.no_grad():
            matrix = floats()
            factor = 127 / matrix.abs().amax(0).clamp_min(1e-30)
            made = (matrix * factor).round().to(torch.int8), factor
        _MADE[numbers.value] = (versions, made)
    return made
