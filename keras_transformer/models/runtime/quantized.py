"""Quantized models: how they are loaded, and early errors for what they do not support."""

import contextlib
import gc
import math
import warnings
from collections.abc import Iterator

import keras
import numpy as np

from keras_transformer.config.integer_dtype import IntegerDtype
from keras_transformer.kernels.process import drop_replaced_tensors, release_memory, save_memory

_LEARNS = "float8"  # Keras's mode for training
# Bytes of floats that are freed before they are returned to the system.
_AT_ONCE = 2**28


def quantization_of(dtype: IntegerDtype) -> keras.quantizers.QuantizationConfig:
    """Return the config of Keras's `quantize` for a dtype."""
    if dtype.mode == "int8":
        return keras.quantizers.Int8QuantizationConfig()
    return keras.quantizers.Int4QuantizationConfig(block_size=dtype.group or -1)


class LayerByLayer:
    """Quantizes each layer of a model as soon as its variables have their values.

    The model may have been made with `layers.arguments.HostZeros`, which take no memory before
    they are replaced, on PyTorch and JAX on a CPU. It then never has all of its floats in memory.

    Args:
        model: the model.
        dtype: the dtype of its weights.
        owner: a model that contains it, if there is one.
    """

    def __init__(self, model: keras.Model, dtype: IntegerDtype, owner: keras.Model | None = None):
        check_quantizes(model)
        save_memory()
        self._whole = model if owner is None else owner
        self._config = quantization_of(dtype)
        self._freed = 0
        self._missing = {
            layer: {id(variable) for variable in layer.variables}
            for layer in model._flatten_layers()
            if hasattr(layer, "float_states")
        }
        self._layers = {i: layer for layer, ids in self._missing.items() for i in ids}

    def assigned(self, variable: keras.Variable) -> None:
        """Note that a variable has its value, and quantize its layer if it was the last one."""
        # Taken out, since a later variable may have the id of one that no longer exists.
        layer = self._layers.pop(id(variable), None)
        if layer is None:
            return
        self._missing[layer].discard(id(variable))
        if self._missing[layer]:
            return
        self._freed += sum(4 * math.prod(each.shape) for each in layer.variables)
        with quickly():
            layer.quantize(self._config.mode, config=self._config)
        if self._freed > _AT_ONCE:
            self.release()

    def release(self) -> None:
        """Free the floats of the layers that were quantized. Call it after the last variable."""
        self._freed = 0
        drop_replaced_tensors(self._whole)
        gc.collect()  # variables of Keras are in cycles
        release_memory()


def check_quantizes(model: keras.Model) -> None:
    """Raise ValueError if a model has weights that `quantize` would leave as they are."""
    if any(getattr(layer, "has_experts", False) for layer in model._flatten_layers()):
        raise ValueError(
            "A model with experts is not quantized: the experts are most of its weights, and "
            "would stay as they are. Load it with dtype='bfloat16' for half of the memory."
        )


def mode_of(model: keras.Model) -> str | None:
    """Return the quantization mode of a model, such as `"int8"`; None if it is not quantized."""
    modes = (getattr(layer, "quantization_mode", None) for layer in model._flatten_layers())
    return next((mode for mode in modes if mode is not None), None)


def refuse_quantized(model: keras.Model, todo: str = "save or copy it before `quantize`") -> None:
    """Raise ValueError if the model is quantized, with advice on what to do.

    The default advice is for operations that would recreate the model without quantization.
    """
    mode = mode_of(model)
    scheme = getattr(getattr(model, "backbone", model), "quantized_by", None)
    if mode is not None and scheme is not None:
        raise ValueError(
            f"The model's matrices are {mode}, as its file has them ({scheme}). Load it with "
            "`dtype='float32'`, or `'bfloat16'` for half of the memory, which unpacks them."
        )
    if mode is not None:
        what = "task" if hasattr(model, "backbone") else "backbone"
        raise ValueError(f"The {what} is quantized to {mode}: {todo}.")


def refuse_rounded(model: keras.Model, todo: str = "save or copy it before `quantize`") -> None:
    """Raise ValueError if `quantize` rounded the model. Matrices of a quantized file are exact."""
    if getattr(getattr(model, "backbone", model), "quantized_by", None) is None:
        refuse_quantized(model, todo)


def float_kernels(model: keras.Model) -> dict[int, np.ndarray]:
    """Return the kernels that int4 and int8 dense layers stand for, by the `id` of the variable."""
    found = {}
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dense) and layer.quantization_mode in ("int4", "int8"):
            found[id(layer._kernel)] = _float_kernel(layer)
    return found


def _float_kernel(layer: keras.layers.Dense) -> np.ndarray:
    numbers = keras.ops.convert_to_tensor(layer._kernel)
    if layer.quantization_mode == "int4":
        numbers = keras.quantizers.unpack_int4(numbers, layer.units, axis=-1)
    numbers = keras.ops.convert_to_numpy(numbers).astype("float32")
    scale = keras.ops.convert_to_numpy(keras.ops.cast(layer.kernel_scale, "float32"))
    if scale.ndim == 1:
        return numbers / scale
    groups = keras.ops.convert_to_numpy(layer.g_idx).astype(int)
    numbers -= keras.ops.convert_to_numpy(layer.kernel_zero).astype("float32")[groups]
    numbers *= scale[groups]
    return numbers


def refuse_training(model: keras.Model) -> None:
    """Raise ValueError if matrices that should learn are integers.

    Beside adapters, which `enable_lora` adds, the matrices of the backbone need not learn.
    """
    if mode_of(model) in (None, _LEARNS):
        return
    backbone = getattr(model, "backbone", model)
    if not any(getattr(layer, "lora_enabled", False) for layer in backbone._flatten_layers()):
        refuse_quantized(
            model,
            "its matrices would not learn. Train it before `quantize`, or call `enable_lora` of "
            "the task, which trains adapters beside them",
        )
    of_backbone = {id(layer) for layer in backbone._flatten_layers()}
    own = [layer for layer in model._flatten_layers() if id(layer) not in of_backbone]
    of_head = [layer.path for layer in own if getattr(layer, "quantization_mode", None) is not None]
    if of_head:
        raise ValueError(
            f"The head's {of_head[-1]!r} is quantized to {mode_of(model)}, and would not learn. "
            "Load the task again and quantize the backbone alone: `task.backbone.quantize(...)`."
        )


def keep_float_states(model: keras.Model, keep: bool) -> None:
    """Set whether states stay as they are in products with quantized matrices.

    They do while a model has adapters: rounding is noise, of which the gradient knows nothing.
    """
    for layer in model._flatten_layers():
        if hasattr(layer, "float_states"):
            layer.float_states = keep


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Speed up and silence Keras's `quantize`, which collects garbage after each layer.

    Existing objects are excluded from these collections: with a backend's modules each takes a
    fifth of a second, nine tenths of the time to quantize GPT-2. Keras's warning about each layer
    without a matrix is suppressed.
    """
    gc.freeze()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
            yield
    finally:
        gc.unfreeze()
