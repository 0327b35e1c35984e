"""Stems: what a model is given, such as token ids, made the states that its blocks take."""

from keras_transformer.layers.stems.stem import Embedded, Input, Stem
from keras_transformer.layers.stems.token import TokenStem

__all__ = ["Embedded", "Input", "Stem", "TokenStem"]
