"""Function of Keras layers on PyTorch as a flat list of tensor operations.

A decoding step of a small batch is a few hundred small operations. If they are called by Keras's
layers, Python takes longer than the operations themselves. A trace keeps only the operations.

On a CPU each product with a weight then goes to the library that is fastest for it.
"""

import operator
import weakref
from collections.abc import Callable

import keras
import torch
import torch.utils._pytree as pytree
from torch import fx

from keras_transformer.kernels.programs import PROGRAMS, TRACING, Compiled
from keras_transformer.kernels.torch_tracing.fastest_products import FastestProducts
from keras_transformer.kernels.torch_tracing.fused import fuse_normalizations
from keras_transformer.kernels.torch_tracing.recorder import record_operations
from keras_transformer.kernels.torch_tracing.simplify import (
    eliminate_common_subexpressions,
    simplified,
    use_fast_calls,
)


class TracedFunction:
    """Function of tensors without its Python code, traced anew for other shapes or weights.

    Args:
        function: function of nested structures of tensors to such structures. What it does must not
            depend on the values of the tensors.
        *models: the models whose weights it reads.
        packed: where copies of the weights in a library's own memory order are kept (CPU only),
            as long as a trace uses them. Functions of the same models may share it. None keeps no
            copies.
        compile: function of a graph and its inputs to a faster callable. It gets traces without
            oneDNN's products, with the weights as inputs.
    """

    def __init__(
        self,
        function: Callable,
        *models: keras.Model,
        packed: weakref.WeakValueDictionary | None = None,
        compile: Callable | None = None,
    ):
        self.function = function
        self.models = models
        self._packed = packed
        self._compile = compile
        self._weights_key: tuple = ()

    def weights_key(self) -> tuple:
        """Return a key that changes if weights are replaced or, if packed, change in value."""
        weights = [weight for model in self.models for weight in model.weights]
        packed = self._packed is not None or any(w.dtype == "int8" for w in weights)
        versions = tuple(w.value._version for w in weights) if packed else ()
        return (*map(id, weights), *versions)

    def __call__(self, weights_key: tuple, *args, **static):
        return self.program(weights_key, *args, **static)(*pytree.tree_leaves(args))

    def program(self, weights_key: tuple, *args, **static) -> Compiled:
        """Return the trace for these arguments, a function of their leaves, without running it."""
        leaves, structure = pytree.tree_flatten(args)
        key = (
            structure,
            tuple(static.items()),
            tuple(x if x is None else (x.shape, x.stride(), x.dtype, x.device) for x in leaves),
            weights_key,
        )
        if weights_key != self._weights_key:
            with TRACING:  # traces of weights that have been replaced
                PROGRAMS.forget(self)
                self._weights_key = weights_key
        return PROGRAMS.get(self, key, lambda: self._trace(leaves, structure, static))

    def _trace(self, leaves: list, structure, static: dict) -> Compiled:
        found = []

        def flat(*leaves):
            outputs, result = pytree.tree_flatten(
                self.function(*pytree.tree_unflatten(leaves, structure), **static)
            )
            found.append(result)
            return [x if x is None else keras.ops.convert_to_tensor(x) for x in outputs]

        # Nothing is computed: the function would write to the cache in place.
        graph = record_operations(flat, leaves)
        device = next((x.device for x in leaves if x is not None), None)
        on_gpu = device is not None and device.type != "cpu"
        graph = fuse_normalizations(simplified(graph), on_gpu)
        result = found[-1]
        if self._compile is not None:
            graph, given = _with_inputs_alone(graph, leaves)
            compiled = self._compile(graph, [*given, *(x for x in leaves if x is not None)])
            return Compiled(
                lambda *leaves: pytree.tree_unflatten(
                    compiled(*given, *(x for x in leaves if x is not None)), result
                ),
                compiled=True,
            )
        FastestProducts(graph, self._packed, self._weights_key).use()
        graph = use_fast_calls(eliminate_common_subexpressions(graph))
        graph.recompile()
        run = graph.forward
        return Compiled(lambda *leaves: pytree.tree_unflatten(run(*leaves), result), compiled=True)


def _with_inputs_alone(graph: fx.GraphModule, leaves: list) -> tuple[fx.GraphModule, list]:
    """Return a graph with weights and constants as its first inputs, and these inputs.

    A compiler would take small tensors of a graph as constants. Inputs that are None are removed.
    """
    given: list[torch.Tensor] = []
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, leaf in zip(placeholders, leaves, strict=True):
        if leaf is None:
            graph.graph.erase_node(node)
    first = next(iter(graph.graph.nodes))
    for node in [node for node in graph.graph.nodes if node.op == "get_attr"]:
        with graph.graph.inserting_before(first):
            weight = graph.graph.placeholder(f"weight_{len(given)}")
        weight.meta = dict(node.meta)
        given.append(operator.attrgetter(node.target)(graph).detach())
        node.replace_all_uses_with(weight)
        graph.graph.erase_node(node)
    return fx.GraphModule({}, graph.graph), given
