"""Values of one architecture in a GGUF file's metadata."""

import dataclasses
import functools
import math

import numpy as np

from keras_transformer.checkpoints.gguf.header import Header
from keras_transformer.config import MOST_LAYERS
from keras_transformer.support.checking import shorten


@dataclasses.dataclass(frozen=True)
class Metadata:
    """Values of a header by their keys without the architecture, such as `"block_count"`."""

    header: Header
    architecture: str

    def given(self, name: str) -> bool:
        """Return whether the file has a key."""
        return self._key(name) in self.header.metadata

    def needed(self, name: str) -> int:
        """Return a positive whole number. Raises ValueError if the file lacks it."""
        return self.header.needed(self._key(name))

    def whole(self, name: str, default: int | None = None) -> int | None:
        """Return a whole number, which is not negative."""
        return self.header.whole(self._key(name), default)

    def real(self, name: str, default: float) -> float:
        """Return a finite number, which is not negative."""
        value = self.header.get(self._key(name), (float, int), default)
        if not 0 <= value < math.inf:
            raise ValueError(
                f"{self.header.path}: {self._key(name)!r} must be a finite number of at least 0, "
                f"received {value!r}."
            )
        return float(value)

    def text(self, name: str, default: str) -> str:
        """Return a text."""
        return self.header.get(self._key(name), str, default)

    def each(self, name: str, count: int) -> list[int]:
        """Return a list of `count` whole numbers, one for each layer, which are not negative."""
        if count > MOST_LAYERS:
            raise ValueError(
                f"{self.header.path} says that its model has {count:,} layers; at most "
                f"{MOST_LAYERS:,} are read."
            )
        value = self.header.metadata.get(self._key(name))
        whole = isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size == count
        if not whole or (value < 0).any():
            raise ValueError(
                f"{self.header.path}: {self._key(name)!r} must be a list of {count:,} numbers, one "
                f"for each layer, not {shorten(value)}."
            )
        return [int(number) for number in value]

    def has(self, end: str) -> bool:
        """Return whether a layer has a tensor, given the end of its name."""
        return any(name.endswith(f".{end}") for name in self.header.tensors)

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.needed("attention.head_count")

    @functools.cached_property
    def head_dim(self) -> int:
        """The features of a head. Raises ValueError if keys and values differ in them."""
        usual = self.needed("embedding_length") // self.heads
        found = self.whole("attention.key_length") or usual
        values = self.whole("attention.value_length") or found
        if values != found:
            raise ValueError(
                f"{self.header.path}: heads of {found} features for keys and {values} for values "
                "are not supported. Load the model that it was made from."
            )
        return found

    def _key(self, name: str) -> str:
        return f"{self.architecture}.{name}"
