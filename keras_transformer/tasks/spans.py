"""From tokens to places in the text, and long texts in overlapping windows."""

from typing import NamedTuple

import numpy as np
import tokenizers

# The words that two windows share, in tokens (Devlin et al. 2018, the published SQuAD code).
OVERLAP = 128


class Word(NamedTuple):
    """A word of a text: its first token, and its characters from `start` to before `end`."""

    token: int
    start: int
    end: int


def character_spans(text: str, encoding: tokenizers.Encoding) -> list[tuple[int, int]]:
    """The characters of each token, from start to before end, without white space around.

    A byte-level or SentencePiece token has the space before its word in its offsets.

    Args:
        text: the text that the offsets are of; of a pair, for that side's tokens alone.
        encoding: what `Tokenizer.encode_batch_with_offsets` gave.

    Returns:
        A pair for each token. A token of white space alone has an empty span at its end.
    """
    spans = []
    for start, end in encoding.offsets:
        piece = text[start:end]
        start += len(piece) - len(piece.lstrip())
        spans.append((start, start + len(piece.strip())))
    return spans


def words_of(text: str, encoding: tokenizers.Encoding) -> list[Word]:
    """The words of a text, as the tokenizer splits it before it spells each in tokens."""
    spans = character_spans(text, encoding)
    words: dict[int, Word] = {}
    for token, number in enumerate(encoding.word_ids):
        if number is None:
            continue
        start, end = spans[token]
        first = words.get(number, Word(token, start, end))
        words[number] = first._replace(end=max(first.end, end))
    return [word for word in words.values() if word.start < word.end]


def windows(encoding: tokenizers.Encoding, part: int, max_length: int) -> list[np.ndarray]:
    """The tokens of a row that is too long, as rows that are not.

    Each has all tokens outside of the part (special tokens, a question) and a stretch of it; two
    neighbours share `OVERLAP` tokens of the part, or half of what a row can hold.

    Args:
        encoding: what `Tokenizer.encode_batch_with_offsets` gave.
        part: which side of a pair is cut, 0 or 1; 0 for a single text.
        max_length: the longest row.

    Returns:
        For each window the places of its tokens in the encoding, int `(tokens,)`.

    Raises:
        ValueError: if the rest leaves no room for the part.
    """
    places = np.arange(len(encoding))
    if len(places) <= max_length:
        return [places]
    inside = [place for place, side in enumerate(encoding.sequence_ids) if side == part]
    first, end = (inside[0], inside[-1] + 1) if inside else (0, 0)
    room = max_length - (len(places) - (end - first))
    if room < 1:
        raise ValueError(
            f"{len(places) - (end - first)} tokens stand around each part of the text, and a row "
            f"may have {max_length}. Shorten them, or allow longer rows."
        )
    overlap = min(OVERLAP, max_length // 2, room - 1)
    starts = range(first, end - overlap, room - overlap)
    return [
        np.concatenate([places[:first], places[s : min(s + room, end)], places[end:]])
        for s in starts
    ]


def counted(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Which tokens of each window of a text count there: each token where most text is around it.

    Args:
        parts: the windows of one text, as of `windows`.

    Returns:
        For each window bool `(tokens,)`.
    """
    best = np.full(max(int(places[-1]) for places in parts) + 1, -1)
    margins = [np.minimum(np.arange(len(p)), np.arange(len(p))[::-1]) for p in parts]
    chosen = np.zeros(len(best), "int64")
    for number, (places, margin) in enumerate(zip(parts, margins, strict=True)):
        better = margin > best[places]
        best[places[better]] = margin[better]
        chosen[places[better]] = number
    return [chosen[places] == number for number, places in enumerate(parts)]


def rows_of(
    encodings: list[tokenizers.Encoding], chosen: list[tuple[int, np.ndarray]]
) -> tuple[list[list[int]], list[list[int]]]:
    """The ids and the segments of windows, each given by its encoding's number and its tokens."""
    ids = [np.asarray(encodings[i].ids)[places].tolist() for i, places in chosen]
    return ids, [np.asarray(encodings[i].type_ids)[places].tolist() for i, places in chosen]
