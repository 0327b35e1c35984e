"""Presets: finding, downloading, checking, loading and saving them.

`presets` opens one as a `Preset`, `building` makes models of it; `families` and `keras_hub` are the
tables of published formats, `publishing` and `saving` write.
"""

from keras_transformer.checkpoints.assignment import (
    LoadReport,
    backbone_variables,
    check_weights,
    load_config,
    load_weights,
)
from keras_transformer.checkpoints.building import load_backbone, load_task, load_tokenizer
from keras_transformer.checkpoints.exporting import export_to_huggingface
from keras_transformer.checkpoints.keras_hub_live import from_keras_hub, to_keras_hub
from keras_transformer.checkpoints.lengthening import lengthen
from keras_transformer.checkpoints.preset import Preset
from keras_transformer.checkpoints.presets import list_presets, presets_folder, resolve_preset
from keras_transformer.checkpoints.saving import save_preset
from keras_transformer.registry import bind
from keras_transformer.structure import variable_shapes

PresetSource = Preset  # its name in the first release

__all__ = [
    "LoadReport",
    "Preset",
    "PresetSource",
    "backbone_variables",
    "check_weights",
    "export_to_huggingface",
    "from_keras_hub",
    "lengthen",
    "list_presets",
    "load_backbone",
    "load_config",
    "load_task",
    "load_tokenizer",
    "load_weights",
    "presets_folder",
    "resolve_preset",
    "save_preset",
    "to_keras_hub",
    "variable_shapes",
]

# For `Backbone` and `Tokenizer`, which are below.
bind(load_backbone=load_backbone, load_tokenizer=load_tokenizer, save_preset=save_preset)


def __dir__() -> list[str]:
    return __all__
