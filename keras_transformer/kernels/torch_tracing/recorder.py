"""Recorder of the tensor operations that a function makes, for tensors of fixed sizes."""

import operator
from collections.abc import Callable

import torch
from torch import fx
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    autograd_would_have_decomposed,
)

_aten = torch.ops.aten


def record_operations(
    function: Callable, tensors: list, mode: FakeTensorMode | None = None
) -> fx.GraphModule:
    """Return the operations of a function as a graph, without computing any of them.

    PyTorch's `make_fx` returns the same graph in half as much time again: it also follows sizes
    that are symbols, subclasses of tensors and nested transformations, which are not needed here.

    Args:
        function: function of tensors to a list of tensors. Entries may be None in both.
        tensors: the arguments. They may be fake tensors of `mode`.
        mode: mode in which the function is called. Defaults to a new one.

    Returns:
        A graph with an input for each of `tensors`. Tensors from elsewhere, such as weights, are
        its attributes. A node has the fake tensor that is its result as `meta["val"]`.
    """
    recorder = _Recorder(mode or FakeTensorMode(allow_non_fake_inputs=True))
    given = [recorder.input(place, x) for place, x in enumerate(tensors)]
    with recorder.mode, recorder:
        outputs = function(*given)
    recorder.graph.output([recorder.node_of(x) for x in outputs])
    return fx.GraphModule(recorder.attributes, recorder.graph)


def is_recorded() -> bool:
    """Return True while `record_operations` notes PyTorch's operations."""
    return isinstance(_get_current_dispatch_mode(), _Recorder)


class _Recorder(TorchDispatchMode):
    """Mode in which each operation becomes a node of a graph."""

    def __init__(self, mode: FakeTensorMode):
        super().__init__()
        self.mode = mode
        self.graph = fx.Graph()
        self.attributes = torch.nn.Module()
        # By the ids of tensors, which are kept, so that no other tensor gets the id of one.
        self._nodes: dict[int, tuple[torch.Tensor, fx.Node]] = {}

    def input(self, place: int, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """Add an input, and return the fake tensor that stands for it."""
        node = self.graph.placeholder(f"arg{place}_1")
        if tensor is None:
            return None
        fake = self.mode.from_tensor(tensor, static_shapes=True)
        self._set(fake, node)
        return fake

    def node_of(self, value):
        """Return the node of a tensor, with an attribute for one from elsewhere."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._nodes:
            name = f"tensor_{len(self._nodes)}"
            if isinstance(value, torch.nn.Parameter):
                self.attributes.register_parameter(name, value)
            else:
                self.attributes.register_buffer(name, value, persistent=False)
            self._set(value, self.graph.create_node("get_attr", name))
        return self._nodes[id(value)][1]

    def _set(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = (tensor, node)
        node.meta["val"] = tensor

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operation is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if operation.namespace == "prim":  # other questions about a tensor
            return operation(*args, **kwargs)
        if operation in _CASTS and _changes_nothing(args[0], *args[1:], **kwargs):
            return args[0]
        # Autograd, which inference mode leaves out, would call the operations that it consists of.
        if autograd_would_have_decomposed(operation, [*args, *kwargs.values()]):
            with self:
                result = operation.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if operation is _aten.lift_fresh.default:  # of a constant, which each call needs anew
            operation = _aten.lift_fresh_copy.default
        node = self.graph.call_function(operation, *map_aggregate((args, kwargs), self.node_of))
        result = operation(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            self._set(result, node)
        elif isinstance(result, tuple | list):
            for place, part in enumerate(result):
                if isinstance(part, torch.Tensor):
                    item = self.graph.call_function(operator.getitem, (node, place))
                    self._set(part, item)
        return result


_CASTS = {_aten.to.device, _aten.to.dtype, _aten.to.dtype_layout}


def _changes_nothing(x: torch.Tensor, *given, dtype=None, device=None, **options) -> bool:
    """Return True if a tensor has the dtype and the device that it is to be cast to."""
    for value in given:
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, torch.device):
            device = value
        else:
            return False
    return (
        not any(options.values())
        and dtype in (None, x.dtype)
        and (device is None or device == getattr(x, "fake_device", x.device))
    )
