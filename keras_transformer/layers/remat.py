"""Rematerialization (`keras.RematScope`) of calls with options and named tensors."""

import keras

from keras_transformer.kernels.recomputing import recomputed


class Rematerializable:
    """Mixin for a layer whose call takes more than one tensor.

    Keras hands all arguments of a call to the backend's remat as they are. JAX then traces the
    options (`training`) as if they were tensors, and TensorFlow refuses named arguments. Here the
    backend sees the floating point tensors alone, by place.

    Make the sub-layers `with one_piece()`: the layer is recomputed as a whole, its parts not once
    more within it.

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """

    def rematerialized_call(self, layer_call, *args, **kwargs):
        if self._remat_mode.mode in (None, "activations"):  # `activation` is but a name here
            return layer_call
        remat = super().rematerialized_call
        return recomputed(self, layer_call, args, kwargs, lambda f: remat(f, *args, **kwargs))


def one_piece() -> keras.RematScope:
    """The scope for the parts of a layer, which are not recomputed by themselves."""
    return keras.RematScope(mode=None)
