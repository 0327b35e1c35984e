"""Rematerialization (`keras.RematScope`) of calls with options and named tensors."""

import keras

from keras_transformer.kernels.recomputing import recomputed


class Rematerializable:
    """Mixin for a layer whose call takes more than one tensor.

    Keras passes all arguments of a call unchanged to the backend's remat. JAX then traces options
    (`training`) as if they were tensors, and TensorFlow refuses named arguments. Here the backend
    sees only the floating point tensors, by position.

    Make the sub-layers `with no_inner_remat()`, so that the layer is recomputed as a whole and its
    parts are not recomputed again within it.

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """

    def rematerialized_call(self, layer_call, *args, **kwargs):
        if self._remat_mode.mode in (None, "activations"):  # `activation` is only a name here
            return layer_call
        remat = super().rematerialized_call
        return recomputed(self, layer_call, args, kwargs, lambda f: remat(f, *args, **kwargs))


def no_inner_remat() -> keras.RematScope:
    """Return the scope for the parts of a layer, which must not be recomputed separately."""
    return keras.RematScope(mode=None)
