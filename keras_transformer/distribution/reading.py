"""The context in which a call finds the weights of a model that processes on PyTorch share."""

import contextlib

import keras

from keras_transformer.distribution.spread import MESHES, MODELS, shared_by


def weights_for_reading(model: keras.Model) -> contextlib.AbstractContextManager:
    """Return a context in which a forward pass of a model finds its weights.

    All processes that share them enter it together. The first one of a model on a mesh with an axis
    `"model"` cuts the weights.

    Raises:
        ValueError: if the processes of that axis cannot share the layers of the model.
    """
    spread = MODELS.get(model)
    if spread is None and shared_by() > 1:
        from keras_transformer.distribution.tensor_parallel import share

        spread = share(model, *MESHES)
    return contextlib.nullcontext() if spread is None else spread.for_reading()
