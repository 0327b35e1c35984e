"""Text to token ids and back. The work is done by the Rust library `tokenizers`."""

from keras_transformer.tokenizers.moses import moses_detokenize, moses_tokenize
from keras_transformer.tokenizers.tokenizer import Tokenizer

__all__ = ["Tokenizer", "moses_detokenize", "moses_tokenize"]


def __dir__() -> list[str]:
    return __all__
