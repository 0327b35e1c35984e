"""The beginnings of long texts, of which the end is cut off: no more is encoded than is kept."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import tokenizers

# Characters for a token. A text with more is encoded as far as this first.
_CHARACTERS = 16
# A beginning is long enough if it has so many times the tokens that are kept: what tokens become
# of the text near its end, where it was cut, changes nothing then.
_TIMES = 2
# Characters for a token that are read of a text at most; None for all. See `refusing_sparse_texts`.
_MOST_CHARACTERS: ContextVar[int | None] = ContextVar("most_characters", default=None)
_OF_STRANGERS = 4 * _CHARACTERS


@contextlib.contextmanager
def refusing_sparse_texts() -> Iterator[None]:
    """Within it a text that is cut is refused if its beginning is hardly any tokens.

    One long word or white space may become one token or none, so that all of it would have to be
    encoded to know what is kept. Of texts of strangers 64 characters for each token are read.
    """
    token = _MOST_CHARACTERS.set(_OF_STRANGERS)
    try:
        yield
    finally:
        _MOST_CHARACTERS.reset(token)


def encode_beginnings(
    encode: Callable[[list[str]], list[tokenizers.Encoding]], texts: list[str], max_length: int
) -> list[tokenizers.Encoding]:
    """The encodings of texts, of which the first `max_length` tokens are kept.

    Args:
        encode: function of texts to encodings of at most `max_length` tokens, the others in
            `overflowing`.
        texts: strings, of any length.
        max_length: int.

    Returns:
        An encoding for each text, as `encode` gives it of the whole text.

    Raises:
        ValueError: within `refusing_sparse_texts`, for a text whose first characters, 64 for each
            of `max_length` tokens, are fewer tokens.
    """
    most = _MOST_CHARACTERS.get()
    size = _CHARACTERS * max_length
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
                "nearly all white space, or words that are too long. Shorten it."
            )
        again = encode([_beginning(texts[index], size) for index in short])
        for index, encoding in zip(short, again, strict=True):
            encodings[index] = encoding


def _beginning(text: str, size: int) -> str:
    """So many characters of a text, or some less, to the end of a word."""
    if len(text) <= size:
        return text
    words = text[:size].rsplit(maxsplit=1)
    is_cut = len(words) > 1 and not text[size].isspace()
    return text[: size - len(words[1])] if is_cut else text[:size]
