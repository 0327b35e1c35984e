"""A folder that Transformers and sentence-transformers read."""

from pathlib import Path

import keras

from keras_transformer.checkpoints import export_to_huggingface


def write(
    task: keras.Model, directory: Path, dtype: str | None = None, family: str | None = None
) -> None:
    """As `export_to_huggingface`."""
    export_to_huggingface(task, directory, dtype=dtype, family=family)
