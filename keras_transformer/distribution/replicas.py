"""Replicas of a whole model on PyTorch and TensorFlow, each of which computes a part of the batch.

Both frameworks combine the results of replicas as if each part had the same weight. For a mean over
tokens, the replicas therefore exchange their numbers of tokens.
"""

import contextlib
import functools

import keras
from keras import ops

from keras_transformer.distribution.engines import ENGINE
from keras_transformer.distribution.spread import (
    MESHES,
    MODELS,
    SEQUENCES,
    rows_group,
    shared_by,
)

# Processes whose gradients will be averaged, within a step of `data_parallel`. Not of a thread:
# PyTorch recomputes layers for the gradient in others.
_averaged = [1]


def part_of_mean(mean, weight):
    """Scale a replica's mean, so that the framework combines the replicas to the overall mean."""
    count, total = _over_replicas(weight)
    if count == 1:
        return mean
    share = ops.divide_no_nan(ops.cast(weight, mean.dtype), ops.cast(total, mean.dtype))
    return mean * share * (count if ENGINE.averages_replicas else 1)


def share_of_weight(weight, within_layer: bool = False):
    """Return a replica's weight divided by the mean weight of the replicas; 1 without replicas.

    With `within_layer` it is 1 too where replicas cannot exchange numbers in the call of a layer.
    """
    count, total = _over_replicas(weight, within_layer)
    return 1.0 if count == 1 else ops.divide_no_nan(count * weight, total)


def mean_over_replicas(weight, within_layer: bool = False):
    """Return the mean weight of the replicas, by which `share_of_weight` divides."""
    count, total = _over_replicas(weight, within_layer)
    return total / count


def _over_replicas(weight, within_layer: bool = False):
    """Return the number of replicas, and the sum of their weights."""
    if within_layer and not ENGINE.exchanges_within_layers:
        return 1, weight
    return ENGINE.over_replicas(weight, *_averaged)


def counts_of_replicas(counts) -> tuple:
    """Return the tensors of all replicas, `(replicas, ...)`, and the number of this one.

    The replicas are the processes of `data_parallel` and `fully_sharded`. Otherwise there is one.
    """
    index, count = (ENGINE.process_index() // shared_by(), *_averaged)
    if count == 1:
        return counts[None], 0
    parts = [counts if number == index else ops.zeros_like(counts) for number in range(count)]
    return _over_replicas(ops.stack(parts))[1], index


def data_parallel(task: keras.Model, **options) -> keras.Model:
    """Make `fit` on PyTorch average the gradients of all processes.

    Each process calls `torch.distributed.init_process_group`, makes the same task and fits it on
    its share of each batch (`shard_of`). The losses equal those of one process that sees whole
    batches, and so do metrics whose states are sums, such as all of Keras's means.

    Args:
        task: a compiled task, or another `keras.Model`.
        **options: options of `torch.nn.parallel.DistributedDataParallel`, e.g. `device_ids`.

    Returns:
        `task`.

    Raises:
        ValueError: if the backend is not PyTorch, or `init_process_group` has not been called.

    Example:
    ```python
    import tempfile
    import keras_transformer as kt
    import keras

    if keras.config.backend() == "torch":
        import torch.distributed as processes

        store = tempfile.NamedTemporaryFile()  # for one process; torchrun makes several
        processes.init_process_group("gloo", f"file://{store.name}", rank=0, world_size=1)
        classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
        kt.distribution.data_parallel(classifier)
        dataset = classifier.make_dataset(["a warm film", "dull"] * 8, [1, 0] * 8)
        classifier.fit(kt.distribution.shard_of(dataset), verbose=0)
        processes.destroy_process_group()
    ```

    Source: Li et al. 2020, "PyTorch Distributed", section 3.
    """
    ENGINE.check_connected("data_parallel")
    import torch

    loss = _loss_of(task)

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.task = task

        def forward(self, *batch):
            return loss(*batch)

    # A model may have weights that a task does not use, such as a pooler.
    options = {"find_unused_parameters": True, **options}
    forward = torch.nn.parallel.DistributedDataParallel(Loss(), **options)
    task.train_step = _averaged_step(task, forward)
    task.train_function = None
    return task


def _loss_of(task: keras.Model):
    """Return the function of a batch that computes loss, outputs, weight of the loss, and batch.

    The batch is the one that the loss has seen, which it may augment.
    """

    def loss_of(x, y, weights):
        own = _own_loss(task)
        if own is None:
            states = task(x, training=True)
            loss = task._compute_loss(x=x, y=y, y_pred=states, sample_weight=weights, training=True)
            return loss, states, len(keras.tree.flatten(x)[0]), (x, y, weights)
        weight = own.weight(x, y, weights)
        x, y, weights = own.batch(x, y, weights, training=True)
        states = own.states(x, weights, training=True)
        loss = own.loss(states, x, y, weights, training=True)
        return loss, states, weight, (x, y, weights)

    return loss_of


def _own_loss(task: keras.Model):
    return getattr(task, "step_loss", lambda: None)()


def _averaged_step(task: keras.Model, forward, spread=None):
    """Return a `train_step` that averages the gradients of all processes.

    Args:
        task: the model.
        forward: `_loss_of` in a module that averages the gradients.
        spread: `FullySharded` or `TensorParallel`, if processes share the weights.
    """
    import torch
    from torch import distributed

    group = rows_group()
    count = distributed.get_world_size(group)
    exchange = _exchange(task)

    def train_step(data):
        batch = keras.utils.unpack_x_y_sample_weight(data)
        with contextlib.nullcontext(batch) if exchange is None else exchange.sharing(*batch) as own:
            return step_of(data, *own)

    def step_of(data, x, y, weights):
        trained, own = task.trainable_weights[:], _own_loss(task)
        if spread is not None:
            spread.build(task.optimizer, trained)
        task.zero_grad()
        _averaged[:] = [count]
        try:
            with contextlib.nullcontext() if spread is None else spread.for_training(data):
                loss, states, weight, (x, y, weights) = forward(x, y, weights)
                task.optimizer.scale_loss(loss).backward()
        finally:
            _averaged[:] = [1]
        gradients = [variable.value.grad for variable in trained]
        with torch.no_grad():
            if own is None:
                task.optimizer.apply(gradients, trained)
            else:
                own.apply(gradients, trained, weight)
        whole = loss.detach().clone()
        distributed.all_reduce(whole, group=group)
        with _added_up(task, group):
            task._loss_tracker.update_state(whole / count, sample_weight=weight)
            if own is None:
                logs = task.compute_metrics(x, y, states, sample_weight=weights)
            else:
                logs = own.logs(states, x, y, weights)
        return {**logs, **task.get_metrics_result()}

    return train_step


def _exchange(task: keras.Model):
    """Return the `TokenExchange` of a task that is trained, if processes share tokens."""
    if not SEQUENCES:
        return None
    from keras_transformer.distribution.sequence_parallel import (
        TokenExchange,
        check_divides_tokens,
    )

    check_divides_tokens(task, SEQUENCES[0].size())
    return TokenExchange(SEQUENCES[0])


@contextlib.contextmanager
def _added_up(task: keras.Model, group):
    """Sum what the processes add to the metrics, whose states Keras adds to in each step."""
    import torch
    from torch import distributed

    before = {id(variable): variable.value.clone() for variable in task.metrics_variables}
    yield
    variables = task.metrics_variables  # a first step makes some
    starts = [before.get(id(v), torch.zeros_like(v.value)) for v in variables]
    added = [(v.value - start).double().ravel() for v, start in zip(variables, starts, strict=True)]
    sums = torch.cat(added)
    distributed.all_reduce(sums, group=group)
    parts = sums.split([part.numel() for part in added])
    for variable, start, part in zip(variables, starts, parts, strict=True):
        variable.assign(start + part.reshape(start.shape).to(start.dtype))


def fully_sharded(task: keras.Model, mesh=None) -> keras.Model:
    """Spread weights, gradients and optimizer states over the processes, on PyTorch.

    `fit` then averages the gradients of all processes, as with `data_parallel`, and each process
    keeps a share of all weights. The weights of a block are gathered when it is computed, in the
    forward and in the backward pass. All processes must make the same calls of the task, also those
    that only read weights, such as `generate` and `save_to_preset`.

    `setup` calls this function for each model that is trained.

    Args:
        task: a compiled task, or another `keras.Model`, of which all processes get the weights that
            the first one has. Call it after `enable_lora` and `freeze`.
        mesh: `torch.distributed.device_mesh.DeviceMesh` of one axis; or of two, the first of which
            has copies. Defaults to one axis of all processes.

    Returns:
        `task`.

    Raises:
        ValueError: if the backend is not PyTorch, or `init_process_group` has not been called.

    Example:
    ```python
    import tempfile
    import keras_transformer as kt
    import keras

    if keras.config.backend() == "torch":
        import torch.distributed as processes

        store = tempfile.NamedTemporaryFile()  # for one process; torchrun makes several
        processes.init_process_group("gloo", f"file://{store.name}", rank=0, world_size=1)
        classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
        kt.distribution.fully_sharded(classifier)
        dataset = classifier.make_dataset(["a warm film", "dull"] * 8, [1, 0] * 8)
        classifier.fit(kt.distribution.shard_of(dataset), verbose=0)
        processes.destroy_process_group()
    ```

    Source: Zhao et al. 2023, "PyTorch FSDP", section 3; Rajbhandari et al. 2020, "ZeRO", stage 3.
    """
    ENGINE.check_connected("fully_sharded")
    from torch import distributed

    from keras_transformer.distribution.sharded_model import FullySharded

    if task in MODELS:
        MODELS[task].check(task)
        return task
    if mesh is None:
        kind = "cuda" if "nccl" in distributed.get_backend() else "cpu"
        mesh = distributed.device_mesh.init_device_mesh(kind, (distributed.get_world_size(),))
    spread = FullySharded(task, mesh)
    task.train_step = _averaged_step(task, functools.partial(spread.root, _loss_of(task)), spread)
    task.train_function = None
    return task


def use_mesh(data: int, fsdp: int, model: int = 1, sequence: int = 1):
    """Lay out each model that is used from now on over a mesh of processes on PyTorch.

    Args:
        data: int, copies of the weights.
        fsdp: int, processes that share the weights of a copy, to train.
        model: int, processes that share the work of each layer, if `fsdp` and `sequence` are 1.
        sequence: int, neighbouring processes that share the tokens of each row. For weights and
            gradients they are further copies.

    Returns:
        `torch.distributed.device_mesh.DeviceMesh` with the axes `"data"` and `"fsdp"`, or `"data"`
        and `"model"`.
    """
    import torch
    from torch import distributed

    kind = "cuda" if "nccl" in distributed.get_backend() else "cpu"
    shape, second = ((data, model), "model") if model > 1 else ((data, fsdp), "fsdp")
    names = ("data", second)
    ranks = torch.arange(data * fsdp * model * sequence)
    copies = ranks.reshape(data, shape[1], sequence).movedim(2, 1).reshape(-1, shape[1])
    mesh = distributed.device_mesh.DeviceMesh(kind, copies, mesh_dim_names=names)
    MESHES[:], SEQUENCES[:] = [mesh], []
    if sequence > 1:
        rows = ranks.reshape(-1, sequence)
        whole = distributed.device_mesh.DeviceMesh(kind, rows, mesh_dim_names=("rows", "sequence"))
        SEQUENCES[:] = [whole["sequence"]]
    return mesh


def lay_out(task: keras.Model) -> None:
    """Make `fit` of a model train over the mesh of `setup`, if there is one (PyTorch)."""
    if task in MODELS:
        MODELS[task].check(task)
    if MESHES and "train_step" not in vars(task):
        (mesh,) = MESHES
        if "model" in mesh.mesh_dim_names:
            from keras_transformer.distribution.tensor_parallel import share

            spread = share(task, mesh)
            task.train_step = _averaged_step(task, _loss_of(task), spread)
            task.train_function = None
        elif mesh.size(1) == 1:
            data_parallel(task)
        else:
            fully_sharded(task, mesh if mesh.size(0) > 1 else mesh["fsdp"])
