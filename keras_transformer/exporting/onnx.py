"""ONNX, for ONNX Runtime."""

import re
from pathlib import Path

import keras

from keras_transformer.checking import check_choice
from keras_transformer.checkpoints.untrusted import write_json
from keras_transformer.exporting.genai import genai_config
from keras_transformer.exporting.graph import Graph
from keras_transformer.exporting.graphs import graphs_of
from keras_transformer.exporting.quiet import quietly
from keras_transformer.exporting.torch_programs import programs_of


def write(task: keras.Model, directory: Path, quantization: str | None = None) -> None:
    """Writes `model.onnx`, of a decoder `genai_config.json` too; or the graphs of a seq2seq.

    Args:
        task: a task or a backbone.
        directory: the folder.
        quantization: `"int8"` for matrices of 8 bits, and states that are quantized as they come.
    """
    check_choice("quantization", quantization, ("int8",), none=True)
    graphs = graphs_of(task)
    if "logits" in graphs[0].outputs and "past" in graphs[0].inputs[-1].axes:
        config = genai_config(task)
        if config is not None:
            write_json(directory / "genai_config.json", config)
    for graph, program in programs_of(graphs):
        path = directory / f"{graph.name}.onnx"
        save_onnx(graph, program, path)
        if quantization is not None:
            _quantize(path)


def save_onnx(graph: Graph, program, path: Path) -> None:
    """Writes a program of PyTorch as ONNX, with the names of its graph."""
    import torch

    with quietly():
        made = torch.onnx.export(
            program,
            input_names=[array.name for array in graph.inputs],
            output_names=list(graph.outputs),
            dynamo=True,
            verbose=False,
        )
    _name_axes(graph, made.model)
    made.save(str(path))


def _name_axes(graph: Graph, model) -> None:
    """Gives the sizes that are not known the names of the axes, in place of `s26`."""
    import onnx_ir

    names = {}
    for array, value in zip(graph.inputs, model.graph.inputs, strict=True):
        names |= {str(size.value): axis for size, axis in zip(value.shape, array.axes, strict=True)
                  if isinstance(size, onnx_ir.SymbolicDim)}  # fmt: skip
    for value in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs)):
        if value.shape is not None and value.shape.has_unknown_dim() is False:
            value.shape = onnx_ir.Shape([_renamed(size, names) for size in value.shape])


def _renamed(size, names: dict[str, str]):
    if isinstance(size, int):
        return size
    return re.sub(r"\w+", lambda found: names.get(found[0], found[0]), str(size.value))


def _quantize(path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with quietly():
        quantize_dynamic(path, path, weight_type=QuantType.QInt8)
