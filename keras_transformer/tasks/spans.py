"""From tokens to places in the text, and long texts in overlapping windows."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tokenizers

from keras_transformer.data import BucketedDataset
from keras_transformer.tasks.inputs import listed
from keras_transformer.tasks.text import token_batches, token_columns

# The words that two windows share, in tokens (Devlin et al. 2018, the published SQuAD code).
OVERLAP = 128


class Word(NamedTuple):
    """A word of a text: its first token, and its characters from `start` to before `end`."""

    token: int
    start: int
    end: int


def character_spans(text: str, encoding: tokenizers.Encoding) -> list[tuple[int, int]]:
    """The characters of each token, from start to before end, without the white space around."""
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
    """A row that is too long, its side `part` cut, as places in its encoding."""
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
    """Which tokens of each window of a text count there: each where most text is around it."""
    best = np.full(max(int(places[-1]) for places in parts) + 1, -1)
    margins = [np.minimum(np.arange(len(p)), np.arange(len(p))[::-1]) for p in parts]
    chosen = np.zeros(len(best), "int64")
    for number, (places, margin) in enumerate(zip(parts, margins, strict=True)):
        better = margin > best[places]
        best[places[better]] = margin[better]
        chosen[places[better]] = number
    return [chosen[places] == number for number, places in enumerate(parts)]


def window_batches(
    task,
    encodings: list[tokenizers.Encoding],
    chosen: list[tuple[int, np.ndarray]],
    finish: Callable | None = None,
    further: dict[str, list] | None = None,
    **options,
) -> BucketedDataset:
    """Batches of windows, each an encoding's number and tokens; `further` are more columns."""
    ids = [np.asarray(encodings[i].ids)[places].tolist() for i, places in chosen]
    segments = [np.asarray(encodings[i].type_ids)[places].tolist() for i, places in chosen]
    columns = token_columns(task, ids, segments) | (further or {})
    return token_batches(task, columns, finish, **options)


def target_rows(y, count: int, each: str, of: str) -> list:
    """Targets as a list, of which there is one for each text. ValueError for anything else."""
    rows = listed(y)
    if not isinstance(rows, (list, tuple)) or len(rows) != count:
        number = f"{len(rows)} of them" if isinstance(rows, (list, tuple)) else type(y).__name__
        raise ValueError(
            f"`y` must be a list with {each} for each of the {count} {of}, received {number}."
        )
    return rows
