"""Quantized matrices that stay as they are: numbers and scales of layers in int4 and int8."""

from collections.abc import Mapping

import keras
import numpy as np
from keras.quantizers import Int4QuantizationConfig

from keras_transformer.checkpoints.quantized.matrix import IntegerMatrix, QuantizedMatrix
from keras_transformer.checkpoints.weights.safetensors_io import TensorInfo
from keras_transformer.checkpoints.weights.tables import WeightLine
from keras_transformer.kernels.programs import to_tensor
from keras_transformer.layers.dense import Dense


def layers_by_kernel(model: keras.Model) -> dict[int, Dense]:
    """Return the dense layers of a model by the `id` of their kernel."""
    # Subclasses compute with the floats of their kernel.
    dense = (layer for layer in model._flatten_layers() if type(layer) is Dense)
    return {id(layer._kernel): layer for layer in dense}


def keeps(info: TensorInfo, line: WeightLine) -> bool:
    """Return whether a layer can compute with a tensor as it is stored, from its header alone.

    The line must take whole columns of outputs out of it.
    """
    plain = not (line.convolution or line.depthwise or line.row or line.rows or line.norm_axes)
    matrix = isinstance(info, QuantizedMatrix) and not info.parts
    return matrix and plain and line.transpose and info.layer_dtype is not None


def bytes_of_layer(matrix: QuantizedMatrix, kernel: tuple[int, int]) -> int:
    """Return the bytes of a layer that keeps a matrix, from its shape `(inputs, outputs)`."""
    inputs, outputs = kernel
    if matrix.layer_dtype == "int8":
        return inputs * outputs + 4 * outputs
    # Two numbers in a byte; a scale and a zero for each group; the group of each input.
    return inputs * -(-outputs // 2) + 5 * matrix.groups_of_inputs * outputs + 4 * inputs


def keep(matrix: QuantizedMatrix, places: Mapping[Dense, WeightLine]) -> None:
    """Give the layers the numbers and scales of a matrix, which the layers split among them."""
    read = matrix.read_integers()
    for layer, line in places.items():
        if matrix.layer_dtype == "int8":
            _set_int8(layer, line, read)
        else:
            _set_int4(layer, line, read)


def _set_int8(layer: Dense, line: WeightLine, read: IntegerMatrix) -> None:
    numbers, scales = line.split(read.numbers), line.split(read.scales)[0]
    # The layer divides by its scale. An output of zeros has none.
    numbers = np.where(scales == 0, 0, numbers).astype("int8", copy=False)
    scales = 1 / np.where(scales == 0, 1, scales)
    layer.quantize("int8")
    layer._kernel.assign(to_tensor(numbers, "int8"))
    layer.kernel_scale.assign(to_tensor(scales, layer.kernel_scale.dtype))


def _set_int4(layer: Dense, line: WeightLine, read: IntegerMatrix) -> None:
    numbers, scales, zeros = (line.split(each) for each in (read.numbers, read.scales, read.zeros))
    block = -(-len(numbers) // len(scales))
    layer.quantize("int4", config=Int4QuantizationConfig(block_size=block))
    packed = keras.quantizers.pack_int4(to_tensor(np.ascontiguousarray(numbers), "int8"), axis=-1)
    layer._kernel.assign(packed[0])
    layer.kernel_scale.assign(to_tensor(scales, layer.kernel_scale.dtype))
    layer.kernel_zero.assign(to_tensor(np.ascontiguousarray(zeros), "int8"))
    layer.g_idx.assign(to_tensor(read.groups.astype("float32"), "float32"))
