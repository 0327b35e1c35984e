"""Simplification of a flat list of tensor operations: fewer operations, and faster calls."""

import operator

import torch
from torch import fx

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default)
_MOST_COMPARED = 4096  # larger constants are not compared with others
VIEWS = (*_RESHAPES, _aten.expand.default)


def simplified(graph: fx.GraphModule) -> fx.GraphModule:
    """Remove operations that are duplicates, change nothing, or are constant."""
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
    return eliminate_common_subexpressions(graph)


def eliminate_common_subexpressions(graph: fx.GraphModule) -> fx.GraphModule:
    """Remove operations that are unused or duplicates of others."""
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


def use_fast_calls(graph: fx.GraphModule) -> fx.GraphModule:
    """Call operations by PyTorch's functions of the same names, which takes half the time."""
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
    """Replace in-place operations on fresh tensors by plain ones, so that duplicates are found.

    The dtypes must be equal: an in-place operation keeps the dtype of its first argument, a plain
    one promotes it.
    """
    for node in graph.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
            continue
        source, name = node.args[0], node.target.overloadpacket.__name__
        packet = getattr(_aten, name.removesuffix("_"), None)
        new = _is_pure(source) and not is_view(source) and set(source.users) == {node}
        alike = len({dtype_of(x) for x in node.all_input_nodes}) == 1
        if new and alike and name.endswith("_") and packet is not None:
            node.target = getattr(packet, node.target._overloadname)


def _fold_constants(graph: fx.GraphModule) -> None:
    """Compute operations that depend on no argument and no weight, and keep their results."""
    known: dict[fx.Node, torch.Tensor] = {}
    kept: dict[tuple, fx.Node] = {}
    leaving = _leaving(graph)
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            value = getattr(graph, node.target)
            if isinstance(value, torch.nn.Parameter):  # its values may be replaced
                continue
            known[node] = value
            if node not in leaving and isinstance(value, torch.Tensor):
                _share(node, value, kept)
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
            _share(folded, value, kept)
    graph.graph.eliminate_dead_code()


def _share(node: fx.Node, value: torch.Tensor, kept: dict[tuple, fx.Node]) -> None:
    """Replace a constant by an equal constant in `kept`, or add it there.

    Each layer has constants of its own, such as rotary frequencies. When they are shared,
    operations on them and on the same tensors are computed once for all layers.
    """
    same = kept.setdefault(_content(value), node)
    if same is not node:
        node.replace_all_uses_with(same)


def _content(value: torch.Tensor) -> tuple:
    """Return a key that small equal constants share; a large one has a key of its own."""
    if value.numel() > _MOST_COMPARED:
        return (id(value),)
    plain = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    numbers = plain.view(-1).view(torch.uint8).numpy().tobytes()
    return (value.dtype, value.device, tuple(value.shape), value.stride(), numbers)


def _leaving(graph: fx.GraphModule) -> set[fx.Node]:
    """Return the nodes that are returned, written to, or viewed by these: fresh in each call."""
    leaving: set[fx.Node] = set()
    for node in reversed(graph.graph.nodes):
        if any(
            user.op == "output"
            or is_written(user, node)
            or (user in leaving and _views(user, node))
            for user in node.users
        ):
            leaving.add(node)
    return leaving


def is_written(user: fx.Node, node: fx.Node) -> bool:
    """Return True unless an operation only reads `node`, one of its arguments."""
    if _is_pure(user) or user.target is operator.getitem:
        return False
    return any(given is None or given.is_write for given in _aliases(user, node))


def _views(user: fx.Node, node: fx.Node) -> bool:
    """Return True if the result of an operation may share memory with `node`, its argument."""
    return is_view(user) and (user.target in VIEWS or bool(_aliases(user, node)))


def _aliases(user: fx.Node, node: fx.Node) -> list:
    """Return what PyTorch declares of the memory of `node` as an argument: nothing if it is read.

    It is `[None]` if nothing is known of the operation.
    """
    if not isinstance(user.target, torch._ops.OpOverload) or node in user.kwargs.values():
        return [None]
    return [
        declared.alias_info
        for value, declared in zip(user.args, user.target._schema.arguments, strict=False)
        if declared.alias_info is not None
        and node in (value if isinstance(value, list | tuple) else [value])
    ]


def _is_pure(node: fx.Node) -> bool:
    """Return True if a node is an operation that is deterministic and writes nowhere."""
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and not node.target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in node.target.tags
    )


def is_view(node: fx.Node) -> bool:
    """Return True if the result of an operation may share memory with its arguments."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return node.target in VIEWS or any(x.alias_info for x in node.target._schema.returns)


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """Return the shape of a node's result, if it is known."""
    result = node.meta.get("val")
    return tuple(result.shape) if isinstance(result, torch.Tensor) else None


def dtype_of(node: fx.Node) -> torch.dtype | None:
    """Return the dtype of a node's result, if it is known."""
    if node.op == "get_attr":
        return getattr(node.graph.owning_module, node.target).dtype
    result = node.meta.get("val")
    return result.dtype if isinstance(result, torch.Tensor) else None


def _in_order(node: fx.Node) -> bool:
    """Return True if a tensor is contiguous in memory."""
    result = node.meta.get("val")
    return isinstance(result, torch.Tensor) and result.is_contiguous()
