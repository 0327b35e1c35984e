"""Export to PyTorch programs, which `torch.export.load` reads."""

from pathlib import Path

import keras

from keras_transformer.exporting.graphs import graphs_of
from keras_transformer.exporting.quiet import quietly
from keras_transformer.exporting.torch_programs import programs_of


def write(task: keras.Model, directory: Path) -> None:
    """Write `model.pt2`, or one file for each graph of an encoder-decoder.

    Args:
        task: a task or a backbone.
        directory: the folder.
    """
    import torch

    for graph, program in programs_of(graphs_of(task)):
        with quietly():
            torch.export.save(program, directory / f"{graph.name}.pt2")
