"""The Rust tokenizer that does the work: a copy of it, and checks of what it is given."""

import contextlib
from collections.abc import Iterator
from itertools import groupby

import numpy as np
import tokenizers

from keras_transformer.checking import check_text
from keras_transformer.columns import is_column, plain

# Stands between words for KerasHub's BERT, in texts without control characters.
WORD_BREAK = "\x1f"
# Chinese characters, for a class of a regular expression.
CHINESE = (
    r"\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{20000}-\x{2a6df}\x{2a700}-\x{2b73f}"
    r"\x{2b740}-\x{2b81f}\x{2b820}-\x{2ceaf}\x{f900}-\x{faff}\x{2f800}-\x{2fa1f}"
)
# Characters of one text, of each of which the library takes some 300 bytes; War and Peace has three
# million.
MAX_TEXT = 2**24


class Unusable(Exception):
    """A tokenizer is broken, or asks for more than it may."""


@contextlib.contextmanager
def refusing(message: str) -> Iterator[None]:
    """Turns what the library raises for broken values into a ValueError of this message."""
    try:
        yield
    except BaseException as error:
        # Its own failures are plain `Exception`s, errors of conversion, or panics of its Rust code,
        # which are no `Exception`s.
        of_conversion = (TypeError, OverflowError, UnicodeError)
        known = type(error) is Exception or isinstance(error, (Unusable, *of_conversion))
        if not known and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{message}: {error}") from None


def copy_backend(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A backend of the same parts, without padding and truncation. Costs no new vocabulary."""
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
    """The character that stands for each byte in GPT-2's vocabulary: itself if it is visible."""
    alphabet = set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    hidden = (char for char in sorted(alphabet) if ord(char) > 255)
    return [chr(byte) if chr(byte) in alphabet else next(hidden) for byte in range(256)]


def check_texts(texts, name: str) -> list[str]:
    """The texts as a list, refusing with its position what is not a text."""
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    elif is_column(texts):
        texts = plain(texts, f"`{name}`")
    if not isinstance(texts, (list, tuple)):
        raise ValueError(
            f"`{name}` must be a list, tuple or 1-D NumPy array of strings. "
            f"Received: {type(texts).__name__}. A column of a data frame will do too."
        )
    for index, text in enumerate(texts):
        if isinstance(text, str) and len(text) > MAX_TEXT:
            raise ValueError(
                f"`{name}[{index}]` has {len(text):,} characters; a text may have {MAX_TEXT:,}, of "
                "which tokenizing takes some 5 GB. Give it in parts, such as its paragraphs."
            )
        if not (isinstance(text, str) and text.isascii()):
            check_text(f"{name}[{index}]", text)
    return list(texts)
