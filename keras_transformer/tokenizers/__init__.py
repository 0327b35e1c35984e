"""Conversion between text and token ids, done by the Rust library `tokenizers`."""

from keras_transformer.tokenizers import m2m100 as m2m100  # registers the format that it reads
from keras_transformer.tokenizers import marian as marian
from keras_transformer.tokenizers.ctc import CTCTokenizer
from keras_transformer.tokenizers.languages import set_source_language
from keras_transformer.tokenizers.moses import moses_detokenize, moses_tokenize
from keras_transformer.tokenizers.tokenizer import Tokenizer

__all__ = [
    "CTCTokenizer",
    "Tokenizer",
    "moses_detokenize",
    "moses_tokenize",
    "set_source_language",
]


def __dir__() -> list[str]:
    return __all__
