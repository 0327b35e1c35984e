"""Store of the compiled programs of a process, which drops the least recently used.

A program is compiled for certain shapes, and a long-running process sees many. Each program takes
some megabytes, and with XLA on a CPU some hundred memory maps, of which Linux allows a process
65,530; beyond that it ends with a segmentation fault. So one bounded store serves all models, and
programs not in it are freed.
"""

import functools
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.device import device, on
from keras_transformer.kernels.process import release_memory
from keras_transformer.support.sizes import RequestHistory

# Maximum number of programs in memory, and of those among them that can never be freed. On JAX each
# operation that runs by itself, for example while a model is created, is a program too and counts,
# but the store always keeps `LEAST_PROGRAMS`. A TensorFlow program takes about fifty megabytes:
# there are fewer, so that memory levels off early.
MOST_PROGRAMS = 40 if keras.backend.backend() == "tensorflow" else 60
MOST_UNEVICTABLE = 20
LEAST_PROGRAMS = 24
# XLA shares the memory of arrays that begin at a multiple of this number of bytes.
_ALIGNED = 64

# What Keras would run operation by operation. `RandomCrop` is not among them: it slices at a place
# that is unknown until a step runs.
_COMPILED_BY_JAX = (
    keras.layers.RandomPerspective,
    keras.layers.RandomRotation,
    keras.layers.RandomShear,
    keras.layers.RandomTranslation,
    keras.layers.RandomZoom,
)

# Held while a function is traced. Keras, `make_fx` and TensorFlow's tracers keep their state in
# objects that all threads share.
TRACING = threading.RLock()


class Compiled:
    """Function whose first call compiles it, while no other thread may trace."""

    def __init__(self, function: Callable, compiled: bool = False, unevictable: bool = False):
        self.unevictable = unevictable  # its memory is never freed, so it is kept
        self.compiled = compiled
        self._function = function

    def __call__(self, *args):
        if not self.compiled:
            with TRACING:
                if not self.compiled:
                    result = self._function(*args)
                    self.compiled = True
                    release_memory()
                    return result
        return self._function(*args)


class Programs:
    """Programs by owner and key (such as shapes); the least recently used are dropped.

    A program that is dropped while another thread runs it finishes its run. When an owner, to which
    its programs must not refer, is garbage-collected, its programs are dropped too.
    """

    def __init__(self, most: int = MOST_PROGRAMS, most_unevictable: int = MOST_UNEVICTABLE):
        self.most = most  # programs in memory; on JAX including those outside this store
        self.most_unevictable = most_unevictable
        self.made = 0  # since the process began
        self.unevictable = 0  # programs made that can never be freed
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[int, Hashable], Compiled] = OrderedDict()
        self._owners: dict[int, weakref.finalize] = {}

    def get(self, owner: object, key: Hashable, make: Callable[[], Compiled]) -> Compiled:
        """Return the program of a key, made by `make` if it is missing, in one thread at a time."""
        place = (id(owner), key)
        with self._lock:
            program = self._kept.get(place)
            if program is not None:
                self._kept.move_to_end(place)
                return program
        # Not under the lock of the store: others may continue with existing programs.
        with TRACING:
            program = self.peek(owner, key)
            return self.put(owner, key, make()) if program is None else program

    def peek(self, owner: object, key: Hashable) -> Compiled | None:
        """Return the program of a key, or None. This does not count as a use."""
        return self._kept.get((id(owner), key))

    def put(self, owner: object, key: Hashable, program: Compiled) -> Compiled:
        """Store a program, drop others if there are too many, and return it."""
        with self._lock:
            if id(owner) not in self._owners:
                self._owners[id(owner)] = weakref.finalize(owner, self._forget, id(owner))
            self._kept[(id(owner), key)] = program
            self.made += 1
            self._make_room()
        return program

    def forget(self, owner: object) -> None:
        """Drop all programs of an owner."""
        finalizer = self._owners.get(id(owner))
        if finalizer is not None:
            finalizer()

    def keys(self, owner: object) -> list:
        """Return the keys stored for an owner, the most recently used last."""
        return [key for mine, key in list(self._kept) if mine == id(owner)]

    def may_last(self, count: int = 1) -> bool:
        """Reserve `count` places for programs that can never be freed, all or none of them."""
        with self._lock:
            # At least one place remains for programs that can be dropped.
            if self.unevictable + count > min(self.most_unevictable, self.most - 1):
                return False
            self.unevictable += count
            return True

    def __len__(self) -> int:
        """Return the number of programs in memory, including dropped ones that cannot be freed."""
        return self.unevictable + sum(
            not program.unevictable for program in list(self._kept.values())
        )

    def _make_room(self) -> None:
        others = self._others()
        # Leave room for one or two operations that are compiled before this is called again.
        most = self.most - others - 2 if others else self.most
        most = max(min(self.most, LEAST_PROGRAMS), most)
        going = [place for place, kept in list(self._kept.items())[:-1] if not kept.unevictable]
        for place in going[: max(0, len(self) - most)]:
            self._kept.pop(place, None)

    def _others(self) -> int:
        """Return the number of programs of the process outside the store, as far as countable."""
        if keras.backend.backend() != "jax":
            return 0
        import jax

        mine = sum(program.compiled for program in list(self._kept.values()))
        return max(0, len(jax.local_devices()[0].client.live_executables()) - mine)

    def _forget(self, owner: int) -> None:
        # May be called by the garbage collector at any point of this thread.
        with self._lock:
            self._owners.pop(owner, None)
            for place in list(self._kept):
                if place[0] == owner:
                    self._kept.pop(place, None)


PROGRAMS = Programs()


class CompiledFunction:
    """Compiled function on JAX, see `compile_function`; its programs are in `PROGRAMS`."""

    def __init__(self, function: Callable, models: Sequence[keras.Model], **options):
        self._function = function
        self._models = models
        self._options = options

    def __call__(self, *args, **static):
        weights = weights_of(self._models)
        shapes = tuple(
            None if x is None else (tuple(x.shape), x.dtype) for x in keras.tree.flatten(args)
        )
        # A trace keeps the variables it was made with: new variables, as with LoRA, need a new one.
        key = (shapes, tuple(static.items()), hash(tuple(map(id, weights))))
        return self._run(key, weights, args, static)

    def _run(self, key, weights: list, args: tuple, static: dict):
        program = PROGRAMS.get(self, key, lambda: self._compile(static))
        return program([variable.value for variable in weights], *args)

    def _compile(self, static: dict) -> Compiled:
        import jax

        function, models = self._function, self._models  # A program must not keep its owner alive.
        donate = [1 + place for place in self._options["donate"]]

        # Each program has a function of its own: with it JAX drops everything it keeps for it.
        def pure(values, *args):
            mapping = list(zip(weights_of(models), values, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                return function(*args, **static)

        jitted = jax.jit(pure, donate_argnums=donate)
        # Arrays that are spread over devices may be laid out differently with the same shapes,
        # which needs another program.
        alone = keras.distribution.distribution() is None
        return Compiled(_OfOneShape(jitted) if alone else jitted)


class _OfOneShape:
    """JAX function for the shapes of its first call, which does not keep its trace in memory.

    The trace takes two fifths of the memory of the program.
    """

    def __init__(self, jitted: Callable):
        self._jitted = jitted
        self._program: Callable | None = None

    def __call__(self, *args):
        if self._program is None:
            self._program = self._jitted.lower(*args).compile()
            self._jitted = None
        return self._program(*args)


class TensorflowFunction(CompiledFunction):
    """Function on TensorFlow, compiled if that is worth the memory it never frees.

    TensorFlow never frees an XLA program; only loops are compiled by XLA, as long as there are
    places for such programs. Of a dropped graph it keeps some megabytes. So a single pass of a rare
    shape runs operation by operation when there are many programs, and functions that only move
    numbers always do.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._recent = RequestHistory()

    def _run(self, key, weights: list, args: tuple, static: dict):
        pays = self._recent.often(key) or self._options["loops"] or len(PROGRAMS) < LEAST_PROGRAMS
        if self._options["moves"] or not (pays or PROGRAMS.peek(self, key)):
            return self._function(*args, **static)
        return PROGRAMS.get(self, key, lambda: self._compile(static))(*args)

    def _compile(self, static: dict) -> Compiled:
        import tensorflow as tf

        unevictable = self._options["loops"] and PROGRAMS.may_last()
        traced = tf.function(
            _Once(self._function, static), jit_compile=unevictable or None, autograph=False
        )
        return Compiled(traced, unevictable=unevictable)


class _Once:
    """Callable that TensorFlow traces once.

    Each trace has its own: TensorFlow would take functions that share code for one function that is
    traced repeatedly, and warn.
    """

    def __init__(self, function: Callable, static: dict):
        self.function, self.static = function, static

    def __call__(self, *args):
        return self.function(*args, **self.static)


def compile_function(
    function: Callable,
    *models: keras.Model,
    donate: tuple[int, ...] = (),
    loops: bool = False,
    moves: bool = False,
) -> Callable:
    """Compile `function` for each set of shapes, with the present weights of `models`.

    On PyTorch it runs uncompiled, without gradients.

    Args:
        function: function of nested structures of tensors to such structures. It reads weights of
            `models`, but does not change them. Keyword arguments are static: other values need
            another program.
        *models: built Keras models.
        donate: indices of arguments that the caller does not use again: their memory is reused
            for the results where the backend can (JAX).
        loops: bool, whether the function spends most of its time in a loop of steps: TensorFlow
            then compiles it by XLA, as long as there is room for programs that can never be freed.
        moves: bool, whether the function only moves a few large tensors, without products:
            TensorFlow then runs it uncompiled.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        return CompiledFunction(function, models, donate=donate)
    if backend == "tensorflow":
        return TensorflowFunction(function, models, loops=loops, moves=moves)
    if backend == "torch":
        return without_gradients(*models)(function)
    raise RuntimeError(
        f"Functions are compiled on the backends jax, tensorflow and torch, not on {backend!r}. "
        "Set KERAS_BACKEND to one of them."
    )


def are_spread(models) -> bool:
    """Return whether processes share the weights of models, on PyTorch."""
    return any(getattr(model, "is_spread", False) for model in models)


def without_gradients(*models: keras.Model) -> Callable:
    """Decorate a function that PyTorch computes without gradients.

    Weights that are gathered in PyTorch's inference mode could not be trained afterwards. What is
    made in that mode changes in it alone, so without models the mode is that of the given tensors.
    """
    import torch
    import torch.utils._pytree as pytree

    def infers(args) -> bool:
        if models:
            return not are_spread(models)
        # Keras's `tree.flatten` would hold the tensors in a circle until garbage is collected: a
        # cache that grows would need twice its memory.
        return any(torch.is_tensor(x) and x.is_inference() for x in pytree.tree_leaves(args))

    def decorate(function):
        @functools.wraps(function)
        def run(*args, **static):
            with torch.inference_mode() if infers(args) else torch.no_grad():
                return function(*args, **static)

        return run

    return decorate


def compile_gradients(function: Callable, *models: keras.Model) -> Callable:
    """Compile a function that computes gradients; on PyTorch, return the function itself."""
    return function if on("torch") else compile_function(function, *models)


def to_tensor(array, dtype: str | None = None):
    """Convert a NumPy array to a tensor.

    On JAX Keras's conversion would compile a program for each shape.
    """
    if keras.backend.backend() != "jax":
        return ops.convert_to_tensor(array, dtype)
    import jax

    return jax.device_put(np.asarray(array, dtype), may_alias=False)


def without_copy(array: np.ndarray):
    """Return an array that `to_tensor` need not copy, on PyTorch. Nobody may write to it later."""
    shared = array.dtype in ("float16", "float32") and array.flags.writeable
    if keras.backend.backend() != "torch" or not shared or min(array.strides, default=0) < 0:
        return array
    import torch

    return torch.from_numpy(array)


def host_zeros(shape: tuple[int, ...], dtype: str):
    """Make zeros in memory that the system provides only once it is written to, if on a CPU.

    TensorFlow copies them. Other backends share the memory of a NumPy array, which JAX takes at
    multiples of 64 bytes only.
    """
    if keras.backend.backend() == "torch":
        import torch

        kind = getattr(torch, dtype)
        zeros = torch.from_numpy(np.zeros(math.prod(shape) * kind.itemsize, "uint8"))
        return ops.convert_to_tensor(zeros.view(kind).reshape(shape))
    if keras.backend.backend() != "jax" or not device().is_cpu:
        return to_tensor(np.zeros(shape, "float32"), dtype)
    import jax

    kind = jax.numpy.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = np.zeros(size + _ALIGNED, "uint8")
    start = -memory.ctypes.data % _ALIGNED
    zeros = memory[start : start + size].view(kind).reshape(shape)
    return jax.device_put(zeros, may_alias=True)


def weights_of(models: Sequence[keras.Model]) -> list:
    """Return the weights of all the models."""
    return [variable for model in models for variable in model.weights]


def compiles_by_default(default: bool) -> bool:
    """Return whether `jit_compile="auto"` compiles; `default` is Keras's answer."""
    # By default Keras does not compile on PyTorch.
    return device().kind == "cuda" if on("torch") else default


def let_compile(model: keras.Model) -> list[str]:
    """Mark layers of Keras's image augmentation as those that JAX compiles, which most are.

    Keras marks them all as unfit for XLA, for TensorFlow's sake, and one such layer makes it run
    whole training steps operation by operation on JAX: 17 s a step in place of 0.7 s for a small
    classifier of 16 images of 48 x 48, on a quarter of a core.

    Args:
        model: model with these layers, changed in place.

    Returns:
        The classes of the other layers with which steps on JAX are not compiled, each once; none
        on another backend, where they cost less.
    """
    if not on("jax"):
        return []
    layers = model._flatten_layers()
    unfit = [layer for layer in layers if not layer.supports_jit]
    for layer in unfit:
        layer.supports_jit = type(layer) in _COMPILED_BY_JAX
    return sorted({type(layer).__name__ for layer in unfit if not layer.supports_jit})
