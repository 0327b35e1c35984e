"""Graphs compiled by TorchInductor, except for the operations of an optimizer."""

import logging
import operator
from collections.abc import Callable

import torch
from torch import fx
from torch.fx.passes.split_module import split_module

from keras_transformer.kernels.torch_tracing.simplify import is_view, is_written

_ON_LISTS = ("_foreach_", "_fused_adam")


def by_inductor(graph: fx.GraphModule, given: list) -> Callable:
    """Return a graph compiled by TorchInductor, or uncompiled if there is no compiler."""
    try:
        return _compiled(graph, given)
    except Exception as error:  # a missing compiler may raise any error
        logging.getLogger("keras_transformer").warning(
            "The steps of a shape run uncompiled, since TorchInductor failed: %s. "
            "`compile(jit_compile=False)` turns it off.",
            error,
        )
        return graph.forward


def _compiled(graph: fx.GraphModule, given: list) -> Callable:
    """Compile a graph; what an optimizer does with all weights in one operation runs as it is.

    Inductor would make an operation for each weight of it, and on a GPU an assertion of PyTorch
    2.11 failed on these.
    """
    apart = _of_optimizer(graph)
    if not apart:
        return torch._inductor.compile(graph, given)
    parts = split_module(graph, graph, lambda node: int(node in apart))
    values = dict(zip(parts.graph.find_nodes(op="placeholder"), given, strict=True))
    for node in parts.graph.find_nodes(op="get_attr"):
        values[node] = operator.attrgetter(node.target)(parts)
    (call,) = parts.graph.find_nodes(op="call_module", target="submod_0")
    compiled = torch._inductor.compile(parts.submod_0, [values[node] for node in call.args])
    parts.submod_0 = _Function(compiled)
    return parts.forward


class _Function(torch.nn.Module):
    def __init__(self, function: Callable):
        super().__init__()
        self.forward = function


def _of_optimizer(graph: fx.GraphModule) -> set[fx.Node]:
    """Return the operations on lists of tensors, and those that must come after one of them."""
    apart: set[fx.Node] = set()
    read: set[fx.Node] = set()
    written: set[fx.Node] = set()
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        given = node.all_input_nodes
        changed = {_memory_of(x) for x in given if is_written(node, x)}
        used = {_memory_of(x) for x in given}
        if (
            (isinstance(node.target, torch._ops.OpOverload) and _is_on_lists(node.target))
            or any(x in apart for x in given)
            or used & written
            or changed & read
        ):
            apart.add(node)
            read |= used
            written |= changed
    return apart


def _is_on_lists(operation: torch._ops.OpOverload) -> bool:
    return operation.overloadpacket.__name__.startswith(_ON_LISTS)


def _memory_of(node: fx.Node) -> fx.Node:
    """Return the node that made the memory in which a result lies."""
    while node.op == "call_function" and (node.target is operator.getitem or is_view(node)):
        node = node.args[0]
    return node
