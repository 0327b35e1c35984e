"""SentencePiece's files (`.model`, `.spm`), read without its library.

The few fields that are needed are taken from the protobuf by hand: bounded, and without a
dependency. What is read is checked, since the Rust library trusts what it is given.

Source: the fields are those of `sentencepiece_model.proto`, the table of normalization rules is
a trie of Darts-clone.
"""

import dataclasses
import math
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import AddedToken

from keras_transformer.files import read_file

# The types of pieces.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_KINDS = {1: "unigram", 2: "bpe"}
# Ten times the largest published file; a piece is a word or a few.
_MAX_FILE = 50_000_000
_MAX_PIECE = 512
# Characters that one is replaced by. By Unicode's rules of compatibility there are up to 18.
_MAX_REPLACEMENT = 36
_MAX_REPLACEMENTS = 2**20  # characters of all; published ones have a twentieth
# The bits of a unit of the trie that must equal a byte for a step along it.
_LABEL = 0x800000FF


@dataclasses.dataclass(frozen=True)
class SentencePieceModel:
    """The content of a SentencePiece file."""

    kind: str  # "unigram" or "bpe"
    pieces: list[str]  # their ids are their places
    scores: list[float]  # log probabilities (unigram) or minus the ranks (BPE)
    types: list[int]  # `NORMAL`, `CONTROL` and so on
    byte_fallback: bool  # whether unknown characters are spelled in bytes
    special_ids: dict[str, int]  # of "unk", "bos" and "eos", -1 for one that is not used
    charsmap: bytes  # the compiled rules of Unicode normalization, empty for none
    add_dummy_prefix: bool  # whether a space is put before a text
    remove_extra_whitespaces: bool  # at the ends, and of several all but one
    data: bytes = dataclasses.field(repr=False)  # the file itself

    @property
    def scored(self) -> list[tuple[str, float]]:
        """The pieces with their scores."""
        return list(zip(self.pieces, self.scores, strict=True))

    @property
    def vocabulary(self) -> dict[str, int]:
        """The id of every piece."""
        return {piece: index for index, piece in enumerate(self.pieces)}

    def merges(self) -> list[tuple[str, str]]:
        """The merges of BPE, which the file leaves implicit: every split into two pieces."""
        known = set(self.pieces)
        return [
            (piece[:place], piece[place:])
            for piece in self.pieces
            for place in range(1, len(piece))
            if piece[:place] in known and piece[place:] in known
        ]

    def added_tokens(self) -> list[AddedToken]:
        """Control symbols, which are special, and user defined ones, which are not."""
        return [
            AddedToken(piece, normalized=False, special=type == CONTROL)
            for piece, type in zip(self.pieces, self.types, strict=True)
            if type in (CONTROL, USER_DEFINED)
        ]


def parse_sentencepiece(path: str | os.PathLike) -> SentencePieceModel:
    """Reads and checks a SentencePiece file."""
    path = Path(path)
    data = read_file(path, _MAX_FILE)
    try:
        return _parse(data)
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} is not a usable SentencePiece file: {error}. It may be truncated, or "
            "of another format (such as tiktoken's); fetch it again, or give a tokenizer.json."
        ) from None


class Charsmap:
    """SentencePiece's compiled rules of normalization: strings and what replaces them."""

    def __init__(self, data: bytes):
        size = struct.unpack("<I", data[:4])[0] if len(data) >= 4 else -1
        if size < 4 or size % 4 or size > len(data) - 4:
            raise ValueError("the compiled rules are truncated")
        units = np.frombuffer(data[4 : 4 + size], "<u4").astype(np.int64)
        self._replacements = data[4 + size :]
        self.replacements = self._replacements.decode()  # UnicodeDecodeError is a ValueError
        self.longest = max(map(len, self.replacements.split("\0")))
        if len(self.replacements) > _MAX_REPLACEMENTS:
            raise ValueError("the compiled rules have too many replacements")
        if self.longest > _MAX_REPLACEMENT:
            raise ValueError(
                f"the compiled rules replace a character by {self.longest:,} characters, and may "
                f"do so by {_MAX_REPLACEMENT}"
            )
        # No step of a search may lead out of the trie, no rule out of the replacements.
        targets = np.arange(len(units)) ^ _offset(units)
        inner = units >> 31 == 0
        leaves = targets[inner & (units >> 8 & 1 == 1)]
        if (targets[inner] | 0xFF).max(initial=0) >= len(units):
            raise ValueError("the compiled rules lead out of their table")
        starts = units[leaves] & 0x7FFFFFFF
        ends = np.frombuffer(self._replacements + b"\0", np.uint8)
        if (starts >= len(ends)).any() or (ends[starts] >> 6 == 0b10).any():
            raise ValueError("the compiled rules have wrong replacements")
        self._units = units.tolist()
        # Most of a text: ASCII that no rule of ASCII alone is about, where no mark follows.
        plain = bytes(byte for byte in range(128) if not self._has_ascii_rule(byte))
        self._plain = re.compile(b"[%s]+(?![\x80-\xff])" % re.escape(plain) if plain else b"(?!)")

    def normalize(self, text: str) -> str:
        """The text with the rules applied."""
        data, place, parts = text.encode(), 0, []
        while place < len(data):
            plain = self._plain.match(data, place)
            if plain:
                parts.append(plain[0])
                place = plain.end()
                continue
            end, replacement = self._longest(data, place)
            if end == place:  # no rule: the character stays
                end += 1
                while end < len(data) and data[end] >> 6 == 0b10:
                    end += 1
                replacement = data[place:end]
            parts.append(replacement)
            place = end
        return b"".join(parts).decode()

    def _has_ascii_rule(self, byte: int) -> bool:
        """Whether a rule starts with this byte and is one character or goes on in ASCII."""
        node = _offset(self._units[0]) ^ byte
        unit = self._units[node]
        if unit & _LABEL != byte:
            return False
        node ^= _offset(unit)
        return unit >> 8 & 1 or any(self._units[node ^ b] & _LABEL == b for b in range(1, 128))

    def _longest(self, data: bytes, place: int) -> tuple[int, bytes]:
        units, found, replacement = self._units, place, b""
        node = _offset(units[0])
        for index in range(place, len(data)):
            node ^= data[index]
            unit = units[node]
            if unit & _LABEL != data[index]:
                break
            node ^= _offset(unit)
            if unit >> 8 & 1:
                start = units[node] & 0x7FFFFFFF
                found = index + 1
                replacement = self._replacements[start:].partition(b"\0")[0]
        return found, replacement


def _offset(unit):
    return unit >> 10 << ((unit & 0x200) >> 6)


def _parse(data: bytes) -> SentencePieceModel:
    pieces, scores, types = [], [], []
    trainer, normalizer = {}, {}
    for field, value in _fields(data):
        if field == 1:
            piece = dict(_fields(_typed(value, bytes)))
            pieces.append(_typed(piece.get(1, b""), bytes).decode())
            scores.append(_float(piece.get(2, b"\0\0\0\0")))
            types.append(_typed(piece.get(3, NORMAL), int))
        elif field == 2:
            trainer = dict(_fields(_typed(value, bytes)))
        elif field == 3:
            normalizer = dict(_fields(_typed(value, bytes)))
    special_ids = {
        name: _signed(_typed(trainer.get(field, default), int))
        for name, field, default in (("unk", 40, 0), ("bos", 41, 1), ("eos", 42, 2))
    }
    # A file may name a start that it has no piece for.
    for name in ("bos", "eos"):
        if not 0 <= special_ids[name] < len(pieces) or types[special_ids[name]] != CONTROL:
            special_ids[name] = -1
    model = SentencePieceModel(
        kind=_KINDS.get(_typed(trainer.get(3, 1), int), ""),
        pieces=pieces,
        scores=scores,
        types=types,
        byte_fallback=bool(trainer.get(35, 0)),
        special_ids=special_ids,
        charsmap=_typed(normalizer.get(2, b""), bytes),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
        data=data,
    )
    _check(model)
    return model


def _check(model: SentencePieceModel) -> None:
    if not model.pieces:
        raise ValueError("it has no pieces")
    if not model.kind:
        raise ValueError("it is neither of the unigram nor of the BPE kind")
    if len(set(model.pieces)) != len(model.pieces):
        raise ValueError("a piece is there twice")
    longest = max(map(len, model.pieces))
    if longest > _MAX_PIECE or not all(model.pieces):
        raise ValueError(f"a piece is empty or longer than {_MAX_PIECE} characters ({longest})")
    if not all(map(math.isfinite, model.scores)):
        raise ValueError("a score is not a finite number")
    if not 0 <= model.special_ids["unk"] < len(model.pieces):
        raise ValueError(
            f"its unknown piece has the id {model.special_ids['unk']}, and it has "
            f"{len(model.pieces)} pieces"
        )
    if model.byte_fallback:
        missing = {f"<0x{byte:02X}>" for byte in range(256)} - set(model.pieces)
        if missing:
            raise ValueError(f"it spells in bytes, and lacks the piece {min(missing)}")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: number, and value (bytes if it is not a varint)."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        field, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, place = _varint(data, place)
        else:
            if wire_type == 2:
                length, place = _varint(data, place)
            else:
                length = {1: 8, 5: 4}.get(wire_type, -1)
            if field == 0 or not 0 <= length <= len(data) - place:
                raise ValueError(f"the data end or break at byte {place} of {len(data)}")
            value = data[place : place + length]
            place += length
        yield field, value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError(f"the data end or break at byte {place} of {len(data)}")


def _typed(value, expected: type):
    if not isinstance(value, expected):
        raise ValueError("a field has an unexpected type")
    return value


def _float(value) -> float:
    if not isinstance(value, bytes) or len(value) != 4:
        raise ValueError("a score has an unexpected type")
    return struct.unpack("<f", value)[0]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def field(number: int, value: bytes | int | float) -> bytes:
    """A field of a protobuf as it is written: bytes, an integer or a float of 32 bits."""
    if isinstance(value, float):
        return _written(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _written(number << 3) + _written(value)
    return _written(number << 3 | 2) + _written(len(value)) + value


def _written(value: int) -> bytes:
    value %= 2**64
    data = bytearray()
    while value > 127:
        data.append(value % 128 + 128)
        value //= 128
    return bytes([*data, value])
