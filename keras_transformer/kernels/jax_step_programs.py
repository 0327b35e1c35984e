"""Compiled programs of Keras's steps on JAX: one for each shape, on a CPU compiled ahead.

XLA compiles a program for each shape, mostly on one core: a third of the time of a short
fine-tuning. The coming shapes are known before the first step, so the programs of all buckets are
compiled in parallel while the first ones train.
"""

import concurrent.futures
import contextlib
import gc
import os
import weakref
from collections.abc import Callable

import keras
import numpy as np

from keras_transformer.kernels.process import release_memory
from keras_transformer.kernels.programs import PROGRAMS, TRACING, Compiled

# A compilation keeps one core busy and takes a few hundred megabytes.
_THREADS = min(4, os.cpu_count() or 1)


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
        # True of `distribution.ModelParallel` if devices that see different rows share the weights.
        if getattr(keras.distribution.distribution(), "spreads_weights", False):
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
