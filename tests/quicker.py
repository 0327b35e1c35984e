"""What the libraries below do again and again in tests, done once, or left out.

No number is another, but for the order of sums in a graph of TensorFlow.
"""

import sys
import threading

PROGRAMS = 200  # of one context: it keeps the constants of all that were in it


class Imported:
    """TensorFlow for Keras's `set_random_seed`, which else imports it on any backend.

    That takes four seconds in each process; where it is imported, its seed is set.
    """

    available = property(lambda self: "tensorflow" in sys.modules)
    random = property(lambda self: sys.modules["tensorflow"].random)


class Contexts(threading.local):
    """The context of MLIR that JAX makes for each program: making it is a tenth of the time."""

    def __init__(self, make):
        self.make, self.context, self.given = make, None, 0

    def get(self):
        if self.given % PROGRAMS == 0:
            self.context = self.make()
        self.given += 1
        return self.context


def quicken(backend: str) -> None:
    """For this process, and its forks."""
    from keras.src.utils import rng_utils

    rng_utils.tf = Imported()
    if backend == "jax":
        import jax
        from jax._src.interpreters import mlir

        # Of each operation of a program, where in the program's Python it is.
        jax.config.update("jax_traceback_in_locations_limit", 0)
        if make := getattr(mlir, "make_ir_context", None):  # no part of JAX's public surface
            mlir.make_ir_context = Contexts(make).get
    if backend == "tensorflow":
        import tensorflow as tf
        from tensorflow.python.util import tf_stack

        # Optimizing a graph takes longer than the few runs that it has.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        # Of each operation of a graph, where in the program's Python it is.
        somewhere = tf_stack.extract_stack()
        tf_stack.extract_stack = lambda stacklevel=1: somewhere
