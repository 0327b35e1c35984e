"""Conversion between text and token ids, done by the Rust library `tokenizers`."""

from keras_transformer.tokenizers import m2m100 as m2m100  # registers the format that it reads
from keras_transformer.tokenizers import marian as marian
from keras_transformer.tokenizers import rwkv as rwkv
from keras_transformer.tokenizers.conversation_tokens import (
    ConversationTokens,
    encode_completion,
    encode_conversation,
)
from keras_transformer.tokenizers.ctc import CTCTokenizer
from keras_transformer.tokenizers.image_markup import ImageMarkup
from keras_transformer.tokenizers.languages import set_source_language
from keras_transformer.tokenizers.moses import moses_detokenize, moses_tokenize
from keras_transformer.tokenizers.tokenizer import Tokenizer

__all__ = [
    "CTCTokenizer",
    "ConversationTokens",
    "ImageMarkup",
    "Tokenizer",
    "encode_completion",
    "encode_conversation",
    "moses_detokenize",
    "moses_tokenize",
    "set_source_language",
]


def __dir__() -> list[str]:
    return __all__
