"""Export to a folder that Transformers and sentence-transformers can read."""

from pathlib import Path

import keras

from keras_transformer.checkpoints import export_to_huggingface


def write(
    task: keras.Model, directory: Path, dtype: str | None = None, family: str | None = None
) -> None:
    """Write the folder with `export_to_huggingface`, which describes the options."""
    export_to_huggingface(task, directory, dtype=dtype, family=family)
