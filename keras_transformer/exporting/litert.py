"""Export to LiteRT, formerly TensorFlow Lite."""

import re
from pathlib import Path

import keras

from keras_transformer.exporting.graphs import graphs_of
from keras_transformer.exporting.quiet import quietly
from keras_transformer.support.checking import check_choice


def write(task: keras.Model, directory: Path, quantization: str | None = None) -> None:
    """Write `model.tflite`, with a signature for each graph.

    Args:
        task: a task or a backbone.
        directory: the folder.
        quantization: `"int8"` for 8-bit weight matrices and dynamically quantized activations.
            Defaults to float32.

    Raises:
        ValueError: if LiteRT does not have an operation of the model.
    """
    import tensorflow as tf

    from keras_transformer.exporting.tensorflow_functions import module_of, saved

    check_choice("quantization", quantization, ("int8",), none=True)
    graphs = graphs_of(task)
    with quietly(), saved(module_of(graphs)) as folder:
        names = [graph.name for graph in graphs]
        converter = tf.lite.TFLiteConverter.from_saved_model(str(folder), signature_keys=names)
        if quantization is not None:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        (directory / "model.tflite").write_bytes(_converted(converter))


def _converted(converter) -> bytes:
    """Return the bytes of the file. Raises ValueError if LiteRT lacks an operation of the model."""
    from tensorflow.lite.python.convert import ConverterError

    try:
        return converter.convert()
    except ConverterError as error:
        named = re.search(r"TF (?:Select|custom) ops: (.*)", str(error))
        what = f"the operation {named[1]}" if named else "an operation of this model"
        raise ValueError(
            f"LiteRT alone does not have {what} for sizes that are not fixed. Use another of the "
            "formats in `exporting.FORMATS`, such as 'onnx'."
        ) from error
