"""Packed weights: a second copy of a model's weights, in the order in which they are read."""

from weakref import WeakValueDictionary

import keras

from keras_transformer.kernels.device import on
from keras_transformer.kernels.values import is_on_cpu


def make_packed_predict_function(model: keras.Model) -> None:
    """Make the function that `predict` calls, for a model with packed weights.

    The function is traced for each batch shape into its bare operations, without the calls of
    layers around them, and matrix products read a copy of the weights in a library's own order.
    """
    import torch

    from keras_transformer.kernels.torch_tracing.traced import TracedFunction

    if model._traced is None:

        def outputs(x):
            return model(x, training=False)

        model._traced = TracedFunction(outputs, model, packed=WeakValueDictionary())
    traced, weights = model._traced, model._traced.weights_key()

    @torch.inference_mode()
    def predict_step(data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data[0])
        return traced(weights, keras.tree.map_structure(_tensor, x))

    model.predict_function = predict_step


def finds_largest_alone() -> bool:
    """Return True if a product with packed weights may be exact in its largest number alone.

    Only PyTorch has such a product (`torch_tracing/float16_prefilter.py`).
    """
    return on("torch")


def packs(model: keras.Model) -> bool:
    """Return whether a model runs where weights can be packed."""
    return on("torch") and is_on_cpu(model)


def _tensor(x):
    return x if x is None else keras.ops.convert_to_tensor(x)
