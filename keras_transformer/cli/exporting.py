"""The sub-command that exports: export."""

import argparse

import keras_transformer as kt
from keras_transformer.cli.command import ABOUT_PRESET, command, option, say


@command(
    "export",
    f"""\
write a model for a runtime without Python or Keras

Writes a preset as a folder for another runtime: onnx (ONNX Runtime), openvino, pt2 (PyTorch),
saved_model (TensorFlow, texts in and text out), litert, ctranslate2, or huggingface (Transformers).
A model that generates takes its cache and gives it back. Files of the tokenizer go along. onnx,
openvino and pt2 are converted by PyTorch, saved_model and litert by TensorFlow, which must be
installed, whatever KERAS_BACKEND says. It needs pip install "keras_transformer[onnx]", or the extra
openvino, tensorflow or ctranslate2.

{ABOUT_PRESET}
examples:
  keras-transformer export --preset transformer_tiny_en_de --format onnx translator
  keras-transformer export --preset transformer_tiny_en_de --format ctranslate2 \\
      --quantization int8 fast_translator
""",
    option("--preset", "the model", required=True, metavar="PRESET"),
    option("directory", "the folder: new, empty, or that of an earlier export", metavar="FOLDER"),
    option("--format", "what to write (default %(default)s)", default="onnx", metavar="NAME"),
    option(
        "--quantization",
        "fewer bits: int8 of onnx, openvino and litert, any of ctranslate2 (default: as it is)",
        metavar="NAME",
    ),
    option(
        "--max-new-tokens",
        "the most tokens that a saved_model writes (default: 64)",
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
