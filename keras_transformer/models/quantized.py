"""Models whose weights are quantized: what they cannot do, told before it is tried."""

import contextlib
import gc
import warnings
from collections.abc import Iterator

import keras

_LEARNS = "float8"  # Keras's, for training


def mode_of(model: keras.Model) -> str | None:
    """What a model was quantized to, `"int8"` for example; None for one that is not quantized."""
    modes = (getattr(layer, "quantization_mode", None) for layer in model._flatten_layers())
    return next((mode for mode in modes if mode is not None), None)


def refuse_quantized(model: keras.Model, todo: str = "save or copy it before `quantize`") -> None:
    """ValueError for a quantized model, that says what to do.

    By default for one that would be made again as one that is not quantized.
    """
    mode = mode_of(model)
    if mode is not None:
        what = "task" if hasattr(model, "backbone") else "backbone"
        raise ValueError(f"The {what} is quantized to {mode}: {todo}.")


def refuse_training(model: keras.Model) -> None:
    """ValueError for a model whose matrices are integers, and would not learn."""
    if mode_of(model) != _LEARNS:
        refuse_quantized(model, "its matrices would not learn. Train it before `quantize`")


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """The scope of Keras's `quantize`, which collects garbage after each layer.

    What was there before is left out of that: with the modules of a backend it takes a fifth of a
    second, nine tenths of the time in which GPT-2 is quantized. Nor does Keras warn of each layer
    without a matrix.
    """
    gc.freeze()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
            yield
    finally:
        gc.unfreeze()
