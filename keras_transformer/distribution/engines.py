"""The engine of the backend: the one place of this folder that asks which backend it is."""

import keras

from keras_transformer.distribution.engine import Engine


def _chosen() -> Engine:
    backend = keras.backend.backend()
    if backend == "jax":
        from keras_transformer.distribution.jax_engine import JaxEngine

        return JaxEngine()
    if backend == "torch":
        from keras_transformer.distribution.torch_engine import TorchEngine

        return TorchEngine()
    from keras_transformer.distribution.tensorflow_engine import TensorflowEngine

    return TensorflowEngine()


ENGINE = _chosen()
