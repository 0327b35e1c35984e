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

    def fit(self, x=None, *args, **kwargs):
        self._bound("fit", x)
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        self._bound("evaluate", x)
        return super().evaluate(x, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        self._bound("predict", x)
        return super().predict(x, *args, **kwargs)

    def train_on_batch(self, x, *args, **kwargs):
        self._bound("train_on_batch", x)
        return super().train_on_batch(x, *args, **kwargs)

    def test_on_batch(self, x, *args, **kwargs):
        self._bound("test_on_batch", x)
        return super().test_on_batch(x, *args, **kwargs)

    def predict_on_batch(self, x):
        self._bound("predict_on_batch", x)
        return super().predict_on_batch(x)

    def make_train_function(self, force=False):
        with self._without_xla("train_function"):
            return super().make_train_function(force)

    def make_test_function(self, force=False):
        with self._without_xla("test_function"):
            return super().make_test_function(force)

    def make_predict_function(self, force=False):
        with self._without_xla("predict_function"):
            return super().make_predict_function(force)

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
