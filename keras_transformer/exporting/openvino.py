"""Export to OpenVINO."""

import tempfile
from pathlib import Path

import keras

from keras_transformer.exporting.graphs import graphs_of
from keras_transformer.exporting.onnx import save_onnx
from keras_transformer.exporting.quiet import quietly
from keras_transformer.exporting.torch_programs import programs_of
from keras_transformer.support.checking import check_choice


def write(task: keras.Model, directory: Path, quantization: str | None = None) -> None:
    """Write `model.xml` and `model.bin`, or these files for each graph of an encoder-decoder.

    Args:
        task: a task or a backbone.
        directory: the folder.
        quantization: `"int8"` for 8-bit weight matrices, quantized by NNCF. Defaults to float32.
    """
    import openvino

    check_choice("quantization", quantization, ("int8",), none=True)
    for graph, program in programs_of(graphs_of(task)):
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch, f"{graph.name}.onnx")
            save_onnx(graph, program, path)
            model = openvino.convert_model(path)
            if quantization is not None:
                model = _compressed(model)
            openvino.save_model(model, directory / f"{graph.name}.xml", compress_to_fp16=False)


def _compressed(model):
    with quietly():
        import nncf

        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
