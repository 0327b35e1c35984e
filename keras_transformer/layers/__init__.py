"""The blocks of every model, as ordinary Keras layers."""

from typing import TYPE_CHECKING

from keras_transformer.kerashub_names import missing
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.decoder import DecoderBlock
from keras_transformer.layers.disentangled import RelativeEmbedding, RelativeStates
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import (
    SegmentEmbedding,
    TokenEmbedding,
    VocabularyBias,
)
from keras_transformer.layers.encoder import EncoderBlock
from keras_transformer.layers.experts import MixtureOfExperts
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.masking import Visibility, combine_masks
from keras_transformer.layers.position import (
    LearnedPosition,
    RotaryEmbedding,
    SinusoidalPosition,
)
from keras_transformer.layers.position_bias import ALiBi, RelativePositionBias
from keras_transformer.layers.slots import Slots

if not TYPE_CHECKING:  # so that a type checker sees a wrong name

    def __getattr__(name: str):
        raise missing(__name__, name, __all__)


__all__ = [
    "ALiBi",
    "DecoderBlock",
    "Dropout",
    "EncoderBlock",
    "FeedForward",
    "LearnedPosition",
    "MixtureOfExperts",
    "MultiHeadAttention",
    "RelativeEmbedding",
    "RelativePositionBias",
    "RelativeStates",
    "RotaryEmbedding",
    "SegmentEmbedding",
    "SinusoidalPosition",
    "Slots",
    "TokenEmbedding",
    "Visibility",
    "VocabularyBias",
    "combine_masks",
]


def __dir__() -> list[str]:
    return __all__
