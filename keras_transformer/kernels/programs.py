"""The compiled programs of a process: a bounded number, of which the least recently used go.

A program is made for shapes, and a process that lives long sees many. Each takes some megabytes,
and with XLA on a CPU some hundred memory maps, of which Linux gives a process 65,530: then it ends
with a segmentation fault. So there is one store for all models, and what is not in it is gone.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.process import release_memory
from keras_transformer.sizes import Recent

# So many programs are in memory at most, of them so many that last. On JAX each operation that runs
# by itself is a program too, such as when a model is made: they count, and leave room for so many.
# One of TensorFlow takes some fifty megabytes: they are fewer, so that memory levels off early.
MOST_PROGRAMS = 40 if keras.backend.backend() == "tensorflow" else 60
MOST_LASTING = 20
LEAST_PROGRAMS = 24

# Held while something is traced. Keras, `make_fx` and the tracers of TensorFlow keep what they
# are at in objects that all threads share.
TRACING = threading.RLock()


class Compiled:
    """A function whose first call compiles, and lets no other thread trace meanwhile."""

    def __init__(self, function: Callable, compiled: bool = False, lasting: bool = False):
        self.lasting = lasting  # whether its memory stays taken when it is dropped: then it is not
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
    """Programs by what they are of and for which shapes; the least recently used go.

    A program that is dropped while another thread runs it ends its run. An owner, which its
    programs must not refer to, takes them with it when it is no longer used.
    """

    def __init__(self, most: int = MOST_PROGRAMS, most_lasting: int = MOST_LASTING):
        self.most = most  # programs in memory; on JAX with those that are not of this store
        self.most_lasting = most_lasting
        self.made = 0  # since the process began
        self.lasting = 0  # made, and can never be given back
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[int, Hashable], Compiled] = OrderedDict()
        self._owners: dict[int, weakref.finalize] = {}

    def get(self, owner: object, key: Hashable, make: Callable[[], Compiled]) -> Compiled:
        """The program of a key, by `make` if it is not kept, in one thread at a time."""
        place = (id(owner), key)
        with self._lock:
            program = self._kept.get(place)
            if program is not None:
                self._kept.move_to_end(place)
                return program
        # Not under the lock of the store: others may go on with programs that there are.
        with TRACING:
            program = self.peek(owner, key)
            return self.put(owner, key, make()) if program is None else program

    def peek(self, owner: object, key: Hashable) -> Compiled | None:
        """The program of a key, or None. It does not count as a use."""
        return self._kept.get((id(owner), key))

    def put(self, owner: object, key: Hashable, program: Compiled) -> Compiled:
        """Keeps a program, and drops others if there are too many. Returns it."""
        with self._lock:
            if id(owner) not in self._owners:
                self._owners[id(owner)] = weakref.finalize(owner, self._forget, id(owner))
            self._kept[(id(owner), key)] = program
            self.made += 1
            self._make_room()
        return program

    def forget(self, owner: object) -> None:
        """Drops all programs of an owner."""
        finalizer = self._owners.get(id(owner))
        if finalizer is not None:
            finalizer()

    def keys(self, owner: object) -> list:
        """The keys of what is kept for an owner, the one used last at the end."""
        return [key for mine, key in list(self._kept) if mine == id(owner)]

    def may_last(self, count: int = 1) -> bool:
        """Takes `count` places of programs that can never be given back, all or none of them."""
        with self._lock:
            # One place at least is for those that go.
            if self.lasting + count > min(self.most_lasting, self.most - 1):
                return False
            self.lasting += count
            return True

    def __len__(self) -> int:
        """How many programs are in memory, those counted that are dropped and last."""
        return self.lasting + sum(not program.lasting for program in list(self._kept.values()))

    def _make_room(self) -> None:
        others = self._others()
        # One more operation by itself, or two, may come before there is room to be made again.
        most = self.most - others - 2 if others else self.most
        most = max(min(self.most, LEAST_PROGRAMS), most)
        going = [place for place, kept in list(self._kept.items())[:-1] if not kept.lasting]
        for place in going[: max(0, len(self) - most)]:
            self._kept.pop(place, None)

    def _others(self) -> int:
        """Programs of the process that are not in the store, of those that can be counted."""
        if keras.backend.backend() != "jax":
            return 0
        import jax

        mine = sum(program.compiled for program in list(self._kept.values()))
        return max(0, len(jax.local_devices()[0].client.live_executables()) - mine)

    def _forget(self, owner: int) -> None:
        # May come from the garbage collector at any place in this thread.
        with self._lock:
            self._owners.pop(owner, None)
            for place in list(self._kept):
                if place[0] == owner:
                    self._kept.pop(place, None)


PROGRAMS = Programs()


class CompiledFunction:
    """What `compile_function` gives on JAX; its programs are in `PROGRAMS`."""

    def __init__(self, function: Callable, models: Sequence[keras.Model], **options):
        self._function = function
        self._models = models
        self._options = options

    def __call__(self, *args, **static):
        weights = weights_of(self._models)
        shapes = tuple(
            None if x is None else (tuple(x.shape), x.dtype) for x in keras.tree.flatten(args)
        )
        # A trace keeps the variables that it was made with: others, as of LoRA, need a new one.
        key = (shapes, tuple(static.items()), hash(tuple(map(id, weights))))
        return self._run(key, weights, args, static)

    def _run(self, key, weights: list, args: tuple, static: dict):
        program = PROGRAMS.get(self, key, lambda: self._compile(static))
        return program([variable.value for variable in weights], *args)

    def _compile(self, static: dict) -> Compiled:
        import jax

        function, models = self._function, self._models  # A program does not keep its owner.
        donate = [1 + place for place in self._options["donate"]]

        # Of a function of its own: dropped with it is all that JAX keeps of it.
        def pure(values, *args):
            mapping = list(zip(weights_of(models), values, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                return function(*args, **static)

        jitted = jax.jit(pure, donate_argnums=donate)
        # Over devices arrays of the same shapes may lie otherwise, which is another program.
        alone = keras.distribution.distribution() is None
        return Compiled(_OfOneShape(jitted) if alone else jitted)


class _OfOneShape:
    """A function of JAX for the shapes of its first call: what was traced does not stay in memory.

    It takes two fifths of what the program takes.
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
    """A function on TensorFlow, compiled if that pays for what it leaves behind.

    TensorFlow never gives back a program of XLA: loops get the places that there are for those. Of
    a graph that is dropped it keeps some megabytes. So a single pass of a shape that is wanted
    seldom runs operation by operation when there are many programs, and what only moves numbers
    always does.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._recent = Recent()

    def _run(self, key, weights: list, args: tuple, static: dict):
        pays = self._recent.often(key) or self._options["loops"] or len(PROGRAMS) < LEAST_PROGRAMS
        if self._options["moves"] or not (pays or PROGRAMS.peek(self, key)):
            return self._function(*args, **static)
        return PROGRAMS.get(self, key, lambda: self._compile(static))(*args)

    def _compile(self, static: dict) -> Compiled:
        import tensorflow as tf

        lasting = self._options["loops"] and PROGRAMS.may_last()
        traced = tf.function(
            _Once(self._function, static), jit_compile=lasting or None, autograph=False
        )
        return Compiled(traced, lasting=lasting)


class _Once:
    """What is traced once. Of several of the same code TensorFlow warns, as of one traced often."""

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
    """`function` compiled for each set of shapes, with the present weights of `models`.

    On PyTorch it runs as it is, without gradients.

    Args:
        function: takes and returns nested structures of tensors; reads weights of `models`, does
            not change them. What it is given by keyword is static, a part of what is compiled.
        *models: built Keras models.
        donate: places of arguments that the caller does not use again: their memory is reused for
            the results where the backend can (JAX).
        loops: bool, whether most of its time is in a loop of steps: then TensorFlow gives it to
            XLA, for as long as there is room for programs that can never be given back.
        moves: bool, whether it is a few large moves and no products: then TensorFlow runs it as
            it is.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        return CompiledFunction(function, models, donate=donate)
    if backend == "tensorflow":
        return TensorflowFunction(function, models, loops=loops, moves=moves)
    if backend == "torch":
        import torch

        return torch.inference_mode()(function)
    raise RuntimeError(
        f"Generation runs on the backends jax, tensorflow and torch, not on {backend!r}. Set "
        "KERAS_BACKEND to one of them."
    )


def to_tensor(array, dtype: str | None = None):
    """A NumPy array as a tensor. Keras's conversion on JAX is a program for each shape."""
    if keras.backend.backend() != "jax":
        return ops.convert_to_tensor(array, dtype)
    import jax

    return jax.device_put(np.asarray(array, dtype), may_alias=False)


def weights_of(models: Sequence[keras.Model]) -> list:
    """The weights of all the models."""
    return [variable for model in models for variable in model.weights]
