"""The Rust tokenizer behind a `Tokenizer`: copying it, and checking its input."""

import contextlib
from collections.abc import Iterator
from itertools import groupby

import numpy as np
import tokenizers

from keras_transformer.support.checking import check_text
from keras_transformer.support.columns import is_column, plain

# Separator of words in KerasHub's BERT, whose normalized texts contain no control characters.
WORD_BREAK = "\x1f"
# Chinese characters, for a character class of a regular expression.
CHINESE = (
    r"\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{20000}-\x{2a6df}\x{2a700}-\x{2b73f}"
    r"\x{2b740}-\x{2b81f}\x{2b820}-\x{2ceaf}\x{f900}-\x{faff}\x{2f800}-\x{2fa1f}"
)
# Maximum characters in one text: the library needs about 300 bytes for each. "War and Peace" has
# three million.
MAX_TEXT = 2**24


class InvalidTokenizer(Exception):
    """Fault of a tokenizer or of its input, which `refusing` turns into a ValueError."""


@contextlib.contextmanager
def refusing(message: str) -> Iterator[None]:
    """Turn the library's exceptions within the context into a ValueError with this message."""
    try:
        yield
    except BaseException as error:
        # The library raises plain `Exception`s, conversion errors, or panics of its Rust code,
        # which are not `Exception`s.
        of_conversion = (TypeError, OverflowError, UnicodeError)
        known = type(error) is Exception or isinstance(error, (InvalidTokenizer, *of_conversion))
        if not known and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{message}: {error}") from None


def copy_backend(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a backend with the same parts and vocabulary, but no padding or truncation."""
    copy = tokenizers.Tokenizer(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(backend, part) is not None:
            setattr(copy, part, getattr(backend, part))
    added = [token for _, token in sorted(backend.get_added_tokens_decoder().items())]
    for special, tokens in groupby(added, key=lambda token: token.special):
        (copy.add_special_tokens if special else copy.add_tokens)(list(tokens))
    copy.encode_special_tokens = backend.encode_special_tokens
    return copy


def byte_alphabet() -> list[str]:
    """Return GPT-2's character for each byte, in order: a visible byte stands for itself."""
    alphabet = set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    hidden = (char for char in sorted(alphabet) if ord(char) > 255)
    return [chr(byte) if chr(byte) in alphabet else next(hidden) for byte in range(256)]


def check_texts(texts, name: str) -> list[str]:
    """Return the texts as a list. Raises ValueError, with the position, if one is not a text."""
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    elif not isinstance(texts, (list, tuple)) and is_column(texts):
        texts = plain(texts, f"`{name}`")
    if not isinstance(texts, (list, tuple)):
        raise ValueError(
            f"`{name}` must be a list, tuple or 1-D NumPy array of strings. "
            f"Received: {type(texts).__name__}. A column of a data frame is accepted too."
        )
    for index, text in enumerate(texts):
        if isinstance(text, str) and len(text) > MAX_TEXT:
            raise ValueError(
                f"`{name}[{index}]` has {len(text):,} characters; a text may have at most "
                f"{MAX_TEXT:,}, which take about 5 GB to tokenize. Split it, for example into "
                "paragraphs."
            )
        if not (isinstance(text, str) and text.isascii()):
            check_text(f"{name}[{index}]", text)
    return list(texts)
