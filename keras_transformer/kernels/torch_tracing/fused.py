"""Single PyTorch kernels that replace several operations of a flat list."""

import operator

import torch
from torch import fx

from keras_transformer.kernels.torch_tracing.simplify import dtype_of, shape_of

_aten = torch.ops.aten
_CAST = _aten._to_copy.default
_SUMS = (_aten.add.Scalar, _aten.add_.Scalar, _aten.add.Tensor, _aten.add_.Tensor)


def fuse_normalizations(graph: fx.GraphModule, on_gpu: bool) -> fx.GraphModule:
    """Replace the norms of layers by PyTorch's kernels, which give the same numbers.

    PyTorch's 16-bit norms compute in float32 themselves, without casts before and after. On a GPU
    the RMS norm becomes one kernel instead of six to nine; a CPU has no such kernel.
    """
    for node in list(graph.graph.nodes):
        if node.target in (_aten.native_layer_norm.default, _aten._fused_rms_norm.default):
            _leave_out_casts(graph.graph, node)
        elif on_gpu and node.target is _aten.rsqrt.default:
            _fuse_rms_norm(graph.graph, node)
    graph.graph.eliminate_dead_code()
    return graph


def _leave_out_casts(graph: fx.Graph, node: fx.Node) -> None:
    x, shape, *weights, epsilon = node.args
    users = [user for user in node.users if user.args[1] == 0]
    dtype = _cast_to(users[0]) if len(users) == len(node.users) == 1 else None
    given = [None if y is None else _before_cast(y, dtype) for y in (x, *weights)]
    if dtype is None or [y is None for y in given] != [y is None for y in (x, *weights)]:
        return
    with graph.inserting_before(node):
        norm = graph.call_function(node.target, (given[0], shape, *given[1:], epsilon))
        _replace(graph, users[0], norm, casts=True)


def _fuse_rms_norm(graph: fx.Graph, root: fx.Node) -> None:
    """Fuse Keras's `x * rsqrt(mean(x ** 2) + epsilon) * weight` over the last axis."""
    sum_ = root.args[0]
    mean = sum_.args[0] if sum_.target in _SUMS and isinstance(sum_.args[1], float) else root
    square = mean.args[0] if mean.target is _aten.mean.dim else root
    if square.target is not _aten.pow.Tensor_Scalar or square.args[1] != 2:
        return
    x = square.args[0]
    scaled = _product_of(root, x)
    weighted = None if scaled is None else _product_of(scaled)
    shape = shape_of(x)
    if weighted is None or shape is None or list(mean.args[1]) not in ([-1], [len(shape) - 1]):
        return
    weight = weighted.args[weighted.args[0] is scaled]
    if not isinstance(weight, fx.Node) or _shape(weight) != shape[-1:]:
        return
    dtype = _cast_to(weighted)
    given = [_before_cast(y, dtype) for y in (x, weight)]
    in_half = None not in given
    if not in_half and {dtype_of(x), dtype_of(weight)} != {torch.float32}:
        return
    x, weight = given if in_half else (x, weight)
    with graph.inserting_before(weighted):
        options = ([shape[-1]], weight, sum_.args[1])
        norm = graph.call_function(_aten._fused_rms_norm.default, (x, *options))
        _replace(graph, weighted, norm, casts=in_half)


def _replace(graph: fx.Graph, node: fx.Node, norm: fx.Node, casts: bool) -> None:
    """Replace a node, or the casts that use it, by the first output of `norm`."""
    first = graph.call_function(operator.getitem, (norm, 0))
    replaced = list(node.users) if casts else [node]
    first.meta = dict(replaced[0].meta)
    for each in replaced:
        each.replace_all_uses_with(first)
        graph.erase_node(each)


def _product_of(node: fx.Node, other: fx.Node | None = None) -> fx.Node | None:
    """Return the product that is a node's only user, or None; `other` must be a factor if given."""
    users = list(node.users)
    if len(users) != 1 or users[0].target is not _aten.mul.Tensor:
        return None
    return users[0] if other is None or other in users[0].args else None


def _cast_to(node: fx.Node) -> torch.dtype | None:
    """Return the 16-bit dtype to which all users of a node cast it, or None."""
    dtypes = {user.kwargs.get("dtype") if _is_cast(user) else None for user in node.users}
    (dtype,) = dtypes if len(dtypes) == 1 else (None,)
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


def _before_cast(node: fx.Node, dtype: torch.dtype | None) -> fx.Node | None:
    """Return the tensor of `dtype` from which a node was cast to float32, or None."""
    if not _is_cast(node) or node.kwargs["dtype"] != torch.float32:
        return None
    return node.args[0] if dtype is not None and dtype_of(node.args[0]) == dtype else None


def _is_cast(node: fx.Node) -> bool:
    return node.target is _CAST and set(node.kwargs) == {"dtype"}


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    if node.op == "get_attr":
        return tuple(getattr(node.graph.owning_module, node.target).shape)
    return shape_of(node)
