"""Products with weights in a flat list of tensor operations, by oneDNN."""

import operator
from collections.abc import Callable, MutableMapping
from typing import NamedTuple

import torch
from torch import fx

from keras_transformer.kernels.torch_tracing import int8, screened
from keras_transformer.kernels.torch_tracing.simplify import VIEWS, shape_of

_aten = torch.ops.aten
_SAME_NUMBERS = (
    _aten.t.default,
    _aten.detach.default,
    _aten.permute.default,
    _aten.transpose.int,
)


class _Product(NamedTuple):
    """A product of rows with a weight."""

    node: fx.Node  # that multiplies
    weight: torch.Tensor  # (in, out)
    replaced: fx.Node  # whose place the new product takes
    bias: torch.Tensor | None = None
    sum: fx.Node | None = None  # that adds the bias to a view of what is replaced
    scale: torch.Tensor | None = None  # int8: (out,), what the product is divided by


class OneDNN:
    """Gives the products in a graph to oneDNN, with the bias that is added.

    With `packed` it has copies of the weights in its own order, kept there for as long as a graph
    has them; those of the same rows, as for queries, keys and values, are one. Matrices of int8
    are always packed. Of a product whose largest numbers alone are asked for it has a `Screen`.
    """

    def __init__(self, graph: fx.GraphModule, packed: MutableMapping | None, key: tuple):
        self.graph = graph
        self.packed = packed
        self.key = key  # of the weights, beside where they are

    def use(self) -> None:
        """Replaces the products."""
        for node in list(self.graph.graph.nodes):
            if node.target is torch.ops.keras_transformer.best_product.default:
                self._replace_best(node)
        groups: dict[tuple, list[_Product]] = {}
        for node in self.graph.graph.nodes:
            product = self._product(node)
            if product is not None:
                alone = node if self.packed is None else None
                kind = (node.target, product.bias is None, product.weight.dtype)
                groups.setdefault((node.args[-2], *kind, alone), []).append(product)
        for products in groups.values():
            self._replace(products)
        self.graph.graph.eliminate_dead_code()

    def _replace_best(self, node: fx.Node) -> None:
        """By a screened product, or by a plain one, which oneDNN may take."""
        graph, (rows, matrix, bias) = self.graph.graph, node.args
        weight, screen = self._constant(matrix), None
        known = self.packed is not None and weight is not None
        if known and screened.suits(shape_of(rows)[0], weight):
            screen = self._kept("screen", [weight], lambda: screened.Screen.of(weight))
        with graph.inserting_before(node):
            if screen is None:
                turned = graph.call_function(_aten.t.default, (matrix,))
                target, given = _aten.mm.default, (rows, turned)
                if bias is not None:
                    target, given = _aten.addmm.default, (bias, rows, turned)
                product = graph.call_function(target, given)
            else:
                name = f"screen_{node.name}"
                setattr(self.graph, name, screen)
                attribute = graph.create_node("get_attr", name)  # `get_attr` warns: it is no tensor
                product = graph.call_function(screened.multiply, (rows, attribute, bias))
        product.meta = node.meta
        node.replace_all_uses_with(product)
        graph.erase_node(node)

    def _product(self, node: fx.Node) -> _Product | None:
        """The product that a node is, if oneDNN takes it."""
        if node.target is _aten._int_mm.default:
            # As `layers.torch_products.int8_product` has it: of a number that is as float32.
            (sums,) = node.users
            (scaled,) = sums.users
            scale = scaled.args[1]
            if scale.target is _aten._to_copy.default:  # from what the layer has it in
                scale = scale.args[0]
            weight, scale = self._constant(node.args[1]), self._constant(scale)
            known = weight is not None and scale is not None
            return _Product(node, weight, scaled, scale=scale) if known else None
        if node.target not in (_aten.mm.default, _aten.addmm.default) or node.kwargs:
            return None
        *bias, _, matrix = node.args
        weight, vectors = self._constant(matrix), [self._vector(x) for x in bias]
        if weight is None or not _suits(weight) or any(x is None for x in vectors):
            return None
        vector, sum_ = (vectors[0], None) if bias else self._bias_added(node)
        return _Product(node, weight, node, vector, sum_)

    def _replace(self, products: list[_Product]) -> None:
        """One product in place of several of the same rows."""
        graph, first = self.graph.graph, products[0]
        rows = first.node.args[-2]  # which may be a product that was replaced
        with graph.inserting_before(first.node):
            name = f"onednn_{first.node.name}"
            if first.scale is None:
                weight = self._attribute(name, self._as_onednn_has_it(products))
                outputs = self._multiply(name, rows, weight, products)
            else:
                outputs = self._multiply_int8(name, rows, products)
            parts = [outputs]
            if len(products) > 1:
                ends = torch.tensor([x.weight.shape[1] for x in products]).cumsum(0).tolist()
                places = zip([0, *ends], ends, strict=False)
                parts = [
                    graph.call_function(_aten.slice.Tensor, (outputs, 1, *place))
                    for place in places
                ]
        for product, part in zip(products, parts, strict=True):
            product.replaced.replace_all_uses_with(part)
            graph.erase_node(product.replaced)  # in place: it would not go by itself
            if product.sum is not None:
                product.sum.replace_all_uses_with(product.sum.args[0])

    def _multiply(self, name: str, rows: fx.Node, weight: fx.Node, products: list) -> fx.Node:
        bias = None
        if products[0].bias is not None:
            vectors = [product.bias for product in products]
            bias = self._attribute(f"{name}_bias", _joined(vectors))
        return self.graph.graph.call_function(
            torch.ops.mkldnn._linear_pointwise.default, (rows, weight, bias, "none", [], "")
        )

    def _multiply_int8(self, name: str, rows: fx.Node, products: list) -> fx.Node:
        graph, matrix = self.graph.graph, self._int8_matrix(products)
        setattr(self.graph, name, matrix)
        for step in (_aten._to_copy.default, _aten.round.default, _aten.round_.default):
            rows = rows.args[0] if rows.target is step else rows  # not rounded yet
        return matrix.multiply(
            graph.call_function,
            rows,
            lambda field: graph.create_node("get_attr", f"{name}.{field}"),
        )

    def _int8_matrix(self, products: list[_Product]) -> int8.Int8Matrix:
        if self.packed is None:
            (product,) = products
            return int8.packed_once(product.weight, product.scale)
        weights = [product.weight.detach().t() for product in products]
        scale = _joined([product.scale for product in products])
        return self._kept("int8", weights, lambda: int8.pack(_joined(weights), scale))

    def _as_onednn_has_it(self, products: list[_Product]) -> torch.Tensor:
        """The weights as one `(out, in)`, in any order in memory; or in oneDNN's own.

        Of one in plain order oneDNN makes that order in each call, which for a few rows takes
        longer than the product.
        """
        weights = [product.weight.detach().t() for product in products]
        if self.packed is None:
            return weights[0]
        return self._kept("plain", weights, lambda: pack(_joined(weights)))

    def _kept(self, kind: str, weights: list[torch.Tensor], make: Callable):
        """What is made of these weights, once for all graphs that have it; None is not kept."""
        key = (self.key, kind, *((weight.data_ptr(), weight.shape) for weight in weights))
        made = self.packed.get(key)
        if made is None:
            made = make()
            if made is not None:
                self.packed[key] = made
        return made

    def _attribute(self, name: str, tensor: torch.Tensor) -> fx.Node:
        self.graph.register_buffer(name, tensor, persistent=False)
        return self.graph.graph.get_attr(name)

    def _constant(self, node: fx.Node) -> torch.Tensor | None:
        """The weight that `node` is: an attribute of the graph, or one seen transposed."""
        if node.op == "get_attr":
            return operator.attrgetter(node.target)(self.graph)
        if node.target in _SAME_NUMBERS:
            weight = self._constant(node.args[0])
            return None if weight is None else node.target(weight, *node.args[1:])
        return None

    def _vector(self, node) -> torch.Tensor | None:
        """The weight of one axis that a node is."""
        if not isinstance(node, fx.Node) or node.op != "get_attr":
            return None
        value = operator.attrgetter(node.target)(self.graph)
        return value if value.ndim == 1 else None

    def _bias_added(self, product: fx.Node) -> tuple[torch.Tensor | None, fx.Node | None]:
        """The vector that is added to a product, and the sum; or None twice."""
        node = product
        while len(node.users) == 1:
            user = next(iter(node.users))
            if user.target in VIEWS:
                node = user
            elif user.target is _aten.add.Tensor and user.args[0] is node and not user.kwargs:
                bias = self._vector(user.args[1])
                return (None, None) if bias is None else (bias, user)
            else:
                break
        return None, None


def pack(weight: torch.Tensor) -> torch.Tensor:
    """A matrix `(out, in)` in oneDNN's own order."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    """One tensor of several; of one itself, so that it follows when its numbers change."""
    return tensors[0] if len(tensors) == 1 else torch.cat([x.detach() for x in tensors])


def takes_bfloat16() -> bool:
    """Whether oneDNN has products of bfloat16 for this processor."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _suits(weight: torch.Tensor) -> bool:
    """Whether oneDNN takes a matrix."""
    return (
        weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and (weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and takes_bfloat16()))
    )
