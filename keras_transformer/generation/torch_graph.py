"""PyTorch: a function of Keras layers as a flat list of tensor operations.

A decoding step of a small batch is a few hundred small operations. Called through Keras's layers,
Python takes longer for them than the processor. Traced, what is left is the operations.

On a CPU the products with weights then go to oneDNN, which reads a weight at the speed of the
memory on every processor; the library that `torch.matmul` calls does so on Intel's alone.
"""

import operator
import weakref
from collections.abc import Callable

import keras
import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.dialect.common.cse_pass import CSEPass

from keras_transformer.programs import PROGRAMS, TRACING, Compiled

_aten = torch.ops.aten
_SAME_NUMBERS = (
    _aten.t.default,
    _aten.detach.default,
    _aten.permute.default,
    _aten.transpose.int,
)
_VIEWS = (_aten.view.default, _aten._unsafe_view.default, _aten.expand.default)


class TracedFunction:
    """`function` of tensors without its Python, traced anew for other shapes or weights.

    What it does must not depend on the values in them. With `pack` a copy of the weights is kept
    in oneDNN's own order (CPU only).
    """

    def __init__(self, function: Callable, *models: keras.Model, pack: bool = False):
        self.function = function
        self.models = models
        self.pack = pack
        self._weights_key: tuple = ()
        # One copy of a weight for all traces, for as long as one of them has it.
        self._packed: weakref.WeakValueDictionary = weakref.WeakValueDictionary()

    def weights_key(self) -> tuple:
        """What changes when the models' weights are others, and packed ones when their values."""
        weights = [weight for model in self.models for weight in model.weights]
        versions = tuple(w.value._version for w in weights) if self.pack else ()
        return (*map(id, weights), *versions)

    def __call__(self, weights_key: tuple, *args):
        leaves, structure = pytree.tree_flatten(args)
        key = (
            structure,
            tuple((x.shape, x.stride(), x.dtype, x.device) for x in leaves),
            weights_key,
        )
        if weights_key != self._weights_key:
            with TRACING:  # traces of weights that are no more
                PROGRAMS.forget(self)
                self._weights_key = weights_key
        return PROGRAMS.get(self, key, lambda: self._trace(leaves, structure))(*leaves)

    def _trace(self, leaves: list, structure) -> Compiled:
        found = []

        def flat(*leaves):
            outputs, result = pytree.tree_flatten(
                self.function(*pytree.tree_unflatten(leaves, structure))
            )
            found.append(result)
            return [keras.ops.convert_to_tensor(output) for output in outputs]

        # Traced on copies: the function writes the cache in place. In a context with a mode: else
        # `make_fx` makes a mode for each operation, which takes half of the time.
        with tracing(TracingContext(FakeTensorMode())):
            graph = make_fx(flat)(*[leaf.clone() for leaf in leaves])
        graph = _simplified(graph)
        self._use_onednn(graph)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        run, result = graph.forward, found[-1]
        return Compiled(lambda *leaves: pytree.tree_unflatten(run(*leaves), result), compiled=True)

    def _use_onednn(self, graph: fx.GraphModule) -> None:
        """Products of a matrix with a weight become oneDNN's, with the bias that is added."""
        for node in list(graph.graph.nodes):
            if node.target is _aten._int_mm.default and self.pack:
                self._use_packed_int8(graph, node)
                continue
            if node.target not in (_aten.mm.default, _aten.addmm.default) or node.kwargs:
                continue
            *bias, states, matrix = node.args
            weight = _constant(graph, matrix)
            if weight is None or not _suits(weight) or not all(_vector(graph, x) for x in bias):
                continue
            name = f"onednn_{node.name}"
            graph.register_buffer(name, self._as_onednn_has_it(weight), persistent=False)
            with graph.graph.inserting_before(node):
                bias, sum_ = (bias[0], None) if bias else _bias_added(graph, node)
                arguments = (states, graph.graph.get_attr(name), bias, "none", [], "")
                linear = graph.graph.call_function(
                    torch.ops.mkldnn._linear_pointwise.default, arguments
                )
            node.replace_all_uses_with(linear)
            if sum_ is not None:
                sum_.replace_all_uses_with(sum_.args[0])

    def _use_packed_int8(self, graph: fx.GraphModule, node: fx.Node) -> None:
        """A product of int8 rows with a weight in oneDNN's own order, divided by its scale.

        Of a weight in plain order oneDNN makes that order in each call, which for a few rows takes
        longer than the product. Its rows are uint8: 128 more, which it takes off again.
        """
        rows, matrix = node.args
        (sums,) = node.users  # as float32
        (scaled,) = sums.users
        scale = scaled.args[1]
        if scale.target is _aten._to_copy.default:  # to float32, from what the layer has it in
            scale = scale.args[0]
        weight, scale = _constant(graph, matrix), _constant(graph, scale)
        if weight is None or scale is None:
            return
        size, name = weight.shape[1], f"onednn_{node.name}"
        constants = {
            name: self._as_onednn_has_it(weight),
            f"{name}_scale": 1 / scale.detach().float(),
            f"{name}_zero": torch.zeros(size, dtype=torch.int32),
        }
        for key, tensor in constants.items():
            graph.register_buffer(key, tensor, persistent=False)
        with graph.graph.inserting_before(scaled):
            call = graph.graph.call_function
            unsigned = call(_aten.view.dtype, (rows, torch.uint8))
            unsigned = call(_aten.bitwise_xor.Scalar, (unsigned, 128))
            packed, factor, zero = map(graph.graph.get_attr, constants)
            inputs, outputs = (unsigned, 1.0, 128), (None, 1.0, 0, torch.float32, "none", [], "")
            product = call(
                torch.ops.onednn.qlinear_pointwise.default,
                (*inputs, packed, factor, zero, *outputs),
            )
        scaled.replace_all_uses_with(product)
        for replaced in (scaled, sums, node):
            graph.graph.erase_node(replaced)

    def _as_onednn_has_it(self, weight: torch.Tensor) -> torch.Tensor:
        """`weight` as `(out, in)`, in any order in memory; or in oneDNN's own."""
        weight = weight.detach().t()
        if not self.pack:
            return weight
        key = (weight.data_ptr(), weight.shape, weight._version)
        packed = self._packed.get(key)
        if packed is None:
            if weight.dtype == torch.int8:
                reorder = torch.ops.onednn.qlinear_prepack
            else:
                reorder = torch.ops.mkldnn._reorder_linear_weight
            packed = self._packed[key] = reorder(weight.contiguous(), None)
        return packed


def _suits(weight: torch.Tensor) -> bool:
    """Whether oneDNN takes a matrix."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and torch.backends.mkldnn.is_available()
    )


def _simplified(graph: fx.GraphModule) -> fx.GraphModule:
    """Without operations that are there twice, or that change nothing."""
    for node in graph.graph.nodes:
        same_shape = node.target in _VIEWS and _shape(node) == _shape(node.args[0])
        if same_shape or node.target is _aten.lift_fresh_copy.default:
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    return CSEPass(banned_ops={_aten.index_copy_, _aten.copy_})(graph).graph_module


def _shape(node: fx.Node):
    meta = node.meta.get("tensor_meta")
    return None if meta is None else tuple(meta.shape)


def _constant(graph: fx.GraphModule, node: fx.Node) -> torch.Tensor | None:
    """The weight that `node` is: an attribute of the graph, or one seen transposed."""
    if node.op == "get_attr":
        return operator.attrgetter(node.target)(graph)
    if node.target in _SAME_NUMBERS:
        weight = _constant(graph, node.args[0])
        return None if weight is None else node.target(weight, *node.args[1:])
    return None


def _vector(graph: fx.GraphModule, node) -> bool:
    """Whether a node is a weight of one axis."""
    is_weight = isinstance(node, fx.Node) and node.op == "get_attr"
    return is_weight and operator.attrgetter(node.target)(graph).ndim == 1


def _bias_added(graph: fx.GraphModule, product: fx.Node):
    """The vector that is added to a product, read here, and the sum; or None twice."""
    node = product
    while len(node.users) == 1:
        user = next(iter(node.users))
        if user.target in _VIEWS:
            node = user
        elif user.target is _aten.add.Tensor and user.args[0] is node and not user.kwargs:
            bias = user.args[1]
            if _vector(graph, bias):
                return graph.graph.get_attr(bias.target), user
            break
        else:
            break
    return None, None
