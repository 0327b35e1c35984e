"""Work that libraries repeat in tests, done once. Results do not change."""

import functools
import inspect
import logging
import random
import sys
import threading
import types
import typing
import weakref

PLAIN = frozenset((type(None), bool, int, float, str))
PROGRAMS = 200  # of one context: it keeps the constants of all that were in it


class Imported:
    """TensorFlow for Keras's `set_random_seed`, which else imports it on any backend.

    That takes four seconds in each process; where it is imported, its seed is set, and nothing
    more: `tf.random.set_seed` drops what TensorFlow has made of each operation as well, which a
    model then waits for in each test, twice as long as it computes. Keras draws by operations
    without a state.
    """

    available = property(lambda self: "tensorflow" in sys.modules)
    random = property(lambda self: self)

    def set_seed(self, seed: int) -> None:
        from tensorflow.python.eager import context

        here = context.context()
        here._seed, here._rng = seed, random.Random(seed)


class Contexts(threading.local):
    """The context of MLIR that JAX makes for each program: making it is a tenth of the time."""

    def __init__(self, make):
        self.make, self.context, self.given = make, None, 0

    def get(self):
        if self.given % PROGRAMS == 0:
            self.context = self.make()
        self.given += 1
        return self.context


def remembered(ask):
    """Remember the results of `inspect` that Keras requests for each layer, by function."""
    known = weakref.WeakKeyDictionary()

    def answer(function):
        own = getattr(function, "__func__", function)
        if not isinstance(own, types.FunctionType):
            return ask(function)
        answers, bound = known.setdefault(own, {}), own is not function
        if bound not in answers:
            answers[bound] = ask(function)
        return answers[bound]

    return answer


def set_plainly(layer_class) -> None:
    """Set numbers, texts and None on a layer as on any object: nothing in them is tracked.

    Keras and the backend's own base class look at each of some forty attributes of a new layer.
    """
    set_tracked = layer_class.__setattr__

    def set_attribute(self, name, value):
        known = self.__dict__
        # PyTorch keeps modules apart from other attributes: None takes the place of one there.
        if type(value) in PLAIN and "_tracker" in known and name not in known.get("_modules", ()):
            object.__setattr__(self, name, value)
        else:
            set_tracked(self, name, value)

    layer_class.__setattr__ = set_attribute


def trace_plainly() -> None:
    """Trace functions of TensorFlow without a stack for each operation, and run graphs as traced.

    Together they take a quarter of the time of a first call.
    """
    import tensorflow as tf
    from tensorflow.python.util import tf_stack

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    stack = tf_stack.extract_stack()
    tf_stack.extract_stack = lambda *_, **__: stack


def quicken(backend: str) -> None:
    """For this process, and its forks."""
    from keras.src.layers import layer
    from keras.src.ops import operation
    from keras.src.utils import rng_utils, tracking

    rng_utils.tf = Imported()
    asked = {name: remembered(getattr(inspect, name)) for name in ("signature", "getfullargspec")}
    layer.inspect = operation.inspect = types.SimpleNamespace(**{**vars(inspect), **asked})
    track = tracking.Tracker.track
    # Whether it is a variable or a layer, which no plain value is.
    tracking.Tracker.track = lambda self, value: (
        value if type(value) in PLAIN else track(self, value)
    )
    set_plainly(layer.Layer)
    if backend == "tensorflow":
        trace_plainly()
        # TensorFlow asks of each value whether it has the methods of a tensor, by a protocol. Newer
        # versions of Python list these once.
        if sys.version_info < (3, 12):
            typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
    if backend == "torch":
        # Else pytest listens to it, and PyTorch notes of each tensor of a trace where it is from.
        trace = logging.getLogger("torch.__trace")
        trace.propagate = True
        trace.handlers.clear()
    if backend == "jax":
        import jax
        from jax._src.interpreters import mlir

        # Of each operation of a program, where in the program's Python it is.
        jax.config.update("jax_traceback_in_locations_limit", 0)
        if make := getattr(mlir, "make_ir_context", None):  # no part of JAX's public surface
            mlir.make_ir_context = Contexts(make).get
