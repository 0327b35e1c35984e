"""A tokenizer as the vocabulary of a GGUF file."""

import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.checkpoints.gguf.config import END_IDS
from keras_transformer.checkpoints.gguf.header import Header
from keras_transformer.checkpoints.gguf.tokenizers import (
    CONTROL,
    ROLES,
    UNUSED,
    UNUSED_NAME,
    USER_DEFINED,
    read_tokenizer,
)
from keras_transformer.checkpoints.gguf.words import WORDS, name_of
from keras_transformer.support.checking import shorten
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.sentencepiece import SPACE

_ORDINARY, _UNKNOWN, _BYTE = 1, 2, 6  # further types of tokens
_BYTE_NAME = re.compile(r"<0x[0-9A-F]{2}>")
_AT_ONCE = 512  # tokens whose texts are compared at once
_PREFIX = "tokenizer.ggml."
_INSTEAD = (
    'Export the model without it, by `kt.export(task.backbone, folder, format="gguf")`, or with it '
    'in another format, such as `format="huggingface"`.'
)


def vocabulary_keys(
    tokenizer: Tokenizer, rows: int, architecture: str, end_ids: Sequence[int]
) -> dict[str, Any]:
    """Return the metadata of a tokenizer by key.

    Args:
        tokenizer: the tokenizer.
        rows: number of rows of the model's embedding, at least the number of tokens.
        architecture: `general.architecture` of the file.
        end_ids: ids of the tokens that end a text, the usual one first.

    Raises:
        ValueError: if GGUF has no vocabulary of the tokenizer's kind, or one that is read from the
            file would give other ids.
    """
    values = json.loads(tokenizer._backend.to_str())
    model = values["model"]
    if model.get("type") != "BPE":
        raise ValueError(
            f"A GGUF file has a vocabulary of merges (BPE), and this tokenizer is "
            f"{model.get('type')}. {_INSTEAD}"
        )
    if tokenizer.vocabulary_size > rows:
        raise ValueError(
            f"The tokenizer has {tokenizer.vocabulary_size:,} tokens, more than the {rows:,} rows "
            "of the model's embedding."
        )
    tokens, types = _tokens(tokenizer, rows)
    merges = [pair if isinstance(pair, list) else pair.split(" ", 1) for pair in model["merges"]]
    if model.get("byte_fallback"):
        keys = {
            "model": "llama",
            "pre": "default",
            "scores": _scores(tokens, types, merges),
            "add_space_prefix": _first_token(tokenizer).startswith(SPACE),
        }
        types[[_BYTE_NAME.fullmatch(token) is not None for token in tokens]] = _BYTE
        if architecture.startswith("gemma"):  # whose files write runs of spaces as they are
            runs = re.compile(f"{SPACE}{{2,}}")
            tokens = [" " * len(token) if runs.fullmatch(token) else token for token in tokens]
    else:
        words = name_of(tokenizer._backend)
        if words is None:
            raise ValueError(
                "GGUF has no name for how this tokenizer splits texts into words; known are "
                f"{', '.join(WORDS)}. {_INSTEAD}"
            )
        keys = {"model": "gpt2", "pre": words, "merges": [" ".join(pair) for pair in merges]}
    keys |= {"tokens": tokens, "token_type": types.astype("int32")}
    keys |= _special(tokenizer)
    named = {f"{_PREFIX}{key}": value for key, value in keys.items()} | end_keys(end_ids)
    if tokenizer.chat_template is not None:
        named["tokenizer.chat_template"] = tokenizer.chat_template
    _check(tokenizer, named, architecture)
    return named


def _tokens(tokenizer: Tokenizer, rows: int) -> tuple[list[str], np.ndarray]:
    """Return the tokens in the order of their ids, and their types; rows without one are named."""
    tokens = [UNUSED_NAME.format(index) for index in range(rows)]
    types = np.full(rows, UNUSED)
    for token, index in tokenizer.get_vocabulary().items():
        tokens[index], types[index] = token, _ORDINARY
    for index, token in tokenizer._backend.get_added_tokens_decoder().items():
        types[index] = CONTROL if token.special else USER_DEFINED
    if tokenizer.unknown_id is not None:
        types[tokenizer.unknown_id] = _UNKNOWN
    return tokens, types


def _first_token(tokenizer: Tokenizer) -> str:
    ids = tokenizer.encode("a", special_tokens=False)
    return (tokenizer.id_to_token(ids[0]) or "") if ids else ""


def _scores(tokens: list[str], types: np.ndarray, merges: list[Sequence[str]]) -> np.ndarray:
    """Return a score for each token, the higher the earlier it is merged."""
    order: dict[str, int] = {}
    for left, right in merges:
        order.setdefault(left + right, len(order) + 1)
    scores = [-float(order.get(token, len(order) + 1)) for token in tokens]
    scores = np.array(scores, "float32")
    scores[types != _ORDINARY] = 0.0
    return scores


def end_keys(end_ids: Sequence[int]) -> dict[str, int]:
    """Return the metadata of the tokens that end a text, the usual one first."""
    if len(end_ids) > len(END_IDS):
        raise ValueError(
            f"A GGUF file names at most {len(END_IDS)} tokens that end a text, and the task has "
            f"{len(end_ids)}: {list(end_ids)}."
        )
    return {f"{_PREFIX}{name}": index for name, index in zip(END_IDS, end_ids, strict=False)}


def _special(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the ids of special tokens, and which of them are put around a text."""
    ids = {ROLES[role]: getattr(tokenizer, f"{role}_id") for role in ROLES}
    found = {name: int(index) for name, index in ids.items() if index is not None}
    text = "a"
    whole, bare = tokenizer.encode(text), tokenizer.encode(text, special_tokens=False)
    starts = whole[:1] == [tokenizer.start_id] != bare[:1]
    ends = whole[-1:] == [tokenizer.end_id] != bare[-1:]
    return {**found, "add_bos_token": starts, "add_eos_token": ends}


def _check(tokenizer: Tokenizer, keys: dict[str, Any], architecture: str) -> None:
    """Raise ValueError if the tokenizer that a file's keys describe gives other ids."""
    header = Header("the file", {**keys, "general.architecture": architecture}, {})
    backend, roles, template = read_tokenizer(header)
    again = Tokenizer(backend, chat_template=template, **roles)
    special = set(tokenizer.special_ids)
    ordinary = [i for i in sorted(tokenizer.get_vocabulary().values()) if i not in special]
    parts = [ordinary[start : start + _AT_ONCE] for start in range(0, len(ordinary), _AT_ONCE)]
    # A file says nothing about the composition of accents and spaces at the ends of a text.
    texts = [unicodedata.normalize("NFC", tokenizer.decode(ids)).strip() for ids in parts]
    texts.append("A man's 3.5 km\n\n  and 12345 more!")
    for text in texts:
        mine, theirs = tokenizer.encode(text), again.encode(text)
        if mine != theirs:
            pairs = enumerate(zip(mine, theirs, strict=False))
            place = next((i for i, (one, other) in pairs if one != other), 0)
            raise ValueError(
                "A GGUF file cannot hold this tokenizer: read from it, it would give other ids, "
                f"{theirs[place : place + 4]} and not {mine[place : place + 4]}, in a text that "
                f"begins with {shorten(text[:40])}. {_INSTEAD}"
            )
