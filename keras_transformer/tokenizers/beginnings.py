"""Truncation of long texts before encoding, so that little more is encoded than is kept."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import tokenizers

# Characters that the first attempt encodes per kept token.
CHARACTERS = 16
# A beginning is long enough if it has about this many times the tokens that are kept: the tokens
# near its cut, which may differ from those of the whole text, are then not among them.
_TIMES = 2
# Maximum characters read per token; None disables it. See `refusing_sparse_texts`.
_MOST_CHARACTERS: ContextVar[int | None] = ContextVar("most_characters", default=None)
_OF_STRANGERS = 4 * CHARACTERS


@contextlib.contextmanager
def refusing_sparse_texts() -> Iterator[None]:
    """Within this context, refuse to truncate texts whose beginning has hardly any tokens.

    A long word may become one token, and long white space none. Then the whole text would have to
    be encoded to find the tokens that are kept. For untrusted texts this work is limited: at most
    64 characters are read per kept token.
    """
    token = _MOST_CHARACTERS.set(_OF_STRANGERS)
    try:
        yield
    finally:
        _MOST_CHARACTERS.reset(token)


def encode_beginnings(
    encode: Callable[[list[str]], list[tokenizers.Encoding]], texts: list[str], max_length: int
) -> list[tokenizers.Encoding]:
    """Encode texts of which only the first `max_length` tokens are kept.

    Args:
        encode: function from texts to encodings of at most `max_length` tokens, with the rest in
            `overflowing`.
        texts: strings, of any length.
        max_length: int, the number of tokens that are kept.

    Returns:
        An encoding for each text, as `encode` returns it for the whole text.

    Raises:
        ValueError: within `refusing_sparse_texts`, if the first `64 * max_length` characters of a
            text do not have about twice `max_length` tokens.
    """
    most = _MOST_CHARACTERS.get()
    size = CHARACTERS * max_length
    encodings = encode([_beginning(text, size) for text in texts])
    while True:
        size *= 4
        short = [
            index
            for index, (text, encoding) in enumerate(zip(texts, encodings, strict=True))
            if len(text) > size // 4 and len(encoding.overflowing) < _TIMES
        ]
        if not short:
            return encodings
        if most is not None and size > most * max_length:
            raise ValueError(
                f"Text {short[0]} has {len(texts[short[0]]):,} characters, and its first "
                f"{size // 4:,} are fewer than the {max_length:,} tokens that are read: they are "
                "nearly all white space, or overly long words. Shorten it."
            )
        again = encode([_beginning(texts[index], size) for index in short])
        for index, encoding in zip(short, again, strict=True):
            encodings[index] = encoding


def _beginning(text: str, size: int) -> str:
    """Return the first `size` characters of a text, without a word that the cut would split."""
    if len(text) <= size:
        return text
    words = text[:size].rsplit(maxsplit=1)
    is_cut = len(words) > 1 and not text[size].isspace()
    return text[: size - len(words[1])] if is_cut else text[:size]
