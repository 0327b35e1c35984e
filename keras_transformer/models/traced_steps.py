"""Steps of a model on PyTorch as graphs, where the model is compiled with `jit_compile=True`."""

import contextlib
import functools
from collections.abc import Callable, Iterator

import keras

from keras_transformer.kernels.device import on
from keras_transformer.models.accumulation import batches_done, batches_of_update

_STEPS = {"train": "train_step", "test": "test_step", "predict": "predict_step"}


def traced_step(model: keras.Model, verb: str) -> Callable | None:
    """Return the step of `"train"`, `"test"` or `"predict"`, None where it is not to be traced.

    The step is a function of a batch to a function without arguments, which computes.

    It is traced on PyTorch with `jit_compile=True`, but not:
        - with a `LossScaleOptimizer` (mixed_float16), which looks at the gradients,
        - in `data_parallel`, whose gradients are averaged while they are computed.
    """
    if not on("torch") or not model.jit_compile or model.run_eagerly:
        return None
    scaled = isinstance(getattr(model, "optimizer", None), keras.optimizers.LossScaleOptimizer)
    if scaled or "train_step" in vars(model):
        return None
    import torch

    from keras_transformer.kernels.torch_tracing.step import TracedStep, by_inductor

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
    """Within, an optimizer of Keras updates each variable by itself, as on other backends.

    What Keras has for all variables at once on PyTorch asks the host for the learning rate.
    """
    at_once = getattr(type(optimizer), "_parallel_update_step", None)
    if at_once is None or not at_once.__module__.startswith("keras."):
        yield
        return
    owners = [kind for kind in type(optimizer).__mro__ if "_backend_update_step" in vars(kind)]
    # The one behind that of PyTorch: that of the optimizer on any backend.
    optimizer._backend_update_step = functools.partial(owners[1]._backend_update_step, optimizer)
    try:
        yield
    finally:
        del optimizer._backend_update_step


def variables_of(model: keras.Model, verb: str) -> list:
    """Variables that a step reads or changes, each once."""
    found = list(model.variables)
    if verb != "predict":
        found += model.metrics_variables
    if verb == "train":
        found += model.optimizer.variables
    return list({id(variable): variable for variable in found}.values())


def _phase(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether a batch is the last of an update of the weights."""
    count = batches_of_update(optimizer)
    return count == 1 or (batches_done(optimizer) + 1) % count == 0
