"""Models on PyTorch whose weights, gradients and optimizer states are spread over processes.

`torch.distributed.fsdp.fully_shard` does it (FSDP 2). Keras's layers are modules, but Keras reads
weights from its variables, so the variables of a block are put into a module of their own, and are
bound to what `fully_shard` has there: whole weights while the block is computed, shards otherwise.

Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel";
Rajbhandari et al. 2020, "ZeRO", stage 3.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from keras_transformer.config.structure import block_of
from keras_transformer.distribution.spread import MODELS, PARTS

# Methods of Keras's models that read all weights, or write them.
_READING = ("get_weights", "save", "save_weights")
_WRITING = ("load_weights", "set_weights")


class Part(torch.nn.Module):
    """The weights of a part of a model, which are whole while `forward` runs a call.

    Args:
        variables: the Keras variables of the part.
        parts: list of `Part`, blocks that have their weights for themselves.
    """

    def __init__(self, variables: list, parts: list["Part"]):
        super().__init__()
        self.variables = tuple(variables)
        self.parts = torch.nn.ModuleList(parts)
        self.weights = torch.nn.ParameterList(variable._value for variable in variables)

    def bind(self) -> None:
        """Let the variables have the values that the weights have now."""
        for variable, weight in zip(self.variables, self.weights, strict=True):
            variable._value = weight

    def run(self, call, *args, **kwargs):
        """Run a call with whole weights. Without a backward pass they are shards again after it."""
        outputs = self(call, *args, **kwargs)
        if not torch.is_grad_enabled():
            self.bind()
        return outputs

    def forward(self, call, *args, **kwargs):
        self.bind()
        return call(*args, **kwargs)


class FullySharded:
    """A model whose weights are spread, with the methods that make them whole for a while.

    Args:
        model: a `keras.Model` with an optimizer.
        mesh: `torch.distributed.device_mesh.DeviceMesh` of one axis, over which the weights are
            spread; or of two, of which the first has copies.
    """

    def __init__(self, model: keras.Model, mesh: Any):
        send_first(_not_in(set(), model.weights), mesh)
        layers = list(model._flatten_layers())
        blocks = [layer for layer in layers if _is_block(layer) and layer.weights]
        taken: set[int] = set()
        parts = []
        for block in blocks:
            part = Part(_not_in(taken, block.weights), [])
            fully_shard(part, mesh=mesh)
            parts.append(part)
        self.root = Part(_not_in(taken, model.weights), parts)
        fully_shard(self.root, mesh=mesh)
        PARTS.update(zip(blocks, parts, strict=True))
        self._known = _trained(model)
        self._depth = 0
        with torch.no_grad():
            self.root(lambda: None)  # makes it the root of the others
        self.close()
        for layer in layers:  # their parameters were the whole weights
            layer._track_variables()
            if isinstance(layer, keras.Model):
                with_whole_weights(layer)
                MODELS[layer], layer.is_spread = self, True

    def check(self, model: keras.Model) -> None:
        """Raise ValueError if the model learns other weights than when they were spread."""
        now = _trained(model)
        changed = now.items() ^ self._known.items()
        if changed:
            raise ValueError(
                "The model has other weights, or learns others, than when its weights were spread "
                f"over the processes, such as {min(path for path, _ in changed)}. Call `freeze`, "
                "`enable_lora` and the like before the first `fit`."
            )

    def close(self) -> None:
        """Keep only this process's shards of all weights."""
        for part in (self.root, *self.root.parts):
            part.reshard()
            part.bind()

    @contextlib.contextmanager
    def for_reading(self) -> Iterator[None]:
        """Keep the weights outside of blocks whole, for forward passes without gradients."""
        self._depth += 1
        try:
            if self._depth == 1:
                self.root.unshard()
                self.root.bind()
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.close()

    @contextlib.contextmanager
    def for_training(self, batch: Any) -> Iterator[None]:
        """Compute a batch and its gradients; afterwards each process has its shards."""
        yield
        self.close()

    def build(self, optimizer: Any, variables: list) -> None:
        """Spread the states of an optimizer as the variables are spread."""
        spread_states(optimizer, variables)


def spread_states(optimizer: Any, variables: list) -> None:
    """Spread the states of an optimizer as the variables are spread."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not inner.built:
        with keras.device("meta"):  # no memory for whole states
            optimizer.build(variables)
    shards = {id(state): variable.value for state, variable in _states(inner)}
    for state in optimizer.variables:
        shard, value = shards.get(id(state)), state._value
        if isinstance(value, DTensor):
            continue
        if not value.is_meta:
            if shard is not None:
                value = distribute_tensor(value.data, shard.device_mesh, shard.placements)
        elif shard is None:
            value = keras.ops.zeros(state.shape, state.dtype)
        else:
            value = torch.zeros_like(shard, dtype=value.dtype)
        state._value = torch.nn.Parameter(value, requires_grad=False)


def with_whole_weights(model: keras.Model) -> None:
    """Let Keras's methods of a model that save and load find whole weights, and states.

    Each process then has room for all of them.
    """
    for name in (*_READING, *_WRITING):
        setattr(model, name, _finding_whole(model, name))


def _finding_whole(model: keras.Model, name: str):
    method = getattr(model, name)

    @functools.wraps(method)
    def call(*args, **kwargs):
        variables = [*model.variables, *getattr(model.optimizer, "variables", ())]
        spread = [(each, each._value) for each in variables if isinstance(each._value, DTensor)]
        try:
            for variable, shard in spread:
                variable._value = shard.detach().full_tensor()
            result = method(*args, **kwargs)
            for variable, shard in spread if name in _WRITING else ():
                whole = variable._value.detach()
                with torch.no_grad():
                    shard.copy_(distribute_tensor(whole, shard.device_mesh, shard.placements))
            return result
        finally:
            for variable, shard in spread:
                variable._value = shard

    return call


def send_first(variables: list, mesh: Any) -> None:
    """Give all processes the values of the first one, as `DistributedDataParallel` does."""
    for group in reversed(mesh.get_all_groups()):
        for variable in variables:
            distributed.broadcast(variable._value.data, group=group, group_src=0)


def _is_block(layer: keras.layers.Layer) -> bool:
    found = block_of(f"{layer.path}/")
    return found is not None and layer.path == f"{found[0]}/layer_{found[1]}"


def _not_in(taken: set[int], variables: list) -> list:
    """Return the floating point variables that no earlier part has, and note them."""
    found = [
        variable
        for variable in variables
        if id(variable) not in taken and keras.backend.is_float_dtype(variable.dtype)
    ]
    taken.update(map(id, found))
    return found


def _trained(model: keras.Model) -> dict[str, bool]:
    return {variable.path: variable.trainable for variable in model.weights}


def _states(optimizer: keras.optimizers.Optimizer) -> Iterator[tuple]:
    """Yield each state of an optimizer that belongs to a variable, and the variable."""
    variables = optimizer._trainable_variables
    for states in vars(optimizer).values():
        if states is variables or not isinstance(states, list) or len(states) != len(variables):
            continue
        for state, variable in zip(states, variables, strict=True):
            if isinstance(state, keras.Variable) and state.shape == variable.shape:
                yield state, variable
