"""ONNX, for ONNX Runtime."""

from pathlib import Path

import keras

from keras_transformer.checking import check_choice
from keras_transformer.exporting.graph import Graph
from keras_transformer.exporting.graphs import graphs_of
from keras_transformer.exporting.torch_programs import programs_of, quietly


def write(task: keras.Model, directory: Path, quantization: str | None = None) -> None:
    """Writes `model.onnx`, or the graphs of an encoder-decoder, with their weights beside them.

    Args:
        task: a task or a backbone.
        directory: the folder.
        quantization: `"int8"` for matrices of 8 bits, whose states are quantized as they come.
    """
    check_choice("quantization", quantization, ("int8",), none=True)
    graphs = graphs_of(task)
    programs = programs_of(graphs)
    for graph in graphs:
        path = directory / f"{graph.name}.onnx"
        save_onnx(graph, programs[graph.name], path)
        if quantization is not None:
            _quantize(path)


def save_onnx(graph: Graph, program, path: Path) -> None:
    """Writes a program of a graph as ONNX, with the names of the graph."""
    import torch

    with quietly():
        made = torch.onnx.export(
            program,
            input_names=[array.name for array in graph.inputs],
            output_names=list(graph.outputs),
            dynamo=True,
            verbose=False,
        )
    made.save(str(path))


def _quantize(path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(path, path)
