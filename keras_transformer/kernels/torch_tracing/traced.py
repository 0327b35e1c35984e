"""PyTorch: a function of Keras layers as a flat list of tensor operations.

A decoding step of a small batch is a few hundred small operations. Called through Keras's layers,
Python takes longer for them than the processor. Traced, what is left is the operations.

On a CPU the products with weights then go to oneDNN, which reads a weight at the speed of the
memory on every processor; the library that `torch.matmul` calls does so on Intel's alone.
"""

import weakref
from collections.abc import Callable

import keras
import torch.utils._pytree as pytree
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from keras_transformer.kernels.programs import PROGRAMS, TRACING, Compiled
from keras_transformer.kernels.torch_tracing.onednn import OneDNN
from keras_transformer.kernels.torch_tracing.simplify import (
    quickly_called,
    simplified,
    without_twins,
)


class TracedFunction:
    """`function` of tensors without its Python, traced anew for other shapes or weights.

    What it does must not depend on the values in them. With `packed` a copy of the weights is kept
    in oneDNN's own order (CPU only): one for all functions of the same models that it is given to,
    for as long as a trace has it.
    """

    def __init__(
        self,
        function: Callable,
        *models: keras.Model,
        packed: weakref.WeakValueDictionary | None = None,
    ):
        self.function = function
        self.models = models
        self._packed = packed
        self._weights_key: tuple = ()

    def weights_key(self) -> tuple:
        """What changes when the models' weights are others, and packed ones when their values."""
        weights = [weight for model in self.models for weight in model.weights]
        packed = self._packed is not None or any(w.dtype == "int8" for w in weights)
        versions = tuple(w.value._version for w in weights) if packed else ()
        return (*map(id, weights), *versions)

    def __call__(self, weights_key: tuple, *args, **static):
        leaves, structure = pytree.tree_flatten(args)
        key = (
            structure,
            tuple(static.items()),
            tuple(x if x is None else (x.shape, x.stride(), x.dtype, x.device) for x in leaves),
            weights_key,
        )
        if weights_key != self._weights_key:
            with TRACING:  # traces of weights that are no more
                PROGRAMS.forget(self)
                self._weights_key = weights_key
        return PROGRAMS.get(self, key, lambda: self._trace(leaves, structure, static))(*leaves)

    def _trace(self, leaves: list, structure, static: dict) -> Compiled:
        found = []

        def flat(*leaves):
            outputs, result = pytree.tree_flatten(
                self.function(*pytree.tree_unflatten(leaves, structure), **static)
            )
            found.append(result)
            return [x if x is None else keras.ops.convert_to_tensor(x) for x in outputs]

        # Nothing is computed: the function writes the cache in place, and a copy would be as large.
        # In a context with a mode: else `make_fx` makes a mode for each operation.
        with tracing(TracingContext(FakeTensorMode(allow_non_fake_inputs=True))):
            graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
        graph = simplified(graph)
        OneDNN(graph, self._packed, self._weights_key).use()
        graph = quickly_called(without_twins(graph))
        graph.recompile()
        run, result = graph.forward, found[-1]
        return Compiled(lambda *leaves: pytree.tree_unflatten(run(*leaves), result), compiled=True)
