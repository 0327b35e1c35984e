"""Rematerialization (`keras.RematScope`) of calls with options and named tensors."""

import functools

import keras


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
        leaves = keras.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if _is_float_tensor(leaf)]

        @functools.wraps(layer_call)
        def call_with(*tensors):
            filled = list(leaves)
            for i, tensor in zip(places, tensors, strict=True):
                filled[i] = tensor
            all_args, all_kwargs = keras.tree.pack_sequence_as((args, kwargs), filled)
            return layer_call(*all_args, **all_kwargs)

        call = super().rematerialized_call(call_with, *args, **kwargs)
        return lambda *_, **__: call(*(leaves[i] for i in places))


def one_piece() -> keras.RematScope:
    """The scope for the parts of a layer, which are not recomputed by themselves."""
    return keras.RematScope(mode=None)


def _is_float_tensor(leaf) -> bool:
    return keras.ops.is_tensor(leaf) and keras.backend.is_float_dtype(
        keras.backend.standardize_dtype(leaf.dtype)
    )
