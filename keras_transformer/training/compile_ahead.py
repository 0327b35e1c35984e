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
from keras_transformer.programs import PROGRAMS, TRACING, Program
from keras_transformer.training.bounded_xla import BoundedXla

# A compilation keeps one core busy, and needs some hundred megabytes.
_THREADS = min(4, os.cpu_count() or 1)
# With a distribution, the shapes of a step for which programs are kept.
_MOST_SHAPES = 12


class CompilesAhead(BoundedXla):
    """A `keras.Model` that compiles its steps on a `BucketedDataset` ahead, and keeps a few."""

    _coming: BucketedDataset | None = None  # What `fit` or `evaluate` now goes through.

    @contextlib.contextmanager
    def _goes_through(self, data):
        before, self._coming = self._coming, data if isinstance(data, BucketedDataset) else None
        try:
            yield
        finally:
            self._coming = before

    def _make_function(self, step_function, *args, **kwargs):
        # Of Keras's trainer on JAX, where a step is of `jax.jit`, unless it is run eagerly.
        if hasattr(step_function, "lower"):
            step_function = AheadOfTime(step_function, lambda: self._coming)
        return super()._make_function(step_function, *args, **kwargs)


class AheadOfTime:
    """A function of `(state, data)` whose programs are in `PROGRAMS`, made before they are needed.

    On a CPU with each call one more shape is traced, which Keras cannot do in several threads, and
    handed to a thread that compiles.

    Args:
        function: of `jax.jit`.
        coming: function without arguments that returns the `BucketedDataset` that `data` is of, or
            None. Other data is compiled for when it comes.
    """

    def __init__(self, function, coming):
        self._function = function
        self._coming = coming
        self._seen = lambda: None  # A weak reference to the dataset that was looked at last.
        self._pending = {}  # Abstract data by signature, in the order in which it will come.
        self._threads = None

    def __call__(self, state, data):
        signature = _signature(data)
        if keras.distribution.distribution() is not None:
            return self._of_few_shapes(signature)(state, data)
        if PROGRAMS.peek(self, signature) is None and _is_served():
            self._look_ahead()
        for wanted in (signature, next(iter(self._pending), None)):
            if wanted in self._pending:
                self._compile_ahead(state, wanted)
        make = self._of_one_shape
        return PROGRAMS.get(self, signature, lambda: Program(make()))(state, data)

    def _of_one_shape(self):
        """A function of `jax.jit` of its own: dropped with it is all that JAX keeps of it."""
        import jax

        # A program is not to keep the model: then nothing would ever drop it.
        this = weakref.ref(self)
        return jax.jit(
            lambda state, data: this()._function.__wrapped__(state, data), donate_argnums=0
        )

    def _of_few_shapes(self, signature):
        """The function as Keras made it, for its layouts, without what it has for other shapes."""
        if len(PROGRAMS.keys(self)) >= _MOST_SHAPES and PROGRAMS.peek(self, signature) is None:
            PROGRAMS.forget(self)
            self._function.clear_cache()
        this = weakref.ref(self)
        make = lambda: Program(lambda state, data: this()._function(state, data))  # noqa: E731
        return PROGRAMS.get(self, signature, make)

    def _compile_ahead(self, state, signature):
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "compile")
        with TRACING, _no_garbage_collection():
            lowered = self._of_one_shape().lower(state, self._pending.pop(signature))
        future = self._threads.submit(lowered.compile)
        program = Program(lambda state, data: future.result()(state, data), compiled=True)
        PROGRAMS.put(self, signature, program)

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
            signature = _signature(abstract)
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


def _signature(data) -> tuple:
    """Structure, shapes and dtypes."""
    import jax

    leaves, structure = jax.tree.flatten(data)
    return structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
