"""Models on PyTorch whose layers several processes compute together.

Each process holds some of the heads, the inner features, the experts and the vocabulary, as the
table of `config.structure` says. The weights are `DTensor`s. While a call or a training step reads
them, the variables are bound to this process's parts, the layers to the sizes of these, and a layer
whose weight is cut by rows sums its outputs over the processes.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

import contextlib
import threading
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import torch
from torch import distributed
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from keras_transformer.config import Attention, Block, Dense, Experts, TransformerConfig, Window
from keras_transformer.config.structure import block_of, shared_weight, sides
from keras_transformer.config.weight import PARALLEL
from keras_transformer.distribution.sharded_model import (
    send_first,
    spread_states,
    with_whole_weights,
)
from keras_transformer.distribution.spread import MODELS

_TABLES = ("token_embedding/embeddings", "token_embedding/reverse_embeddings")


class Mapped(torch.autograd.Function):
    """A linear map of a tensor over processes, and the map that its gradient takes back."""

    @staticmethod
    def forward(context, tensor, there, back):
        context.back = back
        return there(tensor)

    @staticmethod
    def backward(context, gradient):
        return context.back(gradient), None, None


class Sharing:
    """The processes that compute the layers of a model together.

    All processes have the same states between the sub-layers, and the same gradients of them.

    Args:
        mesh: `torch.distributed.device_mesh.DeviceMesh` of one axis.
    """

    def __init__(self, mesh: Any):
        self._group, self.index, self.count = mesh.get_group(), mesh.get_local_rank(), mesh.size()

    def enter(self, tensor):
        """Return a tensor for layers whose weights are cut: its gradients are summed."""
        if not tensor.requires_grad:
            return tensor
        return Mapped.apply(tensor, lambda whole: whole.view_as(whole), self._summed)

    def sum(self, tensor):
        """Return the sum of a tensor over the processes, the same numbers in each."""
        if tensor.requires_grad:
            return Mapped.apply(tensor, self._summed, lambda gradient: gradient)
        tensor = tensor.contiguous()
        distributed.all_reduce(tensor, group=self._group)
        return tensor

    def _summed(self, tensor):
        """Return a sum that leaves the tensor as it is."""
        total = tensor.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total, group=self._group)
        return total

    def largest(self, tensor):
        """Return the largest of each number of a tensor over the processes, without a gradient."""
        found = tensor.detach().clone()
        distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self._group)
        return found

    def join(self, tensor, axis: int = -1):
        """Return the tensors of all processes, joined along an axis."""

        def joined(tensor):
            tensor = tensor.contiguous()
            parts = [torch.empty_like(tensor) for _ in range(self.count)]
            distributed.all_gather(parts, tensor, group=self._group)
            return torch.cat(parts, dim=axis)

        def own(gradient):
            return gradient.chunk(self.count, dim=axis)[self.index].contiguous()

        return Mapped.apply(tensor, joined, own) if tensor.requires_grad else joined(tensor)

    def first(self, tensor):
        """Give a tensor of all processes the numbers of the first one."""
        distributed.broadcast(tensor, group=self._group, group_src=0)
        return tensor


class _Bound(NamedTuple):
    """An attribute with a value of its own while a call reads the weights."""

    owner: Any
    name: str
    here: Any  # of this process's part
    whole: Any


class TensorParallel:
    """A model whose weights processes share, with the methods that let them compute together.

    Args:
        model: a `keras.Model`; all processes get the weights that the first one has.
        mesh: `torch.distributed.device_mesh.DeviceMesh` with the axes `"data"`, of processes with
            other rows, and `"model"`, of those that share the work of each layer.

    Raises:
        ValueError: if the processes cannot share its layers.
    """

    def __init__(self, model: keras.Model, mesh: Any):
        self._mesh, self._rows = mesh["model"], mesh["data"]
        self._sharing = Sharing(self._mesh)
        self._bound: list[_Bound] = []
        self._spread: dict[int, _Spread] = {}  # by the variable
        self._lock, self._depth = threading.RLock(), 0
        self._is_checked = False
        self.extend(model)

    def extend(self, model: keras.Model) -> None:
        """Share the layers of a model, or those that a task has around a model that is shared."""
        sharing, layers = self._sharing, list(model._flatten_layers())
        for layer in layers:
            if isinstance(getattr(layer, "config", None), TransformerConfig):
                check_shared(layer.config)
            if getattr(layer, "quantization_mode", None) or getattr(layer, "lora_enabled", False):
                raise ValueError(
                    f"{layer.path} is quantized or has an adapter, and processes share plain "
                    "weights alone (`model`). Load it in a float dtype, and call `merge_lora`."
                )
        new = [variable for variable in model.weights if id(variable) not in self._spread]
        send_first(new, self._rows)
        cut = {id(v): axis for v in new if (axis := _cut(v, sharing.count)) is not None}
        of_parts = {id(v) for layer in layers for v in _between(layer)} - cut.keys()
        for variable in new:
            if keras.backend.is_float_dtype(variable.dtype):
                axis, is_summed = cut.get(id(variable)), id(variable) in of_parts
                self._spread[id(variable)] = self._share_of(variable, axis, is_summed)
            else:
                sharing.first(variable._value.data)
        for layer in layers:
            # Of a product with columns, the bias alone has its first axis cut.
            rows = (cut.get(id(v)) == 0 for v in layer.weights if len(v.shape) > 1)
            if any(id(v) in cut for v in layer.weights):
                self._divide(layer, sharing.count)
            if hasattr(layer, "sharing") and any(rows):
                self._bind(layer, "sharing", sharing)
                self._bind(layer, "input_spec", None)  # of the whole width
            layer._track_variables()  # their parameters were the whole weights
            if isinstance(layer, keras.Model) and layer not in MODELS:
                with_whole_weights(layer)
                MODELS[layer], layer.is_spread = self, True

    def _share_of(self, variable: keras.Variable, axis: int | None, is_summed: bool) -> "_Spread":
        value = variable._value
        place = Replicate() if axis is None else Shard(axis)
        shard = distribute_tensor(value.data, self._mesh, [place])
        variable._value = torch.nn.Parameter(shard, requires_grad=value.requires_grad)
        here = shard.to_local().detach()
        self._bind(variable, "_value", here)
        return _Spread(variable, here, is_summed)

    def _divide(self, layer: keras.layers.Layer, count: int) -> None:
        """Bind the sizes of a layer to the sizes of its part in this process."""
        if isinstance(getattr(layer, "attention", None), Attention):
            for name in ("num_heads", "num_key_value_heads"):
                self._bind(layer, name, getattr(layer, name) // count)
        elif isinstance(getattr(layer, "config", None), Block):
            part = layer.config.mixer
            heads = {"num_heads": part.num_heads, "num_key_value_heads": part.num_key_value_heads}
            heads = {name: number // count for name, number in heads.items()}
            width = layer.mixer_layer.head_dim
            mixer = part.replace(**heads, head_dim=width)
            self._bind(layer, "config", layer.config.replace(mixer=mixer))
        elif hasattr(layer, "shared_by"):
            self._bind(layer, "shared_by", count)

    def _bind(self, owner: Any, name: str, here: Any) -> None:
        self._bound.append(_Bound(owner, name, here, getattr(owner, name)))

    @contextlib.contextmanager
    def for_reading(self) -> Iterator[None]:
        """Let the processes compute together. All of them make the same calls, one at a time."""
        with self._lock:
            self._depth += 1
            try:
                if self._depth == 1:
                    for each in self._bound:
                        setattr(each.owner, each.name, each.here)
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    for each in self._bound:
                        setattr(each.owner, each.name, each.whole)

    # Training.

    def check(self, model: keras.Model) -> None:
        """Prepare a `fit` of a model, whose batches are compared in its first step."""
        self.extend(model)
        self._is_checked = False

    @contextlib.contextmanager
    def for_training(self, batch: Any) -> Iterator[None]:
        """Let the processes compute a batch and its gradients, which the weights have afterwards.

        Raises:
            ValueError: if processes that share the work of layers have other rows.
        """
        if not self._is_checked:
            self._align(batch)
        learned = [each for each in self._spread.values() if each.variable.trainable]
        for each in learned:
            each.here.requires_grad_()
        try:
            with self.for_reading():
                yield
            self._finish(learned)
        finally:
            for each in learned:
                each.here.requires_grad_(False)
                each.here.grad = None

    def _align(self, batch: Any) -> None:
        """Compare a batch with the batches of the others, and take the first's random numbers."""
        self._is_checked = True
        checksum = 0
        for array in keras.tree.flatten(batch):
            if array is not None:
                content = np.ascontiguousarray(keras.ops.convert_to_numpy(array))
                checksum = zlib.crc32(content, zlib.crc32(str(content.shape).encode(), checksum))
        mine = torch.tensor(checksum, device=self._mesh.device_type)
        differs = self._sharing.first(mine.clone()) != mine
        if self._sharing.sum(differs.int()) > 0:
            raise ValueError(
                "The processes that share the work of each layer (`model`) have other rows in "
                "their batches. Give all of them the same data in the same order, with the same "
                "`seed`: `shard_of` does that."
            )
        generators = [torch.default_generator]
        if self._mesh.device_type == "cuda":
            generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        for generator in generators:
            state = self._sharing.first(generator.get_state().to(self._mesh.device_type))
            generator.set_state(state.cpu())

    def _finish(self, learned: list["_Spread"]) -> None:
        """Complete the gradients of this process's parts, and give them to the weights."""
        waits = []
        for each in learned:
            if each.here.grad is not None and each.is_summed:
                group = self._mesh.get_group()
                waits.append(distributed.all_reduce(each.here.grad, group=group, async_op=True))
        if self._rows.size() > 1:
            for wait in waits:
                wait.wait()
            group = self._rows.get_group()
            found = [each.here.grad for each in learned if each.here.grad is not None]
            torch._foreach_div_(found, self._rows.size())
            waits = [distributed.all_reduce(each, group=group, async_op=True) for each in found]
        for wait in waits:
            wait.wait()
        for each in learned:
            whole, gradient = each.variable._value, each.here.grad
            whole.grad = None
            if gradient is not None:
                sizes = {"shape": whole.shape, "stride": whole.stride(), "run_check": False}
                whole.grad = DTensor.from_local(
                    gradient, whole.device_mesh, whole.placements, **sizes
                )

    def build(self, optimizer: Any, variables: list) -> None:
        """Spread the states of an optimizer as the variables are spread."""
        spread_states(optimizer, variables)


class _Spread(NamedTuple):
    """A variable whose value is a `DTensor`.

    Fields:
        variable: `keras.Variable`.
        here: tensor, the part of this process.
        is_summed: bool, whether each process has the whole weight, and a part of its gradient.
    """

    variable: keras.Variable
    here: Any
    is_summed: bool


def share(model: keras.Model, mesh: Any) -> TensorParallel:
    """Return how processes share a model or, if they share it already, a part of it."""
    models = [layer for layer in model._flatten_layers() if isinstance(layer, keras.Model)]
    known = next((MODELS[each] for each in models if each in MODELS), None)
    if known is None:
        return TensorParallel(model, mesh)
    known.extend(model)  # a task around a backbone
    return known


def _between(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the weights of a layer that come after its states are divided and before the sum."""
    if not (hasattr(layer, "sharing") and hasattr(layer, "output_dense")):
        return []  # neither attention nor a feed-forward layer
    whole = (layer.output_dense, getattr(layer, "softmax_gate_dense", None))
    outside = {id(variable) for each in whole if each is not None for variable in each.weights}
    return [variable for variable in layer.weights if id(variable) not in outside]


def check_plain(config: TransformerConfig, verb: str) -> None:
    """Raise ValueError unless a model has only parts that several processes can compute."""
    for side in sides(config):
        for i in range(side.groups):
            part = side.layer(i).only_side.block
            wrong = _not_shared(part)
            if wrong is not None or config.kind not in ("encoder", "decoder"):
                what = f"a model of kind {config.kind!r}" if wrong is None else wrong
                raise ValueError(
                    f"Processes of PyTorch {verb} of models with plain attention, feed-forward "
                    f"layers and experts: this model has {what}. Choose another axis, or JAX."
                )


def check_shared(config: TransformerConfig) -> None:
    """Raise ValueError unless processes can share the layers of a model."""
    check_plain(config, "share the layers (`model`)")


def _not_shared(part: Block) -> str | None:
    """Return what part of a block processes do not share, or None."""
    mixer, inner = part.mixer, part.feed_forward
    if not isinstance(mixer, Attention):
        return f"the mixer {mixer.kind!r}"
    window = mixer.pattern
    plain = isinstance(window, Window) and window == Window(size=window.size)
    wrong = {
        "score_bias": mixer.score_bias is not None,
        "score": mixer.score not in ("scaled_dot", "dot"),
        "query_key_norm": mixer.query_key_norm not in (None, "head", "rotated"),
        "pattern": not (window is None or plain),
        "sequence_reduction": mixer.sequence_reduction != 1,
        "feed_forward": type(inner) not in (Dense, Experts, type(None)),
        "sparsity": isinstance(inner, Dense) and bool(inner.sparsity),
        "sparse": part.sparse is not None,
    }
    found = next((name for name, is_wrong in wrong.items() if is_wrong), None)
    values = {**vars(mixer), "feed_forward": inner, "sparse": part.sparse}
    return None if found is None else f"{found}={values.get(found, getattr(inner, found, None))!r}"


def _cut(variable: keras.Variable, count: int) -> int | None:
    """Return the axis of a variable that processes cut, or None if each has all of it."""
    path = variable.path
    if block_of(path) is None and not path.endswith(_TABLES):
        return None  # of a task's head
    weight = shared_weight(path, tuple(variable.shape))
    axis = None if weight is None else weight.cut_axis(count)
    # A vocabulary that the processes do not divide stays whole.
    return axis if axis is None or weight.axes[axis] in PARALLEL else None
