"""Presets of KerasHub: its configs, its HDF5 weights and its tokenizers, read as values only."""

from keras_transformer.checkpoints.keras_hub.families import find_family, read_config
from keras_transformer.checkpoints.keras_hub.family import is_preset
from keras_transformer.checkpoints.keras_hub.hdf5 import KerasHubCheckpoint, read_hdf5
from keras_transformer.checkpoints.keras_hub.tokenizers import has_tokenizer, read_tokenizer

__all__ = [
    "KerasHubCheckpoint",
    "find_family",
    "has_tokenizer",
    "is_preset",
    "read_config",
    "read_hdf5",
    "read_tokenizer",
]
