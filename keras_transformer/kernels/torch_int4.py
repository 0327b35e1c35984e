"""Matrices of int4 on PyTorch, and their products on a CPU.

A CPU has no fast products of int4, so the matrix is converted to int8. Its numbers are rounded once
more, to 254 steps for each output, an error that is small beside the one of int4's 15 steps. States
are then quantized dynamically, as for int8.
"""

from collections.abc import Callable
from typing import Any

import torch
from keras import ops
from torch.utils.weak import WeakTensorKeyDictionary

from keras_transformer.kernels.quantized_matrix import QuantizedMatrix
from keras_transformer.kernels.values import not_traced

# For each tensor of int4 numbers, its version and the tensors made from it, by name.
_MADE = WeakTensorKeyDictionary()


class Int4(QuantizedMatrix):
    """`QuantizedMatrix` of a layer in int4, with the tensors that were made from it.

    Args: see `QuantizedMatrix`.
    """

    def read(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the numbers, int8 `(in, out)`, and the scale and the zero of each group.

        The matrix is `(numbers - zero) * scale`, with scale and zero `(groups, out)`. Without
        groups, the zero is None and the matrix is `numbers / scale`, with the scale `(out,)`.
        """
        numbers, scale, *others = self.tensors()
        numbers = self.integers(numbers)
        if not others:
            return numbers, scale, None
        zero = others[0]
        return numbers, *((x.t() for x in (scale, zero)) if self._turned else (scale, zero))

    def groups(self) -> torch.Tensor | None:
        """Return the group of each input, int `(in,)`; None without groups."""
        return None if self._zero is None else ops.cast(self._layer.g_idx, "int32")

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
