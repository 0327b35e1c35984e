"""Initializers of a model's weights, as its config says."""

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.kernels.programs import host_zeros


@keras.saving.register_keras_serializable(package="keras_transformer")
class HostZeros(keras.initializers.Zeros):
    """Zeros for weights that are about to be loaded, for which random numbers would take seconds.

    The zeros are made on the host: on a device each shape would need a compiled program. On PyTorch
    and JAX on a CPU they take no memory before something is written in their place.
    """

    def __call__(self, shape, dtype=None):
        if keras.distribution.distribution() is not None:
            return super().__call__(shape, dtype)
        return host_zeros(shape, keras.backend.standardize_dtype(dtype))


def initial_stack(initializer: keras.initializers.Initializer, shape, dtype=None):
    """Return initial values of several kernels of one size, in one array `(number, in, out)`."""
    values = initializer(shape, dtype=dtype)
    # Keras takes the first axis for the width of a convolution and multiplies the number of inputs
    # by it.
    scaled = isinstance(initializer, keras.initializers.VarianceScaling)
    return values * shape[0] ** 0.5 if scaled else values


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
