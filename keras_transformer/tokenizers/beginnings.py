"""The beginnings of long texts, of which the end is cut off: no more is encoded than is kept."""

from collections.abc import Callable

import tokenizers

# Characters for a token. A text with more is encoded as far as this first.
_CHARACTERS = 16
# A beginning is long enough if it has so many times the tokens that are kept: what tokens become
# of the text near its end, where it was cut, changes nothing then.
_TIMES = 2


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
    """
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
