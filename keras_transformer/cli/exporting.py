"""The sub-command export, which writes a model for another runtime."""

import argparse

import keras_transformer as kt
from keras_transformer.cli.command import ABOUT_PRESET, command, option, say


@command(
    "export",
    f"""\
write a model for a runtime without Python or Keras

Writes a preset as a folder for another runtime: onnx (ONNX Runtime), openvino, pt2 (PyTorch),
saved_model (TensorFlow, texts in and text out), litert, ctranslate2, gguf (llama.cpp), or
huggingface (Transformers). A model that generates takes and returns its cache. The files of the
tokenizer are included. Whatever KERAS_BACKEND says, onnx, openvino and pt2 need PyTorch, and
saved_model and litert need TensorFlow. Run pip install "keras_transformer[onnx]", or with the extra
openvino, tensorflow, ctranslate2 or gguf.

{ABOUT_PRESET}
examples:
  keras-transformer export --preset transformer_tiny_en_de --format onnx translator
  keras-transformer export --preset transformer_tiny_en_de --format ctranslate2 \\
      --quantization int8 fast_translator
""",
    option("--preset", "the model", required=True, metavar="PRESET"),
    option("directory", "the folder: new, empty, or of an earlier export", metavar="FOLDER"),
    option("--format", "the format to write (default %(default)s)", default="onnx", metavar="NAME"),
    option(
        "--quantization",
        "store weights in fewer bits: int8 for onnx, openvino and litert; ctranslate2 has further "
        "names, and gguf others, such as q8_0 (default: off)",
        metavar="NAME",
    ),
    option(
        "--max-new-tokens",
        "the most tokens that a saved_model generates (default: 64)",
        type=int,
        metavar="N",
    ),
)
def _export(options: argparse.Namespace) -> None:
    from keras_transformer.exporting.child import load_model

    names = ("quantization", "max_new_tokens")
    chosen = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    kt.export(load_model(options.preset), options.directory, options.format, **chosen)
    say(f"The model is in {options.directory}.")


COMMANDS = (_export,)
