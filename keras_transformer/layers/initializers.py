"""Initializers of a model's weights, as its config says."""

import keras
import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.kernels.programs import to_tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class HostZeros(keras.initializers.Zeros):
    """Zeros for weights that are about to be loaded, for which random numbers would take seconds.

    The zeros are made on the host: on a device each shape would need a compiled program.
    """

    def __call__(self, shape, dtype=None):
        if keras.distribution.distribution() is not None:
            return super().__call__(shape, dtype)
        return to_tensor(np.zeros(shape, "float32"), dtype)


def kernel_initializer(
    config: TransformerConfig, initializer=None
) -> keras.initializers.Initializer:
    """Return the initializer of projections: the given one, or else the config's."""
    if initializer is not None:
        return keras.initializers.get(initializer)
    if config.initializer_range is None:
        return keras.initializers.GlorotUniform()
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)


def embedding_initializer(
    config: TransformerConfig, initializer=None
) -> keras.initializers.Initializer:
    """Return the initializer of embeddings: the given one, or else the config's."""
    if initializer is not None:
        return keras.initializers.get(initializer)
    stddev = config.initializer_range or config.hidden_dim**-0.5
    return keras.initializers.RandomNormal(stddev=stddev)
