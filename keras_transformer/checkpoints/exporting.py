"""From a model to a folder in Hugging Face format."""

import os
from collections.abc import Mapping
from typing import Any

import keras

from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.families.family import Family
from keras_transformer.checkpoints.files import atomic_directory, write_json
from keras_transformer.checkpoints.loading import backbone_variables
from keras_transformer.checkpoints.presets import CONFIG_FILE
from keras_transformer.checkpoints.safetensors_io import WEIGHTS_FILE, save_tensors
from keras_transformer.checkpoints.weights import expand, export
from keras_transformer.config import TransformerConfig


def export_to_huggingface(
    model: keras.Model, directory: str | os.PathLike, dtype: str | None = None
) -> None:
    """Writes a folder that the Transformers library loads: config, weights, tokenizer.

    The folder appears complete or not at all.

    Args:
        model: A backbone, or a task, whose head and tokenizer are written too.
        directory: The folder: new, empty, or that of a preset.
        dtype: `"float32"` or `"float16"` for the stored weights. Defaults to theirs.

    Raises:
        ValueError: If no published architecture computes what the model computes; the message
            says for each what is in the way. Or if the folder holds other things.

    Example:
    ```python
    import tempfile
    from keras_transformer.checkpoints import export_to_huggingface, load_backbone

    backbone = load_backbone("minilm_l6_en")
    folder = tempfile.mkdtemp()
    export_to_huggingface(backbone, folder)
    assert load_backbone(folder).config == backbone.config
    ```
    """
    backbone = getattr(model, "backbone", model)
    head = getattr(model, "head", {})
    task = {"name": type(model).__name__, **model.task_values()} if head else None
    family, config = _choose_family(backbone.config, task)
    tensors = export(expand(family.weights, backbone.config), backbone_variables(backbone))
    if task:
        # Their models with a head keep the backbone under its name.
        tensors = {family.names.prefixes[0] + name: array for name, array in tensors.items()}
        tensors |= export(family.heads[task["name"]], head)
    with atomic_directory(directory) as folder:
        save_tensors(folder / WEIGHTS_FILE, tensors, dtype)
        tokenizer = getattr(model, "tokenizer", None)
        if tokenizer is not None:
            tokenizer.save(folder)
        write_json(folder / CONFIG_FILE, config)


def _choose_family(
    config: TransformerConfig, task: Mapping[str, Any] | None
) -> tuple[Family, dict[str, Any]]:
    """The first family that can express the model, and its config."""
    reasons = []
    for family in FAMILIES.values():
        try:
            return family, family.published_config(config, task)
        except ValueError as error:
            reasons.append(f"\n  {error}")
    raise ValueError(f"No published architecture fits this model:{''.join(reasons)}")
