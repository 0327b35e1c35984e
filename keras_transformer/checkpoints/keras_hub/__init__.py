"""Presets of KerasHub: its configs, HDF5 weights and tokenizers, read as values only."""

from keras_transformer.checkpoints.keras_hub.families import find_family, read_config
from keras_transformer.checkpoints.keras_hub.hdf5 import KerasHubCheckpoint, read_hdf5
from keras_transformer.checkpoints.keras_hub.images import has_images, read_images
from keras_transformer.checkpoints.keras_hub.tokenizers import has_tokenizer, read_tokenizer

__all__ = [
    "KerasHubCheckpoint",
    "find_family",
    "has_images",
    "has_tokenizer",
    "read_config",
    "read_hdf5",
    "read_images",
    "read_tokenizer",
]
