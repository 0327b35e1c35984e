"""Readable tokens, and labels for non-text states such as patches and frames."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.backend import byte_alphabet

_WORD_STARTS = ("\u2581", "\u0120")  # marks of SentencePiece and of byte-level BPE
_WHITE = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def readable_tokens(ids: Sequence[int], tokenizer: Tokenizer | None = None) -> tuple[str, ...]:
    r"""Return the tokens of ids as readable text, without the marks of their vocabulary.

    The mark of a token that begins a word is removed; WordPiece's `##` in other tokens stays. Bytes
    that are not a whole character become `<0xE2>`, spaces alone `␣`, and line ends `\\n`.

    Args:
        ids: ints, the ids of a text.
        tokenizer: `Tokenizer`. Without one, the ids themselves are returned as strings.

    Returns:
        A tuple of strings, one for each id. An id outside the vocabulary becomes `[id]`.

    Example:
    ```python
    import keras_transformer as kt

    tokenizer = kt.Tokenizer.train(["a man rides a bike ."] * 4, vocabulary_size=300)
    ids = tokenizer.encode("a bike .")
    tokens = kt.explanations.readable_tokens(ids, tokenizer)
    assert len(tokens) == len(ids) and "bike" in tokens
    ```
    """
    if tokenizer is None:
        return tuple(str(id) for id in ids)
    special, known = set(tokenizer.special_ids), byte_alphabet()
    to_byte = {char: byte for byte, char in enumerate(known)}
    by_bytes = _is_of_bytes(tokenizer)
    found = []
    for id in ids:
        token = tokenizer.id_to_token(int(id)) if id < tokenizer.vocabulary_size else None
        if token is None:
            found.append(f"[{id}]")
        elif id in special:
            found.append(token)
        elif by_bytes and all(char in to_byte for char in token):
            found.append(_shown(_of_bytes(bytes(to_byte[char] for char in token))))
        else:
            for mark in _WORD_STARTS:
                token = token.replace(mark, " ")
            found.append(_shown(token))
    return tuple(found)


def state_names(config: TransformerConfig, count: int) -> tuple[str, ...]:
    """Return names for states that are not tokens, such as `2,3` for an image patch.

    Args:
        config: config of the side, with a `stem`.
        count: number of states.
    """
    stem: Any = config.stem
    tokens = 0 if stem is None else getattr(stem, "num_tokens", 0) or 0
    if stem is not None and not tokens and getattr(stem, "class_token", False):
        tokens = 1
    registers = getattr(stem, "num_registers", 0)
    names = ["[CLS]", "[DIST]"][: tokens - registers]
    names += [f"[REG{i}]" for i in range(1, registers + 1)]
    rest = count - len(names)
    if hasattr(stem, "image_size"):
        rows, columns = stem.grid(stem.image_size)
        if rows * columns == rest:
            return (*names, *(f"{i // columns},{i % columns}" for i in range(rest)))
    if hasattr(stem, "tube_grid"):
        grid = stem.tube_grid(stem.video_size)
        if math.prod(grid) == rest:
            return (*names, *(",".join(map(str, place)) for place in np.ndindex(grid)))
    if hasattr(stem, "patch_length"):
        length, step = stem.patch_length, stem.stride
        rows = stem.num_rows  # channels, whose patches are behind each other
        starts = [i * step for i in range(rest // rows)]
        channels = [f"{i}:" for i in range(rows)] if rows > 1 else [""]
        of_all = (f"{each}{i}-{i + length - 1}" for each in channels for i in starts)
        return (*names, *of_all)
    return (*names, *(str(i) for i in range(rest)))


def _is_of_bytes(tokenizer: Tokenizer) -> bool:
    """Return True if the characters of tokens stand for bytes."""
    return type(tokenizer._backend.decoder).__name__ == "ByteLevel" or (
        "ByteLevel" in repr(tokenizer._backend.decoder)
    )


def _of_bytes(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in piece)


def _shown(piece: str) -> str:
    """Return a piece of text as a label, which is never empty, without spaces around it."""
    if not piece.strip(" "):
        return "␣"
    return "".join(map(_visible, piece.strip(" ")))


def _visible(char: str) -> str:
    return _WHITE.get(char) or (char if char.isprintable() else f"<U+{ord(char):04X}>")
