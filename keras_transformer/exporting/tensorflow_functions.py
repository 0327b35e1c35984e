"""Graphs as TensorFlow functions, from which SavedModels and LiteRT files are made."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from keras_transformer.exporting.graph import Array, Graph
from keras_transformer.exporting.quiet import quietly


def module_of(graphs: list[Graph]) -> tf.Module:
    """Return a module with the weights, and a function for each graph under the graph's name."""
    module = tf.Module()
    # Held here, since TensorFlow does not track Keras's `variables`.
    module.weights = [v.value for v in graphs[0].model.variables]
    for graph in graphs:
        setattr(module, graph.name, _function_of(graph))
    return module


def specs_of(arrays: tuple[Array, ...]) -> list[tf.TensorSpec]:
    """Return the specs of a function's arguments; a size of None may vary."""
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
    """Yield a temporary folder with the module as a SavedModel; its functions are signatures."""
    with tempfile.TemporaryDirectory() as scratch:
        save(module, Path(scratch))
        yield Path(scratch)


def save(module: tf.Module, directory: Path) -> None:
    """Write a module as a SavedModel: its functions are signatures, `serve` the default one."""
    kind = tf.types.experimental.PolymorphicFunction
    functions = {name: each for name, each in vars(module).items() if isinstance(each, kind)}
    usual = {"serve": tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY}
    with quietly():  # TensorFlow warns of names with a dot, which are allowed
        signatures = {
            usual.get(name, name): each.get_concrete_function() for name, each in functions.items()
        }
        tf.saved_model.save(module, str(directory), signatures)
