"""Conversion of texts, in memory or in files, to batches of token ids and of windows."""

import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset, Records, TokenRows
from keras_transformer.data.packing import packed_inputs
from keras_transformer.data.record_objects import elements_of
from keras_transformer.data.records import check_texts
from keras_transformer.data.token_store import Stored, fingerprint, tokenize
from keras_transformer.distribution.processes import check_processes
from keras_transformer.distribution.together import TOGETHER, agreed, all_rows, part_of
from keras_transformer.processors.processor import Processor
from keras_transformer.support.checking import check_int, check_text, describe, shorten
from keras_transformer.support.columns import is_column, is_frame, plain
from keras_transformer.tasks.data import streams
from keras_transformer.tasks.data.arguments import listed
from keras_transformer.tokenizers import Tokenizer

# Tokens that two neighbouring windows share (Devlin et al. 2018, the published SQuAD code).
OVERLAP = 128


def check_ends(config: TransformerConfig, ids: list[list[int]], name: str = "texts") -> None:
    """Raise ValueError if a text lacks the end token whose state gives its vector."""
    end = config.vector_end_id
    for i, row in enumerate(ids):
        if config.vector_pooling == "end" and end not in (None, *row):
            raise ValueError(
                f"The model reads a text at its token {end}, which is not in `{name}[{i}]`, "
                f"{shorten(row)}. Give a tokenizer whose template ends with it."
            )


class TextProcessor(Processor):
    """Converts texts to rows of token ids, and back.

    Args:
        tokenizer: `Tokenizer`.
    """

    options = ("max_length", "pack_length")
    kind = "tokenizer"
    raw = "strings"
    made = "ids"
    has_tokenizer = True

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    @classmethod
    def checked(cls, given: Any) -> "TextProcessor | None":
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, TextProcessor):
            given = given.tokenizer
        if not isinstance(given, Tokenizer):
            raise ValueError(
                f"`tokenizer` must be a Tokenizer or None, received {describe(given)}."
            )
        return cls(given)

    @property
    def argument(self) -> Tokenizer:
        return self.tokenizer

    @classmethod
    def takes(cls, x: Any) -> bool:
        """Return True if `x` is raw text, valid or not; any list or tuple of lists counts."""
        if x is None:
            return False
        known = isinstance(x, (str, list, tuple, np.ndarray))
        if isinstance(x, Records) or (not known and is_column(x)):
            return True
        if isinstance(x, np.ndarray):
            return x.dtype.kind in "OUS"
        if isinstance(x, tuple):
            return len(x) > 0 and all(map(cls.takes, x))
        return isinstance(x, (str, list))

    @classmethod
    def stream(cls, task, data, batch_size=None, steps=None, **options):
        return streams.held(task, data, batch_size, steps, **options)

    @classmethod
    def load_dataset(cls, task, data, options):
        return streams.held_texts(task, data, options)

    def save(self, directory: str) -> None:
        self.tokenizer.save(directory)

    @classmethod
    def from_files(cls, directory: str) -> "TextProcessor":
        return cls(Tokenizer.from_files(directory))

    @classmethod
    def unpacked(cls, files: dict[str, str]) -> "TextProcessor":
        processor = super().unpacked(files)
        processor.tokenizer._name = type(processor.tokenizer)._name  # The folder no longer exists.
        return processor

    def check(self, config: TransformerConfig) -> None:
        tokens, segments = self.tokenizer.vocabulary_size, self.tokenizer.segment_count
        known = config.last_side.input
        most = getattr(known, "vocabulary_size", 0)
        if tokens > most:
            raise ValueError(
                f"The tokenizer has {tokens} tokens, but the model's vocabulary only {most}: use "
                "the tokenizer of the model."
            )
        if 1 < getattr(known, "segments", 0) < segments:
            raise ValueError(
                f"The tokenizer has {segments} segments, but the model has embeddings of only "
                f"{known.segments}: use the tokenizer of the model."
            )


def tokenizer_of(task) -> Tokenizer:
    """Return the tokenizer of a task. Raises ValueError if it is missing."""
    return task._require_processor().tokenizer


def text_rows(texts, name: str = "x") -> list[str]:
    """Return texts as a list of strings. Raises ValueError if an item is not a string."""
    if isinstance(texts, Records):
        raise ValueError(
            f"`{name}` must be a list of strings here: the result of `data.read` is only for "
            "TextClassifier, CausalLM, MaskedLM and Seq2SeqLM."
        )
    texts = listed(texts, name)
    if not isinstance(texts, list) and is_frame(texts):
        raise streams.not_texts(name)
    if hasattr(texts, "as_numpy_iterator"):  # a `tf.data.Dataset`
        texts = _texts_of(texts, name)
    if isinstance(texts, str):
        hint = "put it in []."
        if os.path.isfile(texts):
            hint = f"a file is given as data.read({shorten(texts)})."
        raise ValueError(f"`{name}` must be a list of strings, received one string: {hint}")
    if isinstance(texts, (bytes, Mapping)) or not isinstance(texts, Iterable):
        raise ValueError(f"`{name}` must be a list of strings, received {describe(texts)}.")
    rows = list(texts)
    if not rows:
        raise ValueError(f"`{name}` is empty: there must be at least one text.")
    for place, text in enumerate(rows):
        if not (isinstance(text, str) and text.isascii()):
            check_text(f"{name}[{place}]", text)
    return rows


def _texts_of(dataset: Any, name: str) -> list:
    """Return the texts of a data set of strings, single or in batches, with or without labels."""
    rows = []
    for element in elements_of(dataset):
        texts = plain(element[0] if isinstance(element, tuple) else element, f"`{name}`")
        rows += texts if isinstance(texts, list) else [texts]
    return rows


def pair_rows(first, second, names: tuple[str, str], nouns: tuple[str, str]) -> tuple:
    """Return two lists of texts. Raises ValueError unless their lengths are equal."""
    sides = tuple(text_rows(part, name) for part, name in zip((first, second), names, strict=True))
    check_equal(*sides, nouns)
    return sides


def check_equal(first: list, second: list, nouns: tuple[str, str]) -> None:
    """Raise ValueError if the lists have different lengths."""
    if len(first) != len(second):
        raise ValueError(
            f"Received {len(first)} {nouns[0]} and {len(second)} {nouns[1]}: give one for each."
        )


def text_columns(x, name: str = "x") -> Records | tuple[list[str]]:
    """Return a tuple of one list of texts, or the `Records`, which must have one column."""
    if not isinstance(x, Records):
        return (text_rows(x, name),)
    if len(x.columns) > 1:
        raise ValueError(f"The data must have one column of texts and no `y`, received {x}.")
    return x


def take_max_length(task, options: dict[str, Any], at_least: int = 1, default=None) -> int:
    """Take the option `max_length`, the longest row in tokens, out of `options` and check it."""
    config, length = task.input_interface.config, options.pop("max_length", None)
    length = default if length is None else length
    if length is None:
        return config.max_sequence_length
    most = config.max_sequence_length if config.position == "learned" else 2**31 - 1
    return check_int("max_length", length, at_least=at_least, at_most=most)


def encode_rows(
    task,
    texts: Records | tuple[list[str], ...],
    encode: Callable,
    with_labels: bool = False,
    check_label: Callable | None = None,
    check: Callable = check_texts,
    in_parts: bool = True,
    **recipe,
) -> Stored:
    """Encode texts to rows of ids by column: lists in memory, records through a store on disk.

    `encode` maps the lists of texts, and a function `place(row)` for errors, to a dict of lists of
    ids. The ids depend on the texts, the tokenizer, the task's class and `recipe`, a dict of JSON
    values. `check` checks a column of texts of records, as `check_texts` does. `in_parts` is False
    if `encode` takes all lists only, so that processes cannot encode a part each.
    """
    if not isinstance(texts, Records):
        return Stored(_encode_lists(texts, encode, in_parts), None, None)
    tokenizer = tokenizer_of(task)
    size = tokenizer.vocabulary_size
    dtype = "uint8" if size <= 2**8 else "uint16" if size <= 2**16 else "int32"
    # An empty input shows which names `encode` returns.
    names = encode(([],) * (len(texts.columns) - with_labels), str)
    small = ("segment_ids", "counted")
    dtypes = {name: "uint8" if name in small else dtype for name in names}
    recipe |= {"task": type(task).__name__, "tokenizer": fingerprint(tokenizer)}
    return tokenize(texts, encode, recipe, dtypes, with_labels, check_label, check)


def _encode_lists(texts: tuple[list, ...], encode: Callable, in_parts: bool) -> dict:
    """Return `TokenRows` of texts in memory; processes that share the work encode a part each."""

    def encoded(part: range) -> dict[str, TokenRows]:
        found = encode(
            tuple(rows[part.start : part.stop] for rows in texts),
            lambda index: f"`x[{part.start + index}]`",
        )
        return {name: TokenRows.from_lists(rows, name) for name, rows in found.items()}

    whole = range(len(texts[0]))
    if not TOGETHER.get():
        return encoded(whole)
    check_processes(data=_summary(texts))
    part = part_of(len(whole)) if in_parts else whole
    found = agreed(lambda: encoded(part))
    if not in_parts:
        return found
    return {name: TokenRows(*all_rows((rows.ids, rows.lengths))) for name, rows in found.items()}


def _summary(texts: tuple[list, ...]) -> dict[str, int]:
    """Return numbers that differ if texts differ, to compare those of processes."""
    checksum = 0
    for row in chain.from_iterable(texts):
        row = row if isinstance(row, str) else repr(row)
        checksum = zlib.crc32(row.encode(errors="surrogatepass"), checksum)
    return {"rows": len(texts[0]), "checksum": checksum}


def check_said(
    texts: Iterable[str], rows: Iterable[list[int]], empty: list[int], place: Callable[[int], str]
) -> None:
    """Raise ValueError if a text is empty or white space, or has no tokens of its own.

    `empty` is the ids of an empty text: the special tokens that the tokenizer's template adds.
    """
    for i, (text, row) in enumerate(zip(texts, rows, strict=True)):
        if not text or text.isspace() or row == empty:
            why = "is empty" if not text.strip() else "has no token of its own"
            raise ValueError(
                f"{place(i)} {why}: {shorten(text)}. There is nothing in it to read or to learn "
                "from: remove the row."
            )


def token_columns(task, ids: list, segments: list) -> dict[str, list]:
    """Return the input columns: ids, and segments if the model has segment embeddings."""
    segmented = task.backbone.config.segment_vocabulary_size > 1
    return {"token_ids": ids, "segment_ids": segments} if segmented else {"token_ids": ids}


def segmented_rows(task, max_length: int, may_be_empty: bool = False) -> Callable:
    """Return a function `encode` for `encode_rows`, for texts or pairs of them, with segments.

    It raises ValueError if a text has no tokens of its own, unless texts `may_be_empty`.
    """
    tokenizer = tokenizer_of(task)

    def encode(texts, place):
        ids, segments = tokenizer.encode_batch_with_segments(*texts, max_length=max_length)
        nothing = [[""] for _ in texts]
        empty = tokenizer.encode_batch_with_segments(*nothing, max_length=max_length)[0][0]
        if not may_be_empty:  # In a pair, one text is enough.
            check_said(map("".join, zip(*texts, strict=True)), ids, empty, place)
        return token_columns(task, ids, segments)

    return encode


def token_batches(
    task, columns: dict[str, Any], finish: Callable | None = None, **options
) -> BucketedDataset:
    """Batch token columns: inputs followed by `values`, or the result of `finish(inputs, arrays)`.

    Options are those of `data.BucketedDataset`.
    """
    values = options.get("values") or ()

    def make_batch(arrays, masks):
        inputs = {n: arrays[n] for n in ("token_ids", "segment_ids") if n in columns}
        inputs["padding_mask"] = masks["token_ids"]
        if "pack_ids" in arrays:
            inputs |= packed_inputs(arrays)
        if finish is not None:
            return finish(inputs, arrays)
        return inputs, *(arrays[name] for name in values)

    pad_values = {"token_ids": tokenizer_of(task).pad_id or 0}
    return task._bucketed(columns, make_batch, pad_values=pad_values, rowwise=True, **options)


def with_end(rows: list[list[int]], end_id: int | None) -> list[list[int]]:
    """Return the rows, each ending with exactly one `end_id`, if it is not None."""
    if end_id is None:
        return rows
    return [row if row and row[-1] == end_id else [*row, end_id] for row in rows]


def without_end(rows: list[list[int]], end_id: int | None) -> list[list[int]]:
    """Return the rows without the end token that a tokenizer's template adds."""
    return [row[:-1] if row and row[-1] == end_id else row for row in rows]


class Word(NamedTuple):
    """A word of a text: its first token, and its characters `text[start:end]`."""

    token: int
    start: int
    end: int


def character_spans(text: str, encoding: tokenizers.Encoding) -> list[tuple[int, int]]:
    """Return the start and end of each token's characters, without surrounding white space."""
    spans = []
    for start, end in encoding.offsets:
        piece = text[start:end]
        start += len(piece) - len(piece.lstrip())
        spans.append((start, start + len(piece.strip())))
    return spans


def words_of(text: str, encoding: tokenizers.Encoding) -> list[Word]:
    """Return the words that the tokenizer splits a text into before it splits them into tokens."""
    spans = character_spans(text, encoding)
    words: dict[int, Word] = {}
    for token, number in enumerate(encoding.word_ids):
        if number is None:
            continue
        start, end = spans[token]
        first = words.get(number, Word(token, start, end))
        words[number] = first._replace(end=max(first.end, end))
    found = []
    for token, start, end in words.values():
        piece = text[start:end]  # Words may include white space or consist of it.
        start += len(piece) - len(piece.lstrip())
        if piece.strip():
            found.append(Word(token, start, start + len(piece.strip())))
    return found


def split_windows(encoding: tokenizers.Encoding, part: int, max_length: int) -> list[np.ndarray]:
    """Split a row that is too long into windows of token positions, cutting only side `part`."""
    places = np.arange(len(encoding))
    if len(places) <= max_length:
        return [places]
    inside = [place for place, side in enumerate(encoding.sequence_ids) if side == part]
    first, end = (inside[0], inside[-1] + 1) if inside else (0, 0)
    room = max_length - (len(places) - (end - first))
    if room < 1:
        raise ValueError(
            f"{len(places) - (end - first)} tokens surround the text in each window, but a row may "
            f"have only {max_length} tokens in all. Shorten them, or raise `max_length`."
        )
    overlap = min(OVERLAP, max_length // 2, room - 1)
    starts = range(first, end - overlap, room - overlap)
    return [
        np.concatenate([places[:first], places[s : min(s + room, end)], places[end:]])
        for s in starts
    ]


def best_window_masks(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Mark the tokens that count in each window: each counts where it has the most context."""
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
    """Batch windows, given by the index of their encoding and their positions.

    `further` are additional columns, with a list for each window.
    """
    ids = [np.asarray(encodings[i].ids)[places].tolist() for i, places in chosen]
    segments = [np.asarray(encodings[i].type_ids)[places].tolist() for i, places in chosen]
    columns = token_columns(task, ids, segments) | (further or {})
    return token_batches(task, columns, finish, **options)


def target_rows(y, count: int, each: str, of: str) -> list:
    """Return targets as a list, one for each text. Raises ValueError if they do not fit."""
    rows = listed(y)
    if not isinstance(rows, (list, tuple)) or len(rows) != count:
        number = f"{len(rows)} of them" if isinstance(rows, (list, tuple)) else type(y).__name__
        raise ValueError(
            f"`y` must be a list with {each} for each of the {count} {of}, received {number}."
        )
    return rows
