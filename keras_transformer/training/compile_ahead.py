"""With JAX on a CPU, programs of all buckets are compiled side by side, while the first ones train.

XLA makes a program for each shape, mostly on one core: a third of the time of a short fine-tuning.
Which shapes will come is known before the first step.
"""

import concurrent.futures
import contextlib
import gc
import os
import weakref

import keras

from keras_transformer.data import BucketedDataset
from keras_transformer.models.state import CompiledWhenItComes, KeepsState, signature_of

# A compilation keeps one core busy, and needs some hundred megabytes.
_THREADS = min(4, os.cpu_count() or 1)


class CompilesAhead(KeepsState):
    """A `keras.Model` that compiles its steps on a `BucketedDataset` ahead."""

    _coming: BucketedDataset | None = None  # What `fit` or `evaluate` now goes through.

    @contextlib.contextmanager
    def _goes_through(self, data):
        before, self._coming = self._coming, data if isinstance(data, BucketedDataset) else None
        try:
            yield
        finally:
            self._coming = before

    def _compiled_step(self, function):
        if not _is_served():
            return super()._compiled_step(function)
        return AheadOfTime(function, lambda: self._coming)


class AheadOfTime(CompiledWhenItComes):
    """A function of values and data whose programs are compiled before they are needed.

    With each call one more shape is traced, which Keras cannot do in several threads, and handed to
    a thread that compiles.

    Args:
        function: of `jax.jit`.
        coming: function without arguments that returns the `BucketedDataset` that `data` is of, or
            None. Other data is compiled for when it comes.
    """

    def __init__(self, function, coming):
        super().__init__(function)
        self._coming = coming
        self._seen = lambda: None  # A weak reference to the dataset that was looked at last.
        self._pending = {}  # Abstract data by signature, in the order in which it will come.
        self._programs = {}  # Futures of compiled programs by signature.
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "compile")

    def program(self, *arguments):
        *values, data = arguments
        signature = signature_of(data)
        if signature not in self._programs:
            self._look_ahead()
        for wanted in (signature, next(iter(self._pending), None)):
            if wanted in self._pending:
                with _no_garbage_collection():
                    lowered = self._function.lower(*values, self._pending[wanted])
                self._programs[wanted] = self._threads.submit(lowered.compile)
                del self._pending[wanted]
        if signature not in self._programs:
            return super().program(*arguments)
        return self._programs[signature].result()

    def _look_ahead(self):
        import jax

        dataset = self._coming()
        if dataset is None or dataset is self._seen():
            return
        self._seen = weakref.ref(dataset)
        for batch in dataset.examples_of_shapes():
            abstract = keras.tree.map_structure(
                lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), batch
            )
            signature = signature_of(abstract)
            if signature not in self._programs:
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
