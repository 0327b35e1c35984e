"""Products with weights by the fastest library, in a flat list of tensor operations."""

import operator
from collections.abc import Callable, MutableMapping
from typing import NamedTuple

import torch
from torch import fx

from keras_transformer.kernels import torch_int8
from keras_transformer.kernels.torch_products import is_onednn_fastest, takes_bfloat16
from keras_transformer.kernels.torch_tracing import float16_prefilter, float32
from keras_transformer.kernels.torch_tracing.simplify import VIEWS, shape_of

_aten = torch.ops.aten
_SAME_NUMBERS = (
    _aten.t.default,
    _aten.detach.default,
    _aten.permute.default,
    _aten.transpose.int,
)


class _Product(NamedTuple):
    """Product of rows with a weight."""

    node: fx.Node  # the node that multiplies
    weight: torch.Tensor  # (in, out)
    replaced: fx.Node  # the node that the new product replaces
    bias: torch.Tensor | None = None
    sum: fx.Node | None = None  # the node that adds the bias to a view of `replaced`
    scale: torch.Tensor | None = None  # int8: (out,), divisor of the product


class FastestProducts:
    """Replacement of the products in a graph by the fastest library's, including the added bias.

    Without `packed` it is oneDNN, or PyTorch's own product stays. With `packed`, copies of the
    weights are kept in the memory order of oneDNN or MKL as long as a graph uses them; weights that
    multiply the same rows, such as query, key and value, are packed as one. Matrices of int8 are
    always packed. If only the largest numbers of a product are needed, a `Float16Prefilter`
    computes them.
    """

    def __init__(self, graph: fx.GraphModule, packed: MutableMapping | None, key: tuple):
        self.graph = graph
        self.packed = packed
        self.key = key  # identifies packed weights, together with their addresses

    def use(self) -> None:
        """Replace the products."""
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
        """Replace a product by a prefiltered one, or by a plain one, to be replaced with others."""
        graph, (rows, matrix, bias) = self.graph.graph, node.args
        weight, prefilter = self._constant(matrix), None
        known = self.packed is not None and weight is not None
        if known and float16_prefilter.suits(shape_of(rows)[0], weight):
            prefilter = self._kept(
                "prefilter",
                [weight],
                lambda: float16_prefilter.Float16Prefilter.from_matrix(weight),
            )
        with graph.inserting_before(node):
            if prefilter is None:
                turned = graph.call_function(_aten.t.default, (matrix,))
                target, given = _aten.mm.default, (rows, turned)
                if bias is not None:
                    target, given = _aten.addmm.default, (bias, rows, turned)
                product = graph.call_function(target, given)
            else:
                name = f"screen_{node.name}"
                setattr(self.graph, name, prefilter)
                attribute = graph.create_node("get_attr", name)  # `get_attr` would warn
                product = graph.call_function(float16_prefilter.multiply, (rows, attribute, bias))
        product.meta = node.meta
        node.replace_all_uses_with(product)
        graph.erase_node(node)

    def _product(self, node: fx.Node) -> _Product | None:
        """Return the product that a node computes if it should be replaced, otherwise None."""
        if node.target is _aten._int_mm.default:
            weight = self._constant(node.args[1])
            if weight is None or weight.device.type != "cpu":
                return None
            # As in `kernels.torch_products.int8_product`.
            (sums,) = node.users
            (scaled,) = sums.users
            scale = scaled.args[1]
            if scale.target is _aten._to_copy.default:  # from the dtype of the layer
                scale = scale.args[0]
            scale = self._constant(scale)
            known = scale is not None
            return _Product(node, weight, scaled, scale=scale) if known else None
        if node.target not in (_aten.mm.default, _aten.addmm.default) or node.kwargs:
            return None
        *bias, _, matrix = node.args
        weight, vectors = self._constant(matrix), [self._vector(x) for x in bias]
        if weight is None or not _suits(weight) or any(x is None for x in vectors):
            return None
        if self.packed is None and not _suits_rows(shape_of(node)[0], weight):
            return None
        vector, sum_ = (vectors[0], None) if bias else self._bias_added(node)
        return _Product(node, weight, node, vector, sum_)

    def _replace(self, products: list[_Product]) -> None:
        """Replace several products of the same rows by one."""
        graph, first = self.graph.graph, products[0]
        rows = first.node.args[-2]  # may be a product that was replaced
        with graph.inserting_before(first.node):
            name = f"onednn_{first.node.name}"
            bias = self._joined_bias(name, products)
            if first.scale is not None:
                outputs = self._multiply_int8(name, rows, products)
            elif self.packed is None:
                weight = self._attribute(name, first.weight.detach().t())
                product = torch.ops.mkldnn._linear_pointwise.default
                outputs = graph.call_function(product, (rows, weight, bias, "none", [], ""))
            else:
                matrix, count = self._packed_matrix(products), shape_of(first.node)[0]
                setattr(self.graph, name, matrix)
                part = self._part(name)
                outputs = matrix.multiply(graph.call_function, rows, count, bias, part)
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
            graph.erase_node(product.replaced)  # an in-place operation is not removed as unused
            if product.sum is not None:
                product.sum.replace_all_uses_with(product.sum.args[0])

    def _joined_bias(self, name: str, products: list) -> fx.Node | None:
        if products[0].bias is None:
            return None
        return self._attribute(f"{name}_bias", _joined([product.bias for product in products]))

    def _part(self, name: str) -> Callable:
        """Return a function of a field of a matrix, an attribute of the graph, to its node."""
        return lambda field: self.graph.graph.create_node("get_attr", f"{name}.{field}")

    def _multiply_int8(self, name: str, rows: fx.Node, products: list) -> fx.Node:
        matrix = self._int8_matrix(shape_of(products[0].node)[0], products)
        setattr(self.graph, name, matrix)
        for step in (_aten._to_copy.default, _aten.round.default, _aten.round_.default):
            rows = rows.args[0] if rows.target is step else rows  # undo the rounding
        return matrix.multiply(self.graph.graph.call_function, rows, self._part(name))

    def _int8_matrix(self, rows: int, products: list[_Product]) -> torch_int8.Int8Matrix:
        if self.packed is None:
            (product,) = products
            return torch_int8.packed_once(rows, product.weight, product.scale)
        weights = [product.weight.detach().t() for product in products]
        scale = _joined([product.scale for product in products])
        kind = torch_int8.fastest_kind(rows, *_joined_shape(weights))
        return self._kept(
            kind.__name__, weights, lambda: torch_int8.pack(kind, _joined(weights), scale)
        )

    def _packed_matrix(self, products: list[_Product]) -> float32.Float32Matrix:
        """Return the weights as one packed matrix.

        A matrix that is not packed would be reordered in each call, which takes longer than the
        product if there are few rows.
        """
        weights = [product.weight.detach().t() for product in products]
        return self._kept("plain", weights, lambda: float32.pack(_joined(weights)))

    def _kept(self, kind: str, weights: list[torch.Tensor], make: Callable):
        """Return the result of `make` for these weights, shared by all graphs; None is not kept."""
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
        """Return the weight that a node is (an attribute, perhaps transposed), or None."""
        if node.op == "get_attr":
            return operator.attrgetter(node.target)(self.graph)
        if node.target in _SAME_NUMBERS:
            weight = self._constant(node.args[0])
            return None if weight is None else node.target(weight, *node.args[1:])
        return None

    def _vector(self, node) -> torch.Tensor | None:
        """Return the one-dimensional weight that a node is, or None."""
        if not isinstance(node, fx.Node) or node.op != "get_attr":
            return None
        value = operator.attrgetter(node.target)(self.graph)
        return value if value.ndim == 1 else None

    def _bias_added(self, product: fx.Node) -> tuple[torch.Tensor | None, fx.Node | None]:
        """Return the vector that is added to a product, and the node of the sum; or None twice."""
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


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Concatenate tensors. A single tensor is returned itself, to follow changes of its values."""
    return tensors[0] if len(tensors) == 1 else torch.cat([x.detach() for x in tensors])


def _joined_shape(weights: list[torch.Tensor]) -> tuple[int, int]:
    return sum(len(weight) for weight in weights), weights[0].shape[1]


def _suits_rows(rows: int, weight: torch.Tensor) -> bool:
    """Return True if oneDNN should multiply this many rows by a matrix `(in, out)`, not packed."""
    return weight.dtype != torch.float32 or is_onednn_fastest(rows, weight)


def _suits(weight: torch.Tensor) -> bool:
    """Return True if oneDNN takes a matrix."""
    return (
        weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and (weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and takes_bfloat16()))
    )
