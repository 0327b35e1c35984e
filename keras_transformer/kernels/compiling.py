"""Passes and loops of generation, compiled."""

import weakref
from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.kernels.device import on
from keras_transformer.kernels.programs import compile_function

# Copies of weights in the order in which they are read, by what they are of.
Packed = weakref.WeakValueDictionary | None


def compile_pass(function: Callable, *models: keras.Model, packed: Packed = None) -> Callable:
    """`compile_function`. On PyTorch it runs as it is, or traced if there are packed weights."""
    if packed is None or not on("torch"):
        return compile_function(function, *models)
    import torch

    from keras_transformer.kernels.torch_tracing.traced import TracedFunction

    traced = TracedFunction(function, *models, packed=packed)
    return torch.inference_mode()(
        lambda *args, **static: traced(traced.weights_key(), *args, **static)
    )


def compile_loop(
    condition: Callable, body: Callable, then: Callable, *models: keras.Model, packed: Packed = None
) -> Callable:
    """`while condition(state, *args): state = body(state, *args)`, compiled; then `then(...)`.

    The state given is not to be used again. On JAX and TensorFlow the loop is one program. On
    PyTorch the body is traced once for each shape into a flat list of operations, and Python runs
    the loop. `packed` is where it keeps a copy of the weights in the order in which they are read.
    """
    if on("torch"):
        import torch

        from keras_transformer.kernels.torch_tracing.traced import TracedFunction

        step = TracedFunction(body, *models, packed=packed)

        @torch.inference_mode()
        def run(state, *args):
            weights = step.weights_key()
            while bool(condition(state, *args)):
                state = step(weights, state, *args)
            return then(state, *args)

        return run

    def loop(state, *args):
        # XLA copies the whole cache of a single row several times in each step, if the axis of
        # the rows is carried through the loop.
        shapes = [
            x.shape if len(x.shape) == 4 and x.shape[0] == 1 else None
            for x in keras.tree.flatten(state)
        ]

        def narrow(state):
            return [
                x if shape is None else ops.reshape(x, shape[1:])
                for x, shape in zip(keras.tree.flatten(state), shapes, strict=True)
            ]

        def widen(carried):
            tensors = [
                x if shape is None else ops.reshape(x, shape)
                for x, shape in zip(carried, shapes, strict=True)
            ]
            return keras.tree.pack_sequence_as(state, tensors)

        last = ops.while_loop(
            lambda *carried: condition(widen(carried), *args),
            lambda *carried: narrow(body(widen(carried), *args)),
            narrow(state),
        )
        return then(widen(last), *args)

    return compile_function(loop, *models, donate=(0,), loops=True)
