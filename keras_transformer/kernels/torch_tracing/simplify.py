"""A flat list of tensor operations with fewer of them, and each called quickly."""

import torch
from torch import fx

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default)
VIEWS = (*_RESHAPES, _aten.expand.default)


def simplified(graph: fx.GraphModule) -> fx.GraphModule:
    """Without operations that are there twice, change nothing, or give the same in each call."""
    leaving = _leaving(graph)
    for node in graph.graph.nodes:
        if node.target in _RESHAPES and node.args[0].target in _RESHAPES:
            source = node.args[0].args[0]
            if _in_order(source):
                node.args = (source, node.args[1])
        same_shape = node.target in VIEWS and shape_of(node) == shape_of(node.args[0])
        copied = node.target is _aten.lift_fresh_copy.default and node not in leaving
        if same_shape or copied:
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    _put_nothing_in_place(graph)
    _fold_constants(graph)
    return without_twins(graph)


def without_twins(graph: fx.GraphModule) -> fx.GraphModule:
    """Without what nothing uses, or what is computed twice of the same."""
    graph.graph.eliminate_dead_code()
    leaving, seen = _leaving(graph), {}
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            key = node.target
        elif _is_pure(node) and node not in leaving:
            # A repr, since 1, 1.0 and True are equal and no list can be hashed.
            key = repr((node.target, node.args, sorted(node.kwargs.items())))
        else:
            continue
        twin = seen.setdefault(key, node)
        if twin is not node:
            node.replace_all_uses_with(twin)
            graph.graph.erase_node(node)
    return graph


def quickly_called(graph: fx.GraphModule) -> fx.GraphModule:
    """Operations as PyTorch's methods and functions of the same names: half the time of a call."""
    for node in graph.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "aten":
            continue
        name = node.target.overloadpacket.__name__
        if name == "view" or node.target is _aten.index_copy_.default:
            node.op, node.target = "call_method", name
        elif name == "gelu":
            node.target = torch.nn.functional.gelu
        elif not name.startswith("_") or name == "_softmax":
            node.target = getattr(torch, name, node.target)
    return graph


def _put_nothing_in_place(graph: fx.GraphModule) -> None:
    """What is done in place of a number that is new gives another one: so it may have twins.

    Of one dtype alone: in place the first one's stays, and else the larger one is taken.
    """
    for node in graph.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
            continue
        source, name = node.args[0], node.target.overloadpacket.__name__
        packet = getattr(_aten, name.removesuffix("_"), None)
        new = _is_pure(source) and not _is_view(source) and set(source.users) == {node}
        alike = len({_dtype(x) for x in node.all_input_nodes}) == 1
        if new and alike and name.endswith("_") and packet is not None:
            node.target = getattr(packet, node.target._overloadname)


def _fold_constants(graph: fx.GraphModule) -> None:
    """What depends on no argument and no weight is computed now."""
    known: dict[fx.Node, torch.Tensor] = {}
    leaving = _leaving(graph)
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            value = getattr(graph, node.target)
            if not isinstance(value, torch.nn.Parameter):  # which may be given other numbers
                known[node] = value
        elif (
            _is_pure(node)
            and node not in leaving
            and all(source in known for source in node.all_input_nodes)
        ):
            value = node.target(*fx.map_arg(node.args, known.get), **node.kwargs)
            if not isinstance(value, torch.Tensor):
                continue
            name = f"folded_{node.name}"
            graph.register_buffer(name, value, persistent=False)
            with graph.graph.inserting_before(node):
                folded = graph.graph.get_attr(name)
            folded.meta = node.meta
            node.replace_all_uses_with(folded)
            known[folded] = value
    graph.graph.eliminate_dead_code()


def _leaving(graph: fx.GraphModule) -> set[fx.Node]:
    """What is returned or written to, itself or a view of it: made anew in each call."""
    leaving: set[fx.Node] = set()
    for node in reversed(graph.graph.nodes):
        if any(
            user.op == "output" or not _is_pure(user) or (user in leaving and _is_view(user))
            for user in node.users
        ):
            leaving.add(node)
    return leaving


def _is_pure(node: fx.Node) -> bool:
    """Whether a node is an operation that gives the same of the same, and writes nowhere."""
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and not node.target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in node.target.tags
    )


def _is_view(node: fx.Node) -> bool:
    """Whether what an operation gives may lie in the memory of what it is given."""
    return node.target in VIEWS or any(x.alias_info for x in node.target._schema.returns)


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """The shape of what a node gives, where that is known."""
    meta = node.meta.get("tensor_meta")
    return None if meta is None else tuple(meta.shape)


def _dtype(node: fx.Node):
    if node.op == "get_attr":
        return getattr(node.graph.owning_module, node.target).dtype
    meta = node.meta.get("tensor_meta")
    return None if meta is None else meta.dtype


def _in_order(node: fx.Node) -> bool:
    """Whether the numbers of a tensor lie in memory in their order."""
    meta = node.meta.get("tensor_meta")
    return meta is not None and torch.empty(meta.shape, device="meta").stride() == tuple(
        meta.stride
    )
