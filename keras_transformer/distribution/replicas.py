"""Replicas of a whole model on PyTorch and TensorFlow, each of which computes a part of the batch.

Both frameworks combine the results of replicas as if each part had the same weight. For a mean over
tokens, the replicas therefore exchange their numbers of tokens.
"""

import contextvars

import keras
from keras import ops

# Number of processes whose gradients will be averaged, within a step of `data_parallel`.
_processes = contextvars.ContextVar("processes", default=1)


def part_of_mean(mean, weight):
    """Scale a replica's mean, so that the framework combines the replicas to the overall mean."""
    count, total = _over_replicas(weight)
    if count == 1:
        return mean
    share = ops.divide_no_nan(ops.cast(weight, mean.dtype), ops.cast(total, mean.dtype))
    return mean * share * (count if keras.backend.backend() == "torch" else 1)


def share_of_weight(weight):
    """Return a replica's weight divided by the mean weight of the replicas; 1 without replicas."""
    count, total = _over_replicas(weight)
    return 1.0 if count == 1 else ops.divide_no_nan(count * weight, total)


def mean_over_replicas(weight):
    """Return the mean weight of the replicas, by which `share_of_weight` divides."""
    count, total = _over_replicas(weight)
    return total / count


def _over_replicas(weight):
    """Return the number of replicas, and the sum of their weights."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        context = tf.distribute.get_replica_context()  # None outside of a step
        if context is None or context.num_replicas_in_sync == 1:
            return 1, weight
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(weight))
        return context.num_replicas_in_sync, total
    count = _processes.get()
    if count == 1:
        return 1, weight
    import torch.distributed

    total = weight.detach().clone()
    torch.distributed.all_reduce(total)
    return count, total


def data_parallel(task: keras.Model, **options) -> keras.Model:
    """Make `fit` on PyTorch average the gradients of all processes.

    Each process calls `torch.distributed.init_process_group`, makes the same task and fits it on
    its share of each batch (`shard_of`). The losses equal those of one process that sees whole
    batches; metrics cover the process's own rows.

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

    if keras.backend.backend() == "torch":
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
    if keras.backend.backend() != "torch":
        raise ValueError(
            f"`data_parallel` is for PyTorch, but the backend is {keras.backend.backend()}. On "
            "JAX use `keras_transformer.distribution.ModelParallel`, on TensorFlow make the model "
            "in the scope of a tf.distribute.MirroredStrategy."
        )
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        raise ValueError(
            "`data_parallel` needs a group of processes: call "
            "torch.distributed.init_process_group first, in each process."
        )
    # A model may have weights that a task does not use, such as a pooler.
    options = {"find_unused_parameters": True, **options}
    task.train_step = _averaged_step(task, options)
    task.train_function = None
    return task


def _averaged_step(task: keras.Model, options: dict):
    """Return a `train_step` that averages the gradients of all processes."""
    import torch
    from torch import distributed

    own_loss = getattr(task, "step_loss", lambda: None)
    count = distributed.get_world_size()

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.task = task

        def forward(self, x, y, weights):
            own = own_loss()
            if own is None:
                states = task(x, training=True)
                loss = task._compute_loss(
                    x=x, y=y, y_pred=states, sample_weight=weights, training=True
                )
                return loss, states, len(keras.tree.flatten(x)[0])
            states = own.states(x, weights, training=True)
            loss = own.loss(states, x, y, weights, training=True)
            return loss, states, own.weight(x, y, weights)

    wrapped = torch.nn.parallel.DistributedDataParallel(Loss(), **options)

    def train_step(data):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        token = _processes.set(count)
        try:
            loss, states, weight = wrapped(x, y, weights)
        finally:
            _processes.reset(token)
        task.zero_grad()
        task.optimizer.scale_loss(loss).backward()
        trained, own = task.trainable_weights[:], own_loss()
        gradients = [variable.value.grad for variable in trained]
        with torch.no_grad():
            if own is None:
                task.optimizer.apply(gradients, trained)
            else:
                own.apply(gradients, trained, weight)
        whole = loss.detach().clone()
        distributed.all_reduce(whole)
        task._loss_tracker.update_state(whole / count, sample_weight=weight)
        if own is None:
            return task.compute_metrics(x, y, states, sample_weight=weights)
        return own.logs(states, x, y, weights)

    return train_step
