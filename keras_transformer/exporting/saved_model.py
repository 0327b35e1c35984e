"""Export to a TensorFlow SavedModel, which takes texts and returns labels, vectors or texts."""

from pathlib import Path

import keras

from keras_transformer.exporting.graphs import graphs_of
from keras_transformer.support.checking import MOST_TOKENS, check_int


def write(task: keras.Model, directory: Path, max_new_tokens: int = 64) -> None:
    """Write a SavedModel with a signature for each graph, and `serve`, which takes texts.

    Args:
        task: a task or a backbone.
        directory: the folder.
        max_new_tokens: int, most new tokens of a generating task.
    """
    from keras_transformer.exporting.tensorflow_functions import module_of, save
    from keras_transformer.exporting.tensorflow_serving import serve_from

    most = check_int("max_new_tokens", max_new_tokens, 1, MOST_TOKENS)
    graphs = graphs_of(task)
    module = module_of(graphs)
    serve_from(module, task, graphs, most)
    save(module, directory)
