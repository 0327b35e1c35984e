"""A GGUF file as an open preset."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from keras_transformer.checkpoints.gguf.config import published_config
from keras_transformer.checkpoints.gguf.header import Header, read_header
from keras_transformer.checkpoints.gguf.tensors import GGUFCheckpoint
from keras_transformer.checkpoints.gguf.tokenizers import has_tokenizer, read_tokenizer
from keras_transformer.checkpoints.presets.preset import Preset
from keras_transformer.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class GGUFPreset(Preset):
    """A preset in one GGUF file, which is its `directory`. Nothing beside the file is read."""

    @functools.cached_property
    def _header(self) -> Header:
        return read_header(self.directory)

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """Config of the file's family, in Hugging Face's format."""
        return published_config(self._header)

    @functools.cached_property
    def checkpoint(self) -> GGUFCheckpoint:
        """Tensors of the file by their published names."""
        return GGUFCheckpoint(self._header, self.config)

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

    @functools.cached_property
    def weights(self) -> "GGUFPreset":
        """The preset itself."""
        return self

    @property
    def local_weights(self) -> list[Path]:
        """The file."""
        return [self.directory]

    @property
    def _described_in(self) -> Path:
        return self.directory
