"""Presets: finding, downloading, checking, loading and saving them."""

from keras_transformer.checkpoints.building import load_backbone, load_task
from keras_transformer.checkpoints.exporting import export_to_huggingface
from keras_transformer.checkpoints.keras_hub.live import from_keras_hub, to_keras_hub
from keras_transformer.checkpoints.loading import (
    LoadReport,
    backbone_variables,
    check_weights,
    load_config,
    load_weights,
)
from keras_transformer.checkpoints.presets import (
    PresetSource,
    list_presets,
    presets_folder,
    resolve_preset,
)
from keras_transformer.checkpoints.saving import save_preset
from keras_transformer.checkpoints.shapes import variable_shapes

__all__ = [
    "LoadReport",
    "PresetSource",
    "backbone_variables",
    "check_weights",
    "export_to_huggingface",
    "from_keras_hub",
    "list_presets",
    "load_backbone",
    "load_config",
    "load_task",
    "load_weights",
    "presets_folder",
    "resolve_preset",
    "save_preset",
    "to_keras_hub",
    "variable_shapes",
]


def __dir__() -> list[str]:
    return __all__
