"""Calls whose activations are recomputed for the gradient, with the same random numbers."""

import contextlib
import contextvars
import functools
from contextlib import AbstractContextManager

import keras

from keras_transformer.config.structure import is_average
from keras_transformer.kernels.device import on
from keras_transformer.kernels.values import is_traced

_recomputed: contextvars.ContextVar[bool] = contextvars.ContextVar("recomputed", default=False)


def needs_seeds() -> bool:
    """Return True if random draws need seeds to be repeated, as no generator can be reset.

    PyTorch resets its own generator for a recomputation, but not where a step is traced.
    """
    return _recomputed.get() and is_traced()


def recomputed(
    layer,
    layer_call,
    args: tuple,
    kwargs: dict,
    remat=keras.remat,
    value_of=lambda variable: variable.value,
):
    """Return a call of `args` and `kwargs` whose activations are not kept for the gradient.

    They are recomputed when the gradient is taken, with the same dropout.

    Args:
        layer: layer whose variables `layer_call` reads.
        layer_call: function of `args` and `kwargs`.
        args: tuple, any structure of tensors and other values.
        kwargs: dict, further arguments by name.
        remat: function that makes a function of tensors recompute. Defaults to `keras.remat`.
        value_of: function that returns the value of a variable of the layer, within the part that
            is recomputed.
    """
    leaves = keras.tree.flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if _is_float_tensor(leaf)]
    # The state of dropout is passed in and out as a tensor: changed inside, it would leak from
    # JAX's trace, and other backends would recompute with other numbers than first drawn. The same
    # holds for moving averages, which would be updated twice.
    moved = [
        variable
        for variable in layer.non_trainable_variables
        if "seed_generator" in variable.path or is_average(variable.path)
    ]
    # Unless XLA compiles the step, TensorFlow may recompute after the optimizer has already
    # changed a weight, so the values of the first pass are passed in. TensorFlow also computes
    # gradients only for values that are passed in, not for variables that an argument reads.
    read = [v for leaf in leaves for v in getattr(leaf, "read_variables", ())]
    carried = [*layer.variables, *read] if on("tensorflow") else moved

    @functools.wraps(layer_call)
    def call_with(states, *tensors):
        filled = list(leaves)
        for i, tensor in zip(places, tensors, strict=True):
            filled[i] = tensor
        all_args, all_kwargs = keras.tree.pack_sequence_as((args, kwargs), filled)
        # An inner scope does not see the values of an outer one; PyTorch has an outer scope only in
        # a trace.
        outer = (*layer.variables, *read) if not on("torch") or is_traced() else ()
        inside = {id(v): (v, value_of(v)) for v in outer}
        inside |= {id(v): (v, s) for v, s in zip(carried, states, strict=True)}
        mapping = list(inside.values())
        token = _recomputed.set(True)
        try:
            with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                outputs = layer_call(*all_args, **all_kwargs)
        finally:
            _recomputed.reset(token)
        return outputs, [scope.get_current_value(v) for v in moved], scope.losses

    call = remat(call_with)

    def call_and_update(*_, **__):
        values = [_value(v) for v in carried]
        if on("torch"):  # PyTorch assigns in place
            values = [keras.ops.copy(value) for value in values]
        with _to_the_end():
            outputs, states, losses = call(values, *(leaves[i] for i in places))
        for loss in losses:
            layer.add_loss(loss)
        for variable, state in zip(moved, states, strict=True):
            variable.assign(state)
        return outputs

    return call_and_update


def _to_the_end() -> AbstractContextManager:
    """Let PyTorch recompute calls to their ends.

    By default an exception ends a recomputation after the last tensor that is needed. Its frames
    refer to each other, so that what was recomputed stays in memory until Python looks for cycles.
    """
    if not on("torch") or is_traced():
        return contextlib.nullcontext()
    from torch.utils.checkpoint import set_checkpoint_early_stop

    return set_checkpoint_early_stop(False)


def _value(variable):
    """Return the present value of a variable, also within a step's scope, in its own dtype."""
    value = keras.ops.convert_to_tensor(variable.value)
    cast = keras.backend.standardize_dtype(value.dtype) != variable.dtype
    return keras.ops.convert_to_tensor(variable._value) if cast else value


def _is_float_tensor(leaf) -> bool:
    return keras.ops.is_tensor(leaf) and keras.backend.is_float_dtype(
        keras.backend.standardize_dtype(leaf.dtype)
    )
