"""Stems: they make the states that blocks take, of token ids or other inputs."""

from keras_transformer.layers.stems.stem import Embedded, Input, Stem
from keras_transformer.layers.stems.token import TokenStem

__all__ = ["Embedded", "Input", "Stem", "TokenStem"]
