"""A GGUF file as an open preset."""

import dataclasses
import functools
from collections.abc import Collection
from pathlib import Path
from typing import Any

from keras_transformer.checkpoints.families.base.family import Family
from keras_transformer.checkpoints.gguf.architectures import Architecture
from keras_transformer.checkpoints.gguf.config import find_architecture, published_config
from keras_transformer.checkpoints.gguf.header import Header
from keras_transformer.checkpoints.gguf.parts import read_model
from keras_transformer.checkpoints.gguf.tensors import GGUFCheckpoint, read_floats
from keras_transformer.checkpoints.gguf.tokenizers import has_tokenizer, read_tokenizer
from keras_transformer.checkpoints.presets.preset import Preset
from keras_transformer.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class GGUFPreset(Preset):
    """A preset in a GGUF file, which is its `directory`, and the file's further parts beside it."""

    @functools.cached_property
    def _header(self) -> Header:
        return read_model(self.directory)

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """Config of the file's family, in Hugging Face's format."""
        tensors = self._header.tensors
        return published_config(self._header, lambda name: read_floats(tensors[name], name))

    @functools.cached_property
    def _architecture(self) -> Architecture:
        return find_architecture(self._header)

    @functools.cached_property
    def family(self) -> Family:
        """Published family of the model, with the names of the tensors in GGUF files."""
        return self._architecture.family

    @functools.cached_property
    def checkpoint(self) -> GGUFCheckpoint:
        """Tensors of the file."""
        return GGUFCheckpoint(self._header, self._architecture)

    def load_tokenizer(self, tokenizer_class: type[Tokenizer] = Tokenizer) -> Tokenizer:
        """Return the tokenizer. Raises FileNotFoundError if the file has none."""
        if self.tokenizer is None:
            raise FileNotFoundError(
                f"{self.directory} has no vocabulary. Load the tokenizer of the model that it was "
                "made from."
            )
        backend, roles, chat_template = read_tokenizer(self._header)
        return tokenizer_class(backend, chat_template=chat_template, **roles)

    @functools.cached_property
    def tokenizer(self) -> "GGUFPreset | None":
        """The preset itself, or None if it has no vocabulary."""
        return self if has_tokenizer(self._header) else None

    def for_kinds(self, kinds: Collection[str] | None, task: str = "") -> "GGUFPreset":
        """Return the preset itself: a file has one model."""
        return self

    @functools.cached_property
    def weights(self) -> "GGUFPreset":
        """The preset itself."""
        return self

    @property
    def local_weights(self) -> list[Path]:
        """The file, or all parts of the model."""
        return [self.directory, *self._header.parts[1:]]

    @property
    def _described_in(self) -> Path:
        return self.directory
