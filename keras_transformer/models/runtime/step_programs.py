"""Compiled programs of Keras's steps: one for each shape, and compiled ahead on JAX on a CPU.

XLA compiles a program for each shape, mostly on one core: a third of the time of a short
fine-tuning. The coming shapes are known before the first step, so on JAX the programs of all
buckets are compiled in parallel while the first ones train.
"""

import concurrent.futures
import contextlib
import functools
import gc
import os
import weakref
from collections.abc import Callable, Iterator

import keras
import numpy as np

from keras_transformer.distribution.layout import spreads_weights
from keras_transformer.kernels.device import is_on_cpu, on
from keras_transformer.kernels.programs import PROGRAMS, TRACING, Compiled
from keras_transformer.models.runtime.accumulation import batches_done, batches_of_update
from keras_transformer.support.process import release_memory

# A compilation keeps one core busy and takes a few hundred megabytes.
_THREADS = min(4, os.cpu_count() or 1)
# Assumed number of shapes if they are unknown: whole batches and the last one.
_UNKNOWN_SHAPES = 2


def step_programs(function: Callable, compact: bool = False, **options) -> "StepPrograms":
    """Return the programs of a step, see `StepPrograms`."""
    make = AheadOfTime if compiles_ahead() else StepPrograms
    return make(function, compact=compact, **options)


# XLA for a CPU drops the barriers that keep what is computed again apart from what was computed
# before, merges the two, and so keeps what rematerialization was to save.
_ON_CPU = {"xla_disable_hlo_passes": "cse_barrier_expander"}
# A model of integers is to take little memory. By default XLA for a CPU orders operations such that
# many may run at once: the matrix of the vocabulary becomes floats before the blocks, which do not
# need it, and stays until the loss.
COMPACT_ON_CPU = {**_ON_CPU, "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
# With weights spread over devices, each is to be gathered when it is used, and each gradient summed
# and cut when it is known. By default XLA for a CPU sums all gradients at once, and gathers as
# early as it can.
SPREAD_ON_CPU = {
    "xla_disable_hlo_passes": "cse_barrier_expander,cpu-all-reduce-combiner",
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
}


class StepPrograms:
    """The compiled programs of a step, one for each shape of the data, kept in `PROGRAMS`.

    Args:
        function: function of values and data that `jax.jit` compiles.
        compact: bool, whether little memory matters more than time.
        **options: options of `jax.jit`.
    """

    def __init__(self, function: Callable, compact: bool = False, **options):
        self._function, self._compact = function, compact
        self._options = options

    def program(self, *arguments) -> Callable:
        """Return the compiled program for values and data of these shapes."""

        def make():
            jitted = self._jitted()
            jitted.lower(*arguments).compile()  # later calls find this compiled program
            release_memory()
            return Compiled(jitted, compiled=True)

        return PROGRAMS.get(self, signature_of(*arguments), make)

    def _jitted(self):
        """Make a separate `jax.jit` function, so that dropping it drops all JAX keeps for it."""
        import jax

        # A program must not keep the model alive: then neither would ever be dropped.
        this = weakref.ref(self)
        return jax.jit(
            lambda *arguments: this()._function(*arguments),
            compiler_options=self.compiler_options(),
            **self._options,
        )

    def compiler_options(self) -> dict[str, str] | None:
        """Return the options of XLA for this step; None keeps its defaults."""
        import jax

        if jax.default_backend() != "cpu":
            return None
        if spreads_weights():
            return SPREAD_ON_CPU
        return COMPACT_ON_CPU if self._compact else _ON_CPU


def signature_of(*values_and_data) -> tuple:
    """Return the key that tells the programs of a step apart.

    The key holds the number of values in each group, which changes with `trainable`, and the
    structure, shapes and dtypes of the data.
    """
    import jax

    *values, data = values_and_data
    leaves, structure = jax.tree.flatten(data)
    return (
        tuple(map(len, values)),
        structure,
        tuple((np.shape(x), str(getattr(x, "dtype", type(x)))) for x in leaves),
    )


class AheadOfTime(StepPrograms):
    """Programs of a step compiled before they are needed: each call traces one more shape."""

    def __init__(self, function, compact: bool = False, **options):
        super().__init__(function, compact, **options)
        self._expected = lambda: None  # A weak reference to the dataset of the coming batches,
        self._sizes = None  # and the number of values in each group when it was read.
        self._pending = {}  # Abstract data by signature, in the expected order.
        self._under_way = {}  # Futures of compiled programs by signature.
        self._threads = None

    def expect(self, data) -> None:
        """Expect batches of `data` from now on, if it tells the shapes of its batches."""
        dataset = data if hasattr(data, "examples_of_shapes") else None
        if dataset is None or dataset is not self._expected():
            self._pending.clear()
            self._sizes = None
            self._expected = (lambda: None) if dataset is None else weakref.ref(dataset)

    def program(self, *arguments):
        *values, _ = arguments
        signature = signature_of(*arguments)
        if PROGRAMS.peek(self, signature) is None:
            self._look_ahead(values)
        for wanted in (signature, next(iter(self._pending), None)):
            if wanted in self._pending:
                self._compile_ahead(values, wanted)
        future = self._under_way.pop(signature, None)
        if future is not None:
            future.result()  # waiting here can be interrupted, unlike within the step
            release_memory()
        return super().program(*arguments)

    def _compile_ahead(self, values, signature):
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "compile")
        with TRACING, _no_garbage_collection():
            lowered = self._jitted().lower(*values, self._pending.pop(signature))
        future = self._under_way[signature] = self._threads.submit(lowered.compile)
        program = Compiled(lambda *arguments: future.result()(*arguments), compiled=True)
        PROGRAMS.put(self, signature, program)

    def _look_ahead(self, values):
        import jax

        dataset, sizes = self._expected(), list(map(len, values))
        if dataset is None or sizes == self._sizes:
            return
        self._pending.clear()  # they were for other values
        self._sizes = sizes
        for batch in dataset.examples_of_shapes():
            abstract = keras.tree.map_structure(
                lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), batch
            )
            signature = signature_of(*values, abstract)
            if PROGRAMS.peek(self, signature) is None:
                self._pending[signature] = abstract


@contextlib.contextmanager
def _no_garbage_collection():
    """Disable garbage collection: in a trace it finds nothing and takes as long as the trace."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def compiles_ahead() -> bool:
    """Return whether programs are for a CPU, without a distribution."""
    import jax

    # A distribution gives the arrays of a batch a layout that their shapes do not show. On a GPU
    # XLA tries out kernels while it compiles, and would do so during the training.
    return jax.default_backend() == "cpu" and keras.distribution.distribution() is None


# TensorFlow never frees XLA programs, so their number in a process is limited: beyond it a slower
# graph serves all shapes.


def expect(model: keras.Model, step: str, data, is_batch: bool = False) -> None:
    """Announce the data of a step, such as `"train"`, to the programs of a model."""
    backend = keras.backend.backend()
    if backend == "tensorflow" and model.jit_compile:
        _reserve(model, f"{step}_function", data, is_batch)
    if backend != "jax" or is_batch or not model.compiled or not compiles_ahead():
        return
    getattr(model, f"make_{step}_function")()
    programs = getattr(getattr(model, f"{step}_function"), "programs", None)
    if isinstance(programs, AheadOfTime):
        programs.expect(data)


def _reserve(model: keras.Model, name: str, data, is_batch: bool) -> None:
    """Reserve programs for the coming shapes, or switch off XLA if the limit is reached."""
    if name not in model._functions_without_xla:
        shapes = {(name, shape) for shape in _shapes(data, is_batch)}
        new = shapes - model._shapes_of_xla
        if PROGRAMS.may_last(len(new) if shapes else _UNKNOWN_SHAPES):
            model._shapes_of_xla |= new
            return
        model._functions_without_xla |= {name}
        setattr(model, name, None)
    if getattr(model, name) is None:
        model.jit_compile = False
        try:
            getattr(model, f"make_{name}")()
        finally:
            model.jit_compile = True


def runs_at_once(model: keras.Model) -> bool:
    """Return whether a call of a step lasts as long as the step: PyTorch on a CPU, uncompiled."""
    return on("torch") and not model.jit_compile and is_on_cpu(model)


def _shapes(data, is_batch: bool) -> set:
    """Return the shapes of the batches of `data`, an empty set if they are unknown."""
    if hasattr(data, "examples_of_shapes"):
        return {shapes_of_batch(batch) for batch in data.examples_of_shapes()}
    arrays = keras.tree.flatten(data)
    if arrays and all(hasattr(array, "shape") for array in arrays):
        # Arrays are split into batches of a size unknown here, and a last one.
        signature = shapes_of_batch(data)
        return {signature} if is_batch else {(signature, "whole"), (signature, "last")}
    return set()


def shapes_of_batch(batch) -> tuple:
    """Return the shape of each array of a batch."""
    return tuple(
        None if array is None else tuple(array.shape) for array in keras.tree.flatten(batch)
    )


_STEPS = {"train": "train_step", "test": "test_step"}


def traced_step(model: keras.Model, verb: str) -> Callable | None:
    """Return the traced step `"train"`, `"test"` or `"predict"`, or None if it cannot be traced.

    The step maps a batch to a function without arguments that does the computation.

    Steps are traced on PyTorch with `jit_compile=True`: in training and evaluation for each shape
    of a batch, in prediction for all shapes at once. They are not traced
        - with a `LossScaleOptimizer` (mixed_float16), which reads the gradients,
        - in `data_parallel`, which averages the gradients while they are computed.
    """
    if not on("torch") or not model.jit_compile or model.run_eagerly:
        return None
    scaled = isinstance(getattr(model, "optimizer", None), keras.optimizers.LossScaleOptimizer)
    if scaled or "train_step" in vars(model):
        return None
    import torch

    from keras_transformer.kernels.torch_tracing.any_shape import AnyShape
    from keras_transformer.kernels.torch_tracing.step import TracedStep, by_inductor

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
