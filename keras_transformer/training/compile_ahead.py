"""The programs of Keras's steps: bounded in number, and on JAX compiled ahead on a CPU.

XLA makes a program for each shape, mostly on one core: a third of the time of a short fine-tuning.
Which shapes will come is known before the first step; so on JAX programs of all buckets are
compiled side by side, while the first ones train. TensorFlow never gives back a program of XLA, so
there is an end to how many a process makes: then a graph serves all shapes, and takes longer.
"""

import concurrent.futures
import contextlib
import gc
import os
import time
import weakref

import keras

from keras_transformer.data import BucketedDataset
from keras_transformer.kernels.programs import PROGRAMS, TRACING, Compiled
from keras_transformer.models.state import KeepsState, StepPrograms, signature_of
from keras_transformer.process import SLOW_STEPS
from keras_transformer.training.steps import OutputLoss, TrainingLoss, compute_step

# A compilation keeps one core busy, and needs some hundred megabytes.
_THREADS = min(4, os.cpu_count() or 1)
# The shapes that data is taken to have of which they are not known: whole batches and the last.
_UNKNOWN_SHAPES = 2


class CompiledSteps(KeepsState):
    """A `keras.Model` whose steps compute its `TrainingLoss`, if any, and are compiled ahead."""

    _shapes_of_xla: frozenset = frozenset()
    _as_graph: frozenset = frozenset()  # the functions that run without XLA

    def training_loss(self) -> TrainingLoss | None:
        """What `fit` and `evaluate` compute in a step. None for Keras's loss of the outputs."""
        return None

    def step_loss(self) -> TrainingLoss:
        """What a step computes: the model's own loss, or Keras's."""
        return self.training_loss() or OutputLoss(self)

    def train_step(self, *args):
        if not self.trainable_weights:  # of which Keras warns
            return super().train_step(*args)
        begin = time.perf_counter()
        logs = compute_step(self.step_loss(), *args, training=True)
        if _runs_at_once(self):
            SLOW_STEPS.note((id(self), _signature(args[-1])), time.perf_counter() - begin)
        return logs

    def test_step(self, *args):
        return compute_step(self.step_loss(), *args, training=False)

    def _expect(self, step: str, data, is_batch: bool = False) -> None:
        """Tells the programs of a step, such as `"train"`, what a verb now goes through."""
        backend = keras.backend.backend()
        if backend == "tensorflow" and self.jit_compile:
            self._bound(f"{step}_function", data, is_batch)
        if backend != "jax" or is_batch or not self.compiled or not _is_served():
            return
        getattr(self, f"make_{step}_function")()
        programs = getattr(getattr(self, f"{step}_function"), "programs", None)
        if isinstance(programs, AheadOfTime):
            programs.expect(data)

    def _bound(self, name: str, data, is_batch: bool) -> None:
        """Takes the places of the shapes that will come, or leaves XLA if there are none left."""
        if name not in self._as_graph:
            shapes = {(name, shape) for shape in _shapes(data, is_batch)}
            new = shapes - self._shapes_of_xla
            if PROGRAMS.may_last(len(new) if shapes else _UNKNOWN_SHAPES):
                self._shapes_of_xla |= new
                return
            self._as_graph |= {name}
            setattr(self, name, None)
        if getattr(self, name) is None:
            self.jit_compile = False
            try:
                getattr(self, f"make_{name}")()
            finally:
                self.jit_compile = True

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Keras 3.15 learns the shapes from the mean of the replicas' batches, but masks are boolean
        # and have no mean. The batch of one replica does as well. Read outside of an epoch, it does
        # not count as a pass over a dataset of few batches.
        if iterator is not None and self._distribute_strategy is not None:
            data_batch = keras.tree.map_structure(
                lambda value: self._distribute_strategy.experimental_local_results(value)[0],
                next(iter(iterator._get_iterator())),
            )
            iterator = None
        super()._maybe_symbolic_build(iterator, data_batch)

    def _step_programs(self, function, **options):
        make = AheadOfTime if _is_served() else StepPrograms
        return make(function, **options)


class AheadOfTime(StepPrograms):
    """Programs of a step compiled before they are needed: a call traces one shape more."""

    def __init__(self, function, **options):
        super().__init__(function, **options)
        self._expected = lambda: None  # A weak reference to the dataset whose batches will come,
        self._sizes = None  # and the number of values in each group when it was looked at.
        self._pending = {}  # Abstract data by signature, in the order in which it will come.
        self._under_way = {}  # Futures of compiled programs by signature.
        self._threads = None

    def expect(self, data) -> None:
        """From now on the batches of `data` come. Ahead is compiled for a `BucketedDataset`."""
        dataset = data if isinstance(data, BucketedDataset) else None
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
            future.result()  # Here, where the wait can be interrupted, and not within the step.
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
        self._pending.clear()  # Of other values than there are now.
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
    """Without looks for garbage: in a trace they find none, and take as long as the trace."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _is_served() -> bool:
    """Whether programs are for a CPU, without a distribution."""
    import jax

    # A distribution gives the arrays of a batch a layout, which a shape does not tell. On a GPU
    # XLA tries kernels out when it compiles, and would do so beside the training.
    return jax.default_backend() == "cpu" and keras.distribution.distribution() is None


def _runs_at_once(model: keras.Model) -> bool:
    """Whether a call of a step takes the time of the step: on PyTorch on a CPU, not compiled."""
    if keras.backend.backend() != "torch" or model.jit_compile:
        return False
    return model.trainable_weights[0].value.device.type == "cpu"


def _shapes(data, is_batch: bool) -> set:
    """The shapes of the batches of `data`, empty if they are not known."""
    if isinstance(data, BucketedDataset):
        return {_signature(batch) for batch in data.examples_of_shapes()}
    arrays = keras.tree.flatten(data)
    if arrays and all(hasattr(array, "shape") for array in arrays):
        # Of arrays, batches of a size that is not known here, and a last one.
        signature = _signature(data)
        return {signature} if is_batch else {(signature, "whole"), (signature, "last")}
    return set()


def _signature(batch) -> tuple:
    return tuple(
        None if array is None else tuple(array.shape) for array in keras.tree.flatten(batch)
    )
