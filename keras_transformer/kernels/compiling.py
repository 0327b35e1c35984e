"""Compiled passes and loops of generation."""

import weakref
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.device import device, on
from keras_transformer.kernels.programs import (
    are_spread,
    compile_function,
    to_tensor,
    without_gradients,
)
from keras_transformer.support.sizes import RequestHistory

# Copies of weights in the memory order in which they are read, by the weights they were made from.
Packed = weakref.WeakValueDictionary | None

# On PyTorch and a GPU the host checks for finished rows once in this many steps: each check waits
# until the device has finished the steps already started.
STEPS_BETWEEN_LOOKS = 16
# On a GPU a pass of a shape is traced once it has occurred this often among recent passes.
PASSES_BEFORE = 3


def compile_pass(function: Callable, *models: keras.Model, packed: Packed = None) -> Callable:
    """Compile a pass as `compile_function` does; PyTorch traces it if that pays.

    PyTorch traces with packed weights, or on a GPU, where Python takes longer for the layers of a
    pass than the device does. There, tracing a shape takes as long as a few dozen passes, so it is
    done when a shape comes for the third time.
    """
    if not on("torch") or (packed is None and device().is_cpu):
        return compile_function(function, *models)
    import torch.utils._pytree as pytree

    from keras_transformer.kernels.torch_tracing.traced import TracedFunction

    traced = TracedFunction(function, *models, packed=packed)
    recent = RequestHistory()

    @without_gradients(*models)
    def run(*args, **static):
        if are_spread(models):
            return function(*args, **static)
        if packed is None:
            leaves, structure = pytree.tree_flatten(args)
            shapes = [x if x is None else (x.shape, x.dtype) for x in leaves]
            if not recent.often((structure, tuple(static.items()), *shapes), least=PASSES_BEFORE):
                return function(*args, **static)
        return traced(traced.weights_key(), *args, **static)

    return run


def compile_loop(
    finished: Callable,
    body: Callable,
    then: Callable,
    *models: keras.Model,
    packed: Packed = None,
    by_compiler: bool = False,
) -> Callable:
    """Return a compiled function that repeats `state = body(state, *args)` and ends with `then`.

    It is called with `(state, most, enough, *args)` and runs until `most` steps are made, or until
    `finished(state, *args)`, bool `(rows,)`, holds for `enough` rows. `body` must leave finished
    rows unchanged: on a GPU with PyTorch the host checks them only once in several steps, so extra
    steps may have been made. The given state must not be used again.

    On JAX and TensorFlow the loop is one program. On PyTorch the body is traced once for each shape
    into a flat list of operations, which on a GPU is captured as one, and Python runs the loop.
    `packed` is where it keeps copies of the weights in the memory order in which they are read.
    With `by_compiler` TorchInductor compiles the body instead.
    """
    if on("torch"):
        return _torch_loop(finished, body, then, models, packed, by_compiler)

    def loop(state, most, enough, *args):
        # XLA copies the whole cache of a single row several times in each step if the axis of the
        # rows is carried through the loop.
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

        def should_continue(steps, *carried):
            done = ops.sum(ops.cast(finished(widen(carried), *args), "int32"))
            return ops.logical_and(steps < most, done < enough)

        _, *last = ops.while_loop(
            should_continue,
            lambda steps, *carried: (steps + 1, *narrow(body(widen(carried), *args))),
            (ops.zeros((), "int32"), *narrow(state)),
        )
        return then(widen(last), *args)

    compiled = compile_function(loop, *models, donate=(0,), loops=True)

    def run(state, most: int, enough: int, *args):
        return compiled(state, *(to_tensor(np.array(x, "int32")) for x in (most, enough)), *args)

    return run


def _is_captured(state) -> bool:
    """Return True if the steps of a state are captured, since its tensors are on a CUDA device."""
    leaves = (x for x in keras.tree.flatten(state) if x is not None)
    return next(leaves).device.type == "cuda"


def _torch_loop(finished, body, then, models, packed, by_compiler) -> Callable:
    from keras_transformer.kernels.torch_tracing import captured
    from keras_transformer.kernels.torch_tracing.inductor import by_inductor
    from keras_transformer.kernels.torch_tracing.traced import TracedFunction

    step = TracedFunction(
        body, *models, packed=packed, compile=by_inductor if by_compiler else None
    )
    graphs = captured.CapturedLoop(step)

    def plain(state, most: int, enough: int, *args):
        while most > 0 and int(finished(state, *args).sum()) < enough:
            state, most = body(state, *args), most - 1
        return then(state, *args)

    @without_gradients(*models)
    def run(state, most: int, enough: int, *args):
        if are_spread(models):  # what gathers weights cannot be traced
            return plain(state, most, enough, *args)
        weights, as_graph = step.weights_key(), _is_captured(state)
        while most > 0 and int(finished(state, *args).sum()) < enough:
            if as_graph:
                count = min(most, STEPS_BETWEEN_LOOKS)
                state, most = graphs.run(weights, state, args, count), most - count
            else:
                state, most = step(weights, state, *args), most - 1
        state, outputs = then(state, *args)
        return state, graphs.apart(outputs, state) if as_graph else outputs

    return run
