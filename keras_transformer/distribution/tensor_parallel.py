"""Models on PyTorch whose layers several processes compute together, to generate and to predict.

Each process holds some of the heads, the inner features, the experts and the vocabulary, as the
table of `config.structure` says. The weights are `DTensor`s. While a call reads them, the variables
are bound to this process's parts, the layers to the sizes of these, and a layer whose weight is cut
by rows sums its outputs over the processes.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import keras
import torch
from torch import distributed
from torch.distributed.tensor import Shard, distribute_tensor

from keras_transformer.config import Attention, Block, Dense, Experts, TransformerConfig, Window
from keras_transformer.config.structure import block_of, shared_weight, sides
from keras_transformer.config.weight import PARALLEL
from keras_transformer.distribution.sharded_model import with_whole_weights
from keras_transformer.distribution.spread import MODELS

_TABLES = ("token_embedding/embeddings", "token_embedding/reverse_embeddings")


class Sharing:
    """The processes that compute the layers of a model together.

    Args:
        mesh: `torch.distributed.device_mesh.DeviceMesh` of one axis.
    """

    def __init__(self, mesh: Any):
        self._group, self.index, self.count = mesh.get_group(), mesh.get_local_rank(), mesh.size()

    def sum(self, tensor):
        """Return the sum of a tensor over the processes, the same numbers in each."""
        tensor = self._own(tensor)
        distributed.all_reduce(tensor, group=self._group)
        return tensor

    def join(self, tensor, axis: int = -1):
        """Return the tensors of all processes, joined along an axis."""
        tensor = self._own(tensor)
        parts = [torch.empty_like(tensor) for _ in range(self.count)]
        distributed.all_gather(parts, tensor, group=self._group)
        return torch.cat(parts, dim=axis)

    def _own(self, tensor):
        if tensor.requires_grad:
            raise ValueError(
                "Processes that share the work of layers (`model`) compute no gradients on "
                "PyTorch. Choose `fsdp`, or one process."
            )
        return tensor.contiguous()


class _Bound(NamedTuple):
    """An attribute with a value of its own while a call reads the weights."""

    owner: Any
    name: str
    here: Any  # of this process's part
    whole: Any


class TensorParallel:
    """A model whose weights processes share, with the method that lets them compute together.

    Args:
        model: a `keras.Model`; all processes get the weights that the first one has.
        mesh: `torch.distributed.device_mesh.DeviceMesh` of one axis, `"model"`.

    Raises:
        ValueError: if the processes cannot share its layers.
    """

    def __init__(self, model: keras.Model, mesh: Any):
        sharing = Sharing(mesh)
        layers = list(model._flatten_layers())
        for layer in layers:
            if isinstance(getattr(layer, "config", None), TransformerConfig):
                check_shared(layer.config, sharing.count)
            if getattr(layer, "quantization_mode", None) or getattr(layer, "lora_enabled", False):
                raise ValueError(
                    f"{layer.path} is quantized or has an adapter, and processes share plain "
                    "weights alone (`model`). Load it in a float dtype, and call `merge_lora`."
                )
        self._bound: list[_Bound] = []
        self._lock, self._depth = threading.RLock(), 0
        cut = {id(v): axis for v in model.weights if (axis := _cut(v, sharing.count)) is not None}
        for variable in model.weights:
            self._spread(variable, cut.get(id(variable)), mesh)
        for layer in layers:
            self._divide(layer, sharing.count)
            # Of a product with columns, the bias alone has its first axis cut.
            rows = (cut.get(id(v)) == 0 for v in layer.weights if len(v.shape) > 1)
            if hasattr(layer, "sharing") and any(rows):
                self._bind(layer, "sharing", sharing)
                self._bind(layer, "input_spec", None)  # of the whole width
            layer._track_variables()  # their parameters were the whole weights
            if isinstance(layer, keras.Model):
                with_whole_weights(layer)
                MODELS[layer], layer.is_spread = self, True

    def _spread(self, variable: keras.Variable, axis: int | None, mesh: Any) -> None:
        value = variable._value
        if axis is None:
            distributed.broadcast(value.data, group=mesh.get_group(), group_src=0)
            return
        shard = distribute_tensor(value.data, mesh, [Shard(axis)])
        variable._value = torch.nn.Parameter(shard, requires_grad=value.requires_grad)
        self._bind(variable, "_value", shard.to_local().detach())

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

    def check(self, model: keras.Model) -> None:
        """Raise ValueError, since processes that share the work of layers do not train."""
        refuse_training()

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


def share(model: keras.Model, mesh: Any) -> TensorParallel:
    """Return how processes share a model or, if they share it already, a part of it."""
    models = [layer for layer in model._flatten_layers() if isinstance(layer, keras.Model)]
    known = next((MODELS[each] for each in models if each in MODELS), None)
    if known is None:
        return TensorParallel(model, mesh)
    MODELS[model], model.is_spread = known, True  # a task around a backbone
    with_whole_weights(model)
    return known


def refuse_training() -> NoReturn:
    """Raise ValueError, since processes that share the work of layers do not train."""
    raise ValueError(
        "On PyTorch the processes of `setup(model=...)` generate and predict together, and do not "
        "train. Call `setup(fsdp=...)` before the model is made, or train on JAX."
    )


def check_shared(config: TransformerConfig, count: int) -> None:
    """Raise ValueError unless `count` processes can share the layers of a model."""
    for side in sides(config):
        for i in range(side.groups):
            part = side.layer(i).only_side.block
            wrong = _not_shared(part)
            if wrong is not None or config.kind not in ("encoder", "decoder"):
                what = f"a model of kind {config.kind!r}" if wrong is None else wrong
                raise ValueError(
                    f"Processes of PyTorch share the work of plain attention, feed-forward layers "
                    f"and experts (`model`): this model has {what}. Choose model=1, or JAX."
                )


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
