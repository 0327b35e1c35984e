"""The linear layer of all blocks, with the fastest matrix product for the device, and adapters."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.config.weight import BOUNDS
from keras_transformer.kernels import products
from keras_transformer.kernels.quantized_matrix import MODES, QuantizedMatrix

# The variables of a low-rank adapter: two matrices, and with DoRA a vector.
LOW_RANK = ("lora_kernel_a", "lora_kernel_b")
MAGNITUDE = "lora_magnitude"


def adapter_of(layer: keras.layers.Dense) -> dict[str, keras.Variable]:
    """Return the variables of a layer's adapter by name; empty without one."""
    names = (*LOW_RANK, MAGNITUDE) if layer.lora_enabled else ()
    found = {name: getattr(layer, name, None) for name in names}
    return {name: variable for name, variable in found.items() if variable is not None}


def merge_adapter(layer: keras.layers.Dense) -> None:
    """Merge an adapter into the kernel and remove it; a quantized kernel is quantized again.

    The rule is the one of `quantize`: a scale from the largest number of a column in int8, and a
    scale and a zero for each group of a column in int4.
    """
    merged = layer._get_kernel_with_merged_lora()
    merged = [x if x is None else ops.convert_to_numpy(x) for x in merged]
    for name, variable in adapter_of(layer).items():
        layer._untrack_variable(variable)
        setattr(layer, name, None)
    layer.lora_enabled = False
    for name, array in zip(("_kernel", "kernel_scale", "kernel_zero"), merged, strict=True):
        if array is not None:
            getattr(layer, name).assign(array)


class Dense(keras.layers.Dense):
    """`keras.layers.Dense` with the matrix products of `kernels`, and with LoRA and DoRA.

    With an adapter the kernel is `W + lora_alpha / lora_rank * A @ B`. With a magnitude (DoRA),
    each column of it has the length that `lora_magnitude` says. `W` may be quantized.

    Source: Hu et al. 2021, "LoRA", section 4.1; Liu et al. 2024, "DoRA: Weight-Decomposed Low-Rank
    Adaptation", sections 4.1 and 4.3, https://arxiv.org/abs/2402.09353.
    """

    lora_magnitude: keras.Variable | None = None
    # Whether the states stay as they are in products with a quantized matrix.
    float_states: bool = False
    # The processes that have other rows of the kernel, see `distribution.tensor_parallel`.
    sharing: Any = None

    def call(self, inputs, training=None):
        if self.lora_enabled:
            return self._activated(self._adapted(inputs))
        if self.sharing is not None:
            outputs = self.sharing.sum(products.linear(inputs, self._kernel))
            return self._activated(outputs if self.bias is None else outputs + self.bias)
        return self._activated(products.linear(inputs, self._kernel, self.bias))

    def enable_lora(self, rank, lora_alpha=None, *args, magnitude: bool = False, **kwargs):
        """Add an adapter as `keras.layers.Dense.enable_lora` does; `magnitude` makes it DoRA."""
        super().enable_lora(rank, lora_alpha, *args, **kwargs)
        if magnitude:
            self._tracker.unlock()
            self.lora_magnitude = self.add_weight(
                name=MAGNITUDE, shape=(self.units,), initializer="ones", dtype="float32"
            )
            self._tracker.lock()
            self.lora_magnitude.assign(self.column_norms())

    @property
    def kernel(self):
        return self._float_kernel(self.compute_dtype) if self.lora_enabled else super().kernel

    def column_norms(self):
        """Return the lengths of the columns of `W` plus the low-rank product, float32 `(out,)`."""
        return ops.sqrt(ops.sum(ops.square(self._sum()), axis=0))

    def quantize(self, mode=None, type_check: bool = True, config=None):
        # Keras refuses subclasses, which may compute something else. This one computes the same.
        super().quantize(mode, type_check=False, config=config)

    def quantized_call(self, inputs, training=None):
        # Keras calls this instead of `call` once the layer is quantized.
        if self.lora_enabled:
            return self._activated(self._adapted(inputs))
        if self.float_states:
            outputs = self._base(inputs)
            return self._activated(outputs if self.bias is None else outputs + self.bias)
        if products.takes_int4(self, inputs):
            return self._activated(products.int4_product(self, inputs, self.bias))
        if products.takes_int8(self, inputs):
            outputs = products.int8_product(inputs, self._kernel, self.kernel_scale, self.bias)
            return self._activated(outputs)
        return super().quantized_call(inputs, training=training)

    def _get_kernel_with_merged_lora(self):
        # Keras saves these, and would leave out the magnitude.
        return self._merged() if self.lora_enabled else super()._get_kernel_with_merged_lora()

    def _base(self, inputs):
        """Return the product with the kernel alone."""
        if self.quantization_mode in MODES:
            return products.dequantized_product(inputs, QuantizedMatrix(self))
        return products.linear(inputs, self._kernel)

    def _adapted(self, inputs):
        """Return the product with kernel and adapter, plus the bias."""
        update = products.linear(inputs, ops.convert_to_tensor(self.lora_kernel_a))
        update = products.linear(update, ops.convert_to_tensor(self.lora_kernel_b))
        outputs = self._base(inputs) + update * ops.cast(self._factor, update.dtype)
        if self.lora_magnitude is not None:
            # The lengths have no gradient, as section 4.3 says.
            columns = ops.convert_to_tensor(self.lora_magnitude) / self._detached_norms()
            outputs = outputs * ops.cast(columns, outputs.dtype)
        return outputs if self.bias is None else outputs + self.bias

    @property
    def _factor(self) -> float:
        return self.lora_alpha / self.lora_rank

    def _detached_norms(self):
        pair = (ops.stop_gradient(ops.convert_to_tensor(getattr(self, name))) for name in LOW_RANK)
        return ops.sqrt(ops.sum(ops.square(self._sum(*pair)), axis=0))

    def _sum(self, a=None, b=None):
        """Return `W` plus the low-rank product, float32 `(in, out)`."""
        a, b = (self.lora_kernel_a, self.lora_kernel_b) if a is None else (a, b)
        if self.quantization_mode in MODES:
            kernel = QuantizedMatrix(self).floats()
        else:
            kernel = ops.stop_gradient(ops.cast(self._kernel, "float32"))
        return kernel + self._factor * ops.matmul(ops.cast(a, "float32"), ops.cast(b, "float32"))

    def _float_kernel(self, dtype: str):
        """Return the kernel with the adapter in it, `(in, out)`."""
        kernel = self._sum()
        if self.lora_magnitude is not None:
            kernel = kernel * (ops.cast(self.lora_magnitude, "float32") / self.column_norms())
        return ops.cast(kernel, dtype)

    def _merged(self) -> tuple:
        """Return the kernel with the adapter in it, its scale and its zero; None without them."""
        mode = self.quantization_mode
        if mode not in MODES:
            return self._float_kernel(self.variable_dtype), None, None
        kernel = self._float_kernel("float32")
        group = getattr(self, "_int4_block_size", None)
        if mode == "int4" and group not in (None, -1):
            quantize = keras.quantizers.abs_max_quantize_grouped_with_zero_point
            numbers, scale, zero = quantize(kernel, block_size=group, to_numpy=True)
        else:
            limits = (-127, 127) if mode == "int8" else (-8, 7)
            numbers, scale = keras.quantizers.abs_max_quantize(
                kernel, axis=0, value_range=limits, dtype="int8", to_numpy=True
            )
            scale, zero = np.squeeze(ops.convert_to_numpy(scale), 0), None
        if mode == "int4":
            numbers, *_ = keras.quantizers.pack_int4(numbers, axis=-1)
        return numbers, scale, zero

    def _activated(self, outputs):
        return outputs if self.activation is None else self.activation(outputs)


class ClippedDense(Dense):
    """A `Dense` whose inputs and outputs are clipped to ranges that no gradient trains.

    The ranges are weights, since checkpoints hold them. A new layer clips nothing.

    Source: Google DeepMind 2026, the published code of Gemma 4.
    """

    def build(self, input_shape):
        super().build(input_shape)
        self._tracker.unlock()
        for name in BOUNDS:
            limit = keras.initializers.Constant(-math.inf if name.endswith("min") else math.inf)
            setattr(self, name, self.add_weight((), limit, trainable=False, name=name))
        self._tracker.lock()

    def call(self, inputs, training=None):
        inputs = _within(inputs, self.input_min, self.input_max)
        outputs = super().call(inputs, training=training)
        return _within(outputs, self.output_min, self.output_max)

    @property
    def variable_serialization_spec(self):
        spec = super().variable_serialization_spec
        return {mode: [*names, *BOUNDS] for mode, names in spec.items()}

    def quantized_call(self, inputs, training=None):
        inputs = _within(inputs, self.input_min, self.input_max)
        outputs = super().quantized_call(inputs, training=training)
        return _within(outputs, self.output_min, self.output_max)


def _within(x, least, most):
    return ops.minimum(ops.maximum(x, ops.cast(least, x.dtype)), ops.cast(most, x.dtype))
