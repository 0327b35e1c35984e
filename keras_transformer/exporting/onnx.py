"""Export to ONNX, for ONNX Runtime."""

import re
from pathlib import Path

import keras

from keras_transformer.exporting.genai import genai_config
from keras_transformer.exporting.graph import Graph
from keras_transformer.exporting.graphs import graphs_of
from keras_transformer.exporting.quiet import quietly
from keras_transformer.exporting.torch_programs import programs_of
from keras_transformer.support.checking import check_choice
from keras_transformer.support.files import write_json


def write(task: keras.Model, directory: Path, quantization: str | None = None) -> None:
    """Write `model.onnx`, or one file for each graph of an encoder-decoder.

    A decoder also gets `genai_config.json`, with which onnxruntime-genai generates.

    Args:
        task: a task or a backbone.
        directory: the folder.
        quantization: `"int8"` for 8-bit weight matrices and dynamically quantized activations.
            Defaults to float32.
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
    """Write a PyTorch program as ONNX, with the graph's names of inputs and outputs."""
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
    """Rename variable sizes, such as `s26`, to the names of the graph's axes."""
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
