"""The values that the weights of a config begin with."""

import keras
import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.kernels.programs import to_tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class HostZeros(keras.initializers.Zeros):
    """Zeros, for weights that are about to be loaded: random numbers would take seconds.

    They are made on the host: on a device each shape would be a compiled program.
    """

    def __call__(self, shape, dtype=None):
        if keras.distribution.distribution() is not None:
            return super().__call__(shape, dtype)
        return to_tensor(np.zeros(shape, "float32"), dtype)


def kernel_initializer(
    config: TransformerConfig, initializer=None
) -> keras.initializers.Initializer:
    """The initializer of every projection: that of the config, or the one that is given."""
    if initializer is not None:
        return keras.initializers.get(initializer)
    if config.initializer_range is None:
        return keras.initializers.GlorotUniform()
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)


def embedding_initializer(
    config: TransformerConfig, initializer=None
) -> keras.initializers.Initializer:
    """The initializer of every embedding, likewise."""
    if initializer is not None:
        return keras.initializers.get(initializer)
    stddev = config.initializer_range or config.hidden_dim**-0.5
    return keras.initializers.RandomNormal(stddev=stddev)
