"""Matrices of int8 and int4 as Keras stores them, and as floats."""

import keras
from keras import ops

from keras_transformer.kernels.indexing import put

MODES = ("int8", "int4")
# Rows of a vocabulary that are converted at a time: each takes its floats about six times.
_ROWS = 1024


class QuantizedMatrix:
    """Matrix `(in, out)` by which a quantized layer multiplies.

    Args:
        layer: dense layer, or with `of_logits` a token embedding: its inputs are `output_dim`.
        of_logits: bool, whether to compute logits of a token embedding.
    """

    def __init__(self, layer: keras.layers.Layer, of_logits: bool = False):
        self._layer = layer
        self._mode = layer.quantization_mode
        self._turned = of_logits and layer.tie_weights
        if not of_logits:
            name, self._variable, self._axis = "kernel", layer._kernel, -1
            self.inputs, self.outputs = layer._kernel.shape[0], layer.units
            self._packed_size = self.outputs
        else:
            name = "embeddings" if layer.tie_weights else "reverse_embeddings"
            self._variable = layer._embeddings if layer.tie_weights else layer.reverse_embeddings
            self._axis, self._packed_size = 0, layer.output_dim
            self.inputs = layer.output_dim
            self.outputs = self._variable.shape[0 if self._turned else 1]
        self._scale = getattr(layer, f"{name}_scale")
        self._zero = getattr(layer, f"{name}_zero", None)

    def tensors(self) -> tuple:
        """Return the stored numbers, and the scale and perhaps the zero and group of each."""
        given = [self._variable, self._scale]
        if self._zero is not None:
            given += [self._zero, self._layer.g_idx]
        return tuple(ops.convert_to_tensor(variable) for variable in given)

    def integers(self, numbers):
        """Return the integers `(in, out)`, int8, of stored numbers."""
        numbers = ops.transpose(numbers) if self._turned else numbers
        if self._mode == "int8":
            return numbers
        return keras.quantizers.unpack_int4(numbers, self._packed_size, axis=self._axis)

    def of(self, numbers, scale, zero=None, groups=None, dtype: str = "float32"):
        """Return the matrix `(in, out)` of the result of `tensors`, computed in float32."""
        matrix = ops.cast(self.integers(numbers), "float32")
        if zero is None:
            return ops.cast(ops.divide(matrix, ops.cast(scale, "float32")), dtype)
        if self._turned:
            scale, zero = ops.transpose(scale), ops.transpose(zero)
        groups = ops.cast(groups, "int32")
        scale, zero = (ops.cast(ops.take(x, groups, axis=0), "float32") for x in (scale, zero))
        return ops.cast((matrix - zero) * scale, dtype)

    def floats(self, dtype: str = "float32"):
        """Return the matrix `(in, out)`."""
        return self.of(*self.tensors(), dtype=dtype)

    def rows(self, dtype: str):
        """Return the matrix of a token embedding as `(out, in)`, converted a part at a time."""
        numbers, scale, *others = self.tensors()
        size = min(_ROWS, self.outputs)

        def of_words(tensor, start):
            if len(tensor.shape) == 1:
                return ops.slice(tensor, (start,), (size,))
            if self._turned:
                return ops.slice(tensor, (start, 0), (size, tensor.shape[1]))
            return ops.slice(tensor, (0, start), (tensor.shape[0], size))

        def convert(i, matrix):
            # The last part begins within the one before it, if there is no whole one left.
            start, last = i * size, self.outputs - size
            start = min(start, last) if isinstance(start, int) else ops.minimum(start, last)
            zero = [of_words(others[0], start), others[1]] if others else []
            part = self.of(of_words(numbers, start), of_words(scale, start), *zero, dtype=dtype)
            return put(matrix, ops.transpose(part), start, axis=0)

        matrix = ops.zeros((self.outputs, self.inputs), dtype)
        return ops.fori_loop(0, -(-self.outputs // size), convert, matrix)
