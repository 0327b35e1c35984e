"""Building blocks of all models, as ordinary Keras layers."""

from typing import TYPE_CHECKING

from keras_transformer.config.fusion import Fusion
from keras_transformer.config.stage_fusion import StageFusion
from keras_transformer.layers.attention.disentangled import RelativeEmbedding, RelativeStates
from keras_transformer.layers.attention.key_value_cache import KeyValueCache
from keras_transformer.layers.attention.masking import AttentionMask, combine_masks
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.attention.score_bias import ALiBi, RelativePositionBias
from keras_transformer.layers.block import Block, DecoderBlock, EncoderBlock
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import (
    SegmentEmbedding,
    TokenEmbedding,
    VocabularyBias,
)
from keras_transformer.layers.experts import MixtureOfExperts
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.fusion import FusionDecoder
from keras_transformer.layers.position import (
    LearnedPosition,
    RotaryEmbedding,
    SinusoidalPosition,
)
from keras_transformer.layers.stage_fusion import StageFusionDecoder
from keras_transformer.support.former_names import renamed

_FORMER = {"Slots": "KeyValueCache", "Visibility": "AttentionMask"}

if not TYPE_CHECKING:  # so that a type checker sees a wrong name

    def __getattr__(name: str):
        return renamed(__name__, name, _FORMER, __all__)


__all__ = [
    "ALiBi",
    "AttentionMask",
    "Block",
    "DecoderBlock",
    "Dropout",
    "EncoderBlock",
    "FeedForward",
    "Fusion",
    "FusionDecoder",
    "KeyValueCache",
    "LearnedPosition",
    "MixtureOfExperts",
    "MultiHeadAttention",
    "RelativeEmbedding",
    "RelativePositionBias",
    "RelativeStates",
    "RotaryEmbedding",
    "SegmentEmbedding",
    "SinusoidalPosition",
    "StageFusion",
    "StageFusionDecoder",
    "TokenEmbedding",
    "VocabularyBias",
    "combine_masks",
]


def __dir__() -> list[str]:
    return __all__
