"""Rematerialization (`keras.RematScope`) of calls with options and named tensors."""

import keras

from keras_transformer.distribution.layout import spreads_weights, whole_weight
from keras_transformer.distribution.spread import PARTS
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

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self._remat_mode is not None and self._remat_mode.mode is None:
            self._remat_mode = None  # a part of a layer, which Keras then calls directly

    def rematerialized_call(self, layer_call, *args, **kwargs):
        if not recomputes(self):
            return layer_call
        remat = super().rematerialized_call
        value_of = whole_values(self) if spreads_weights() else lambda variable: variable.value
        return recomputed(
            self, layer_call, args, kwargs, lambda f: remat(f, *args, **kwargs), value_of
        )


def recomputes(layer) -> bool:
    """Return whether a layer is recomputed as a whole for the gradient."""
    # `activation` is only a name here
    return layer._remat_mode is not None and layer._remat_mode.mode not in (None, "activations")


def with_whole_weights(layer, call, *args, **kwargs):
    """Call a layer whose weights devices share, with weights that are gathered for this call.

    In the backward pass they are gathered again; all else is kept.

    Args:
        layer: the layer, a block.
        call: function of the further arguments that calls it.
        *args: arguments of the call.
        **kwargs: arguments of the call by name.
    """
    part = PARTS.get(layer)  # on PyTorch
    if part is not None and not getattr(args[0], "is_meta", True):  # neither a graph nor shapes
        return part.run(call, *args, **kwargs)
    # While a model decodes there is no backward pass, and XLA gathers by itself.
    if not spreads_weights() or recomputes(layer) or kwargs.get("cache") is not None:
        return call(*args, **kwargs)
    import jax

    if not isinstance(args[0], jax.core.Tracer):
        return call(*args, **kwargs)

    def remat(function):
        # What gathers a weight is not kept.
        return jax.checkpoint(
            function, policy=lambda primitive, *_, **__: primitive.name != "sharding_constraint"
        )

    return recomputed(layer, call, args, kwargs, remat, whole_values(layer))(*args, **kwargs)


def whole_value(layer, variable):
    """Return the value of a variable of a layer, in a compiled step gathered from all devices."""
    value = variable.value
    if not spreads_weights():
        return value
    import jax

    return whole_values(layer)(variable) if isinstance(value, jax.core.Tracer) else value


def whole_values(layer):
    """Return a function from a variable of a layer to its gathered value.

    It is gathered in the dtype of the computation.
    """
    dtypes = {
        id(variable): part.compute_dtype
        for part in layer._flatten_layers()
        for variable in (*part._trainable_variables, *part._non_trainable_variables)
    }

    def value_of(variable):
        value = variable.value
        dtype = dtypes.get(id(variable), variable.dtype)
        if variable._autocast and keras.backend.is_float_dtype(variable.dtype):
            value = keras.ops.cast(value, dtype)
        layout = variable._layout
        return value if layout is None else whole_weight(value, layout)

    return value_of


def no_inner_remat() -> keras.RematScope:
    """Return the scope for the parts of a layer, which must not be recomputed separately."""
    return keras.RematScope(mode=None)
