"""Choice of a task's fastest dtype on this machine: `optimize` measures all that work here."""

from keras_transformer.optimizing.modes import MODES
from keras_transformer.optimizing.result import Measured, Optimized
from keras_transformer.optimizing.run import optimize

__all__ = ["MODES", "Measured", "Optimized", "optimize"]


def __dir__() -> list[str]:
    return __all__
