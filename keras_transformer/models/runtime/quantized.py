"""Quantized models: early errors for operations that they do not support."""

import contextlib
import gc
import warnings
from collections.abc import Iterator

import keras

_LEARNS = "float8"  # Keras's mode for training


def mode_of(model: keras.Model) -> str | None:
    """Return the quantization mode of a model, such as `"int8"`; None if it is not quantized."""
    modes = (getattr(layer, "quantization_mode", None) for layer in model._flatten_layers())
    return next((mode for mode in modes if mode is not None), None)


def refuse_quantized(model: keras.Model, todo: str = "save or copy it before `quantize`") -> None:
    """Raise ValueError if the model is quantized, with advice on what to do.

    The default advice is for operations that would recreate the model without quantization.
    """
    mode = mode_of(model)
    if mode is not None:
        what = "task" if hasattr(model, "backbone") else "backbone"
        raise ValueError(f"The {what} is quantized to {mode}: {todo}.")


def refuse_training(model: keras.Model) -> None:
    """Raise ValueError if the model's matrices are integers, which cannot be trained."""
    if mode_of(model) != _LEARNS:
        refuse_quantized(model, "its matrices would not learn. Train it before `quantize`")


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
