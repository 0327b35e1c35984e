"""The programs of Keras's steps, on JAX: bounded in number, and compiled ahead on a CPU.

XLA makes a program for each shape, mostly on one core: a third of the time of a short fine-tuning.
Which shapes will come is known before the first step; so programs of all buckets are compiled side
by side, while the first ones train.
"""

import concurrent.futures
import contextlib
import gc
import os
import weakref

import keras

from keras_transformer.data import BucketedDataset
from keras_transformer.models.state import KeepsState, StepPrograms, signature_of
from keras_transformer.programs import PROGRAMS, TRACING, Program
from keras_transformer.training.bounded_xla import BoundedXla

# A compilation keeps one core busy, and needs some hundred megabytes.
_THREADS = min(4, os.cpu_count() or 1)


class CompilesAhead(BoundedXla, KeepsState):
    """A `keras.Model` that compiles its steps on a `BucketedDataset` ahead, and keeps a few."""

    _coming: BucketedDataset | None = None  # What `fit` or `evaluate` now goes through.

    @contextlib.contextmanager
    def _goes_through(self, data):
        before, self._coming = self._coming, data if isinstance(data, BucketedDataset) else None
        try:
            yield
        finally:
            self._coming = before

    def _step_programs(self, function, **options):
        if not _is_served():
            return super()._step_programs(function, **options)
        return AheadOfTime(function, lambda: self._coming, **options)


class AheadOfTime(StepPrograms):
    """Programs of a step that are compiled before they are needed.

    With each call one more shape is traced, which Keras cannot do in several threads, and handed to
    a thread that compiles.

    Args:
        function: see `StepPrograms`.
        coming: to the dataset whose batches will come, or None.
        **options: see `StepPrograms`.
    """

    def __init__(self, function, coming, **options):
        super().__init__(function, **options)
        self._coming = coming
        self._seen = lambda: None  # A weak reference to the dataset that was looked at last,
        self._sizes = []  # and the number of values in each group then.
        self._pending = {}  # Abstract data by signature, in the order in which it will come.
        self._under_way = {}  # Futures of compiled programs by signature.
        self._threads = None

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
        program = Program(lambda *arguments: future.result()(*arguments), compiled=True)
        PROGRAMS.put(self, signature, program)

    def _look_ahead(self, values):
        import jax

        dataset, sizes = self._coming(), list(map(len, values))
        if dataset is None or (dataset is self._seen() and sizes == self._sizes):
            return
        if sizes != self._sizes:
            self._pending.clear()  # Of other values than there are now.
        self._seen, self._sizes = weakref.ref(dataset), sizes
        for batch in dataset.examples_of_shapes():
            abstract = keras.tree.map_structure(
                lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), batch
            )
            signature = signature_of(*values, abstract)
            if PROGRAMS.peek(self, signature) is None:
                self._pending[signature] = abstract


@contextlib.contextmanager
def _no_garbage_collection():
    """Tracing makes so many objects that Python looks through all of the program's for garbage.

    It finds none, and takes as long as the trace: 0.6 s each time, with what JAX and Keras hold.
    """
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
