"""Matrices of int4 on PyTorch, and their products on a CPU.

A CPU has no fast products of int4, so the matrix is converted to int8. Its numbers are rounded once
more, to 254 steps for each output, an error that is small beside the one of int4's 15 steps. States
are then quantized dynamically, as for int8.
"""

from collections.abc import Callable
from typing import Any

import keras
import torch
from keras import ops
from torch.utils.weak import WeakTensorKeyDictionary

from keras_transformer.kernels.torch_modes import not_traced

# For each tensor of int4 numbers, its version and the tensors made from it, by name.
_MADE = WeakTensorKeyDictionary()


class Int4:
    """Matrix `(in, out)` by which an int4 layer multiplies.

    Args:
        layer: dense layer, or with `of_logits` a token embedding: its inputs are `output_dim`.
        of_logits: bool, whether to compute logits of a token embedding.
    """

    def __init__(self, layer: keras.layers.Layer, of_logits: bool = False):
        self._layer = layer
        self._turned = of_logits and layer.tie_weights
        if not of_logits:
            name, self._variable, self._axis = "kernel", layer._kernel, -1
            self._packed_size = self.outputs = layer._orig_output_dim
            self.inputs = layer._kernel.shape[0]
        else:
            name = "embeddings" if layer.tie_weights else "reverse_embeddings"
            self._variable = layer._embeddings if layer.tie_weights else layer.reverse_embeddings
            self._axis, self._packed_size = 0, layer.output_dim
            self.inputs = layer.output_dim
            self.outputs = self._variable.shape[0 if self._turned else 1]
        self._scale = getattr(layer, f"{name}_scale")
        self._zero = getattr(layer, f"{name}_zero", None)

    def read(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the numbers, int8 `(in, out)`, and the scale and the zero of each group.

        The matrix is `(numbers - zero) * scale`, with scale and zero `(groups, out)`. Without
        groups, the zero is None and the matrix is `numbers / scale`, with the scale `(out,)`.
        """
        given = [self._variable, self._scale, self._zero]
        if self._turned:
            given = [None if x is None else ops.transpose(x) for x in given]
        numbers = keras.quantizers.unpack_int4(given[0], self._packed_size, axis=self._axis)
        return numbers, *(None if x is None else ops.convert_to_tensor(x) for x in given[1:])

    def groups(self) -> torch.Tensor | None:
        """Return the group of each input, int `(in,)`; None without groups."""
        return None if self._zero is None else ops.cast(self._layer.g_idx, "int32")

    def floats(self) -> torch.Tensor:
        """Return the matrix as float32."""
        numbers, scale, zero = self.read()
        numbers = ops.cast(numbers, "float32")
        if zero is None:
            return ops.divide(numbers, scale)
        groups = self.groups()
        scale, zero = (ops.cast(ops.take(x, groups, axis=0), "float32") for x in (scale, zero))
        return (numbers - zero) * scale

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the result of `make`, kept as long as the numbers do not change."""
        numbers, scale = self._variable.value, self._scale.value
        versions = (numbers._version, scale._version)
        before, made = _MADE.get(numbers, (None, None))
        if before != versions:
            made = {}
            _MADE[numbers] = (versions, made)
        if name not in made:
            # Made outside of inference mode, so that calls with gradients can use it too.
            with not_traced(), torch.inference_mode(False), torch.no_grad():
                made[name] = make()
        return made[name]

    def as_int8(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an int8 matrix `(in, out)`, and the divisor of its products, `(out,)`."""

        def made():
            matrix = self.floats()
            factor = 127 / matrix.abs().amax(0).clamp_min(1e-30)
            return (matrix * factor).round().to(torch.int8), factor

        return self.kept("int8", made)
