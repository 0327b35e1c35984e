"""Steps on PyTorch that run as a graph. Imported only on PyTorch; see `step_functions`."""

import contextlib
import functools
from collections.abc import Callable, Iterator

import keras
import torch

from keras_transformer.kernels.accumulation import batches_done, batches_of_update
from keras_transformer.kernels.torch_tracing.any_shape import AnyShape
from keras_transformer.kernels.torch_tracing.inductor import by_inductor
from keras_transformer.kernels.torch_tracing.step import TracedStep
from keras_transformer.support.signals import defer_signals

_STEPS = {"train": "train_step", "test": "test_step"}


def step_as_graph(model: keras.Model, verb: str) -> Callable | None:
    """Return the function that runs a step as a PyTorch graph, or None if it is not traced."""
    step = _traced_step(model, verb)
    if step is None:
        return None

    def whole(data):
        run = step(data)  # tracing and compiling may take long, and may be interrupted
        with defer_signals():
            return run()

    return whole


def _traced_step(model: keras.Model, verb: str) -> Callable | None:
    """Return the traced step `"train"`, `"test"` or `"predict"`, or None if it cannot be traced.

    The step maps a batch to a function without arguments that does the computation.

    In training and evaluation a step is traced for each shape of a batch, in prediction for all
    shapes at once. It is not traced
        - with a `LossScaleOptimizer` (mixed_float16), which reads the gradients,
        - in `data_parallel`, which averages the gradients while they are computed.
    """
    scaled = isinstance(getattr(model, "optimizer", None), keras.optimizers.LossScaleOptimizer)
    if scaled or "train_step" in vars(model):
        return None
    if verb == "predict":
        passes = AnyShape(lambda x: model.predict_step((x,)), model)
        return lambda data: passes.ready(keras.utils.unpack_x_y_sample_weight(data[0])[0])
    step = getattr(model, _STEPS[verb])
    trains = verb == "train"

    def plain(batch):
        with contextlib.nullcontext() if trains else torch.no_grad():
            return step(batch)

    def traceable(batch):
        with _variable_by_variable(model.optimizer) if trains else torch.no_grad():
            return step(batch)

    traced = TracedStep(
        traceable,
        plain,
        lambda: variables_of(model, verb),
        phase=lambda: _phase(model.optimizer) if trains else None,
        compile=by_inductor if trains else None,
    )
    return lambda data: traced.ready(data[0])


@contextlib.contextmanager
def _variable_by_variable(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Let a Keras optimizer update each variable separately, as on other backends.

    Keras's update of all variables at once on PyTorch reads the learning rate on the host.
    """
    at_once = getattr(type(optimizer), "_parallel_update_step", None)
    if at_once is None or not at_once.__module__.startswith("keras."):
        yield
        return
    owners = [kind for kind in type(optimizer).__mro__ if "_backend_update_step" in vars(kind)]
    # The method after PyTorch's in the MRO: the optimizer's method for any backend.
    optimizer._backend_update_step = functools.partial(owners[1]._backend_update_step, optimizer)
    try:
        yield
    finally:
        del optimizer._backend_update_step


def variables_of(model: keras.Model, verb: str) -> list:
    """Return the variables that a step of training or evaluation reads or changes, each once."""
    found = [*model.variables, *model.metrics_variables]
    if verb == "train":
        found += model.optimizer.variables
    return list({id(variable): variable for variable in found}.values())


def _phase(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether a batch is the last of an update of the weights."""
    count = batches_of_update(optimizer)
    return count == 1 or (batches_done(optimizer) + 1) % count == 0
