"""Keras's steps on TensorFlow: compiled by XLA for some shapes, and run as a graph for the rest.

TensorFlow never gives back a program of XLA: its cache of them has no eviction, and dropping the
function drops none of them. So there is an end to how many a process makes. A graph serves all
shapes, and takes longer.
"""

import contextlib

import keras

from keras_transformer.data import BucketedDataset
from keras_transformer.programs import PROGRAMS

_FUNCTIONS = {
    "fit": "train_function",
    "train_on_batch": "train_function",
    "evaluate": "test_function",
    "test_on_batch": "test_function",
    "predict": "predict_function",
    "predict_on_batch": "predict_function",
}
# The shapes that data is taken to have of which they are not known: whole batches and the last.
_UNKNOWN_SHAPES = 2


class BoundedXla:
    """A `keras.Model` with few programs of XLA on TensorFlow."""

    _shapes_of_xla: set | None = None
    _as_graph: frozenset = frozenset()  # the functions that run without XLA

    def _bound(self, verb: str, data) -> None:
        """Takes the places of the shapes that will come, or leaves XLA if there are none left."""
        name = _FUNCTIONS[verb]
        if keras.backend.backend() != "tensorflow" or not self.jit_compile:
            return
        if name in self._as_graph:
            return
        if self._shapes_of_xla is None:
            self._shapes_of_xla = set()
        shapes = _shapes(data, verb.endswith("batch"))
        known = self._shapes_of_xla
        new = {(name, shape) for shape in shapes} - known
        count = len(new) if shapes else _UNKNOWN_SHAPES
        if PROGRAMS.may_last(count):
            known |= new
            return
        self._as_graph |= {name}
        setattr(self, name, None)

    @contextlib.contextmanager
    def _without_xla(self, name: str):
        if name not in self._as_graph:
            yield
            return
        before, self.jit_compile = self.jit_compile, False
        try:
            yield
        finally:
            self.jit_compile = before


def _bounding(verb: str):
    """The verb of Keras, behind `_bound`."""

    def method(self, x=None, *args, **kwargs):
        self._bound(verb, x)
        return getattr(super(BoundedXla, self), verb)(x, *args, **kwargs)

    return method


def _making(name: str):
    """Keras's `make_..._function`, without XLA where it has no place."""

    def method(self, force=False):
        with self._without_xla(name):
            return getattr(super(BoundedXla, self), f"make_{name}")(force)

    return method


for _verb, _name in _FUNCTIONS.items():
    setattr(BoundedXla, _verb, _bounding(_verb))
    setattr(BoundedXla, f"make_{_name}", _making(_name))


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
