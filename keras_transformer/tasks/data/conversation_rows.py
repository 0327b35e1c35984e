"""Conversations as rows of token ids, with the tokens that the loss counts."""

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from keras_transformer.data import Records, TokenRows, read
from keras_transformer.data.conversations import (
    Conversation,
    as_conversations,
    conversation_columns,
    from_columns,
    is_conversations,
)
from keras_transformer.data.record_files import FileSource
from keras_transformer.data.record_objects import column_names, elements_of
from keras_transformer.support.checking import check_choice, shorten
from keras_transformer.support.columns import is_frame, is_table
from keras_transformer.tasks.data import streams
from keras_transformer.tasks.data.arguments import level_of_user
from keras_transformer.tasks.data.labels import check_weights, token_weights
from keras_transformer.tasks.data.text import TextProcessor, encode_rows, tokenizer_of
from keras_transformer.tokenizers import ConversationTokens, encode_completion
from keras_transformer.tokenizers.conversation_tokens import TRAIN_ON, ConversationEncoder

_ROWS = 32  # batch size for data sets that yield single rows


class ConversationProcessor(TextProcessor):
    """Converts texts and conversations to rows of token ids.

    Args:
        tokenizer: `Tokenizer`, which needs a chat template for conversations.
    """

    options = (*TextProcessor.options, "train_on")
    raw = "strings or conversations"

    @classmethod
    def stream(cls, task, data, batch_size=None, steps=None, **options):
        names = column_names(data)
        if names is not None and conversation_columns(names) is not None:
            if is_table(data):
                return read(data, x=conversation_columns(names))
            if is_frame(data):
                return as_conversations(data)
        if streams.is_data_set(data):
            data, batches = _stream(task, data, batch_size or _ROWS, steps, options)
            if batches is not None:
                return batches
        return super().stream(task, data, batch_size, steps, **options)


def _stream(task, data: Any, rows: int, steps: int | None, options: dict) -> tuple:
    """Return the data with all its elements, and its batches if it yields rows of conversations."""
    once = hasattr(data, "__next__")
    elements = elements_of(data)
    first = next(elements, None)
    if once:
        elements = itertools.chain([] if first is None else [first], elements)
    if not _is_row(first):
        return (element for element in elements) if once else data, None

    def batches(elements) -> Iterator[tuple]:
        while some := list(itertools.islice(elements, rows)):
            yield as_conversations(some), None, None

    number = None
    if steps is None and not once:
        size = streams.size_of(data, steps)
        number = (
            -(-size // rows) if size is not None else sum(1 for _ in batches(elements_of(data)))
        )
    if steps is None and once:
        held = list(batches(elements))
        return data, streams.TextBatches(task, lambda: iter(held), len(held), **options)
    begin = (lambda: batches(elements)) if once else (lambda: batches(elements_of(data)))
    return data, streams.TextBatches(task, begin, number, once, **options)


def _is_row(element: Any) -> bool:
    """Return whether an element of a data set is one conversation."""
    if isinstance(element, list):
        return bool(element) and isinstance(element[0], Mapping) and "role" in element[0]
    columns = conversation_columns(list(element)) if isinstance(element, Mapping) else None
    if columns is None:
        return False
    value = element[columns[0]]  # messages or a text; or those of several rows
    return isinstance(value, str) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)
    )


def holds_conversations(x: Any, y: Any = None) -> bool:
    """Return whether the data of `make_dataset` holds conversations rather than texts."""
    if isinstance(x, Records):
        return form_of(x) is not None
    return y is not None or is_conversations(x)


def refuse_train_on(train_on: str | None) -> None:
    """Raise ValueError if `train_on` is given for texts."""
    if train_on not in (None, "all"):
        raise ValueError(
            f"train_on={shorten(train_on)} is for conversations, or prompts with answers: all "
            "tokens of a text count. Leave it out."
        )


def form_of(records: Records) -> tuple[str, ...] | None:
    """Return the names that `data.as_conversations` knows for the columns of records.

    None if there is one column, of texts.
    """
    columns = records.columns
    if records.y is not None and len(records.x) == 1:
        return ("prompt", "completion")
    if {*(conversation_columns(columns) or ())} == {*columns}:
        return columns
    if len(columns) > 1:
        raise ValueError(
            f"The data has the columns {shorten(list(columns))}, which are not known to hold "
            "conversations. Name the columns of prompts and answers, as in data.read(data, "
            "x='question', y='answer'), or one column of texts or of messages."
        )
    _, first = next(records.sources[0].read_rows(columns), (0, ("",)))
    return ("messages",) if isinstance(first[0], list) else None


def encode_rows_of_conversations(
    task, x: Any, y: Any, sample_weight: Any, train_on: str | None, max_length: int,
    make_encoder: Callable | None = None,
) -> tuple[dict[str, TokenRows], np.ndarray]:  # fmt: skip
    """Return the columns `"tokens"`, `"counted"` and perhaps `"weights"` of conversations.

    A conversation is cut at the right to `max_length` inputs, and its last target. If no counted
    token is left, the conversation is left out: the second result, int `(rows,)`, tells which
    conversation each row is. `make_encoder` is used in place of `conversation_encoder`.
    """
    train_on = check_choice("train_on", train_on or "assistant", TRAIN_ON)
    encode = (make_encoder or conversation_encoder)(task, train_on)
    # One more token than is used tells whether a row is cut.
    most = max_length + 2

    def encoded(columns, place):
        if isinstance(x, Records):
            filled = not all(isinstance(s, FileSource) and s.format == "jsonl" for s in x.sources)
            rows = from_columns(dict(zip(form_of(x), columns, strict=True)), place, filled)
        else:
            (rows,) = columns
        found = encode(rows, place)
        return {
            "tokens": [row.ids[:most] for row in found],
            "counted": [row.counted[:most] for row in found],
        }

    given = x if isinstance(x, Records) else (as_conversations(x, y),)
    columns = encode_rows(
        task, given, encoded, check=lambda *_: None, in_parts=make_encoder is None,
        train_on=train_on, max_length=max_length,
    ).columns  # fmt: skip
    lengths = columns["tokens"].lengths
    cut = lengths > max_length + 1
    shown = np.minimum(lengths, max_length + 1)
    counts = [row[1:length].any() for row, length in zip(columns["counted"], shown, strict=True)]
    kept = np.flatnonzero(counts)
    _tell(len(lengths), int(cut.sum()), len(lengths) - len(kept), max_length)
    found = {
        name: TokenRows(rows.ids, shown[kept], rows.starts[kept], rows.blocks)
        for name, rows in columns.items()
    }
    if sample_weight is not None:
        weights = check_weights("sample_weight", sample_weight, len(lengths), unit="conversation")
        targets = found["tokens"].lengths - 1
        found |= token_weights(weights[kept], targets, max_length, "conversation")
    return found, kept


def conversation_encoder(task, train_on: str) -> Callable[..., list[ConversationTokens]]:
    """Return a function that encodes conversations with the tokenizer of a task.

    It takes a list of `Conversation`, and a function that names one in errors by its index.
    """
    tokenizer = tokenizer_of(task)
    if tokenizer.chat_template is not None:
        encode = ConversationEncoder(tokenizer, train_on).encode
        return lambda rows, place: encode([row[:3] for row in rows], place)

    def encode_plain(rows: list[Conversation], place: Callable[[int], str]):
        for i, row in enumerate(rows):
            if not row.plain:
                raise ValueError(
                    f"{place(i)} is a conversation, and the tokenizer has no chat template, which "
                    "would turn it into text. Give it one: lm = CausalLM(lm.backbone, "
                    "lm.tokenizer.with_chat_template('zephyr')). Without one, give prompts and "
                    "answers as strings, fit(prompts, answers)."
                )
        texts = ([message["content"] for message in row.messages] for row in rows)
        return [encode_completion(tokenizer, *both, train_on) for both in texts]

    return encode_plain


def _tell(rows: int, cut: int, dropped: int, max_length: int) -> None:
    """Warn of conversations that were cut. Raises ValueError if none is left."""
    if dropped == rows:
        raise ValueError(
            f"None of the {rows} conversations has a token that counts"
            + (f" within max_length={max_length}: raise it." if cut else ".")
        )
    if cut or dropped:
        warnings.warn(
            f"{cut} of {rows} conversations are longer than max_length={max_length} and were cut "
            f"at the right. {dropped} had no counted token left and were left out.",
            stacklevel=level_of_user(),
        )
