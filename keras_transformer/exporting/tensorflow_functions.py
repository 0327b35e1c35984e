"""Graphs as functions of TensorFlow, from which SavedModels and LiteRT's files are made."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from keras_transformer.exporting.graph import Array, Graph
from keras_transformer.exporting.quiet import quietly


def module_of(graphs: list[Graph]) -> tf.Module:
    """A module with the weights of graphs and a function for each, by its name."""
    module = tf.Module()
    # Held once: `variables` of Keras are not those that TensorFlow knows.
    module.weights = [v.value for v in graphs[0].model.variables]
    for graph in graphs:
        setattr(module, graph.name, _function_of(graph))
    return module


def specs_of(arrays: tuple[Array, ...]) -> list[tf.TensorSpec]:
    """What a function takes, with None for each size that may be any."""
    return [
        tf.TensorSpec([None if isinstance(n, str) else n for n in a.axes], a.dtype, name=a.name)
        for a in arrays
    ]


def _function_of(graph: Graph) -> Callable:
    def function(*tensors):
        return dict(zip(graph.outputs, graph.function(*tensors), strict=True))

    return tf.function(function, input_signature=specs_of(graph.inputs), autograph=False)


@contextmanager
def saved(module: tf.Module) -> Iterator[Path]:
    """A folder with a module as a SavedModel, whose signatures are its functions, for a while."""
    with tempfile.TemporaryDirectory() as scratch:
        save(module, Path(scratch))
        yield Path(scratch)


def save(module: tf.Module, directory: Path) -> None:
    """Writes a module as a SavedModel, whose signatures are its functions; `serve` is the usual."""
    kind = tf.types.experimental.PolymorphicFunction
    functions = {name: each for name, each in vars(module).items() if isinstance(each, kind)}
    usual = {"serve": tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY}
    with quietly():  # Of names with a dot, which signatures have all the same.
        signatures = {
            usual.get(name, name): each.get_concrete_function() for name, each in functions.items()
        }
        tf.saved_model.save(module, str(directory), signatures)
