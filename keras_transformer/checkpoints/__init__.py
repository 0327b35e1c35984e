"""Presets: finding, downloading, checking, loading and saving them.

`presets` opens, builds, saves and publishes presets; `weights` reads and writes safetensors files;
`families` and `keras_hub` translate published configs and names of tensors.
"""

from typing import TYPE_CHECKING

from keras_transformer.checkpoints.presets.assignment import (
    LoadReport,
    backbone_variables,
    check_weights,
    load_config,
    load_weights,
)
from keras_transformer.checkpoints.presets.building import load_backbone, load_task, load_tokenizer
from keras_transformer.checkpoints.presets.lengthening import lengthen
from keras_transformer.checkpoints.presets.listing import (
    list_presets,
    presets_folder,
    resolve_preset,
)
from keras_transformer.checkpoints.presets.preset import Preset
from keras_transformer.checkpoints.presets.quantization import Quantization, read_quantization
from keras_transformer.checkpoints.presets.saving import save_preset
from keras_transformer.config.structure import variable_shapes
from keras_transformer.support.foreign_names import offer
from keras_transformer.support.registry import bind

if TYPE_CHECKING:
    from keras_transformer.checkpoints.exporting import export_to_huggingface
    from keras_transformer.checkpoints.keras_hub_models import from_keras_hub, to_keras_hub

PresetSource = Preset  # its name in the first release

__all__ = [
    "LoadReport",
    "Preset",
    "PresetSource",
    "Quantization",
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
    "read_quantization",
    "resolve_preset",
    "save_preset",
    "to_keras_hub",
    "variable_shapes",
]

# `Backbone` and `Tokenizer` call these, but their modules may not import this package.
bind(load_backbone=load_backbone, load_tokenizer=load_tokenizer, save_preset=save_preset)

# Converters import the tables of all published families, a third of the time to import the package,
# so they are imported on first use.
_LIVE = "keras_transformer.checkpoints.keras_hub_models"
LATER = {
    "export_to_huggingface": "keras_transformer.checkpoints.exporting",
    "from_keras_hub": _LIVE,
    "to_keras_hub": _LIVE,
}
offer(__name__, __all__, LATER)
