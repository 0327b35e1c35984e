"""Reader of SentencePiece files (`.model`, `.spm`) that does not need the `sentencepiece` library.

The few fields needed are parsed from the protobuf by hand: with limits, and without a dependency.
Their values are checked, since the Rust library trusts its input.

Source: the numbers of fields are from `sentencepiece_model.proto`; the table of normalization rules
is a trie of Darts-clone.
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

from keras_transformer.support.files import read_file

# Types of pieces.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_KINDS = {1: "unigram", 2: "bpe"}
# Maximum bytes of a file, ten times the largest published one, and maximum characters of a piece,
# which is one word or a few.
_MAX_FILE = 50_000_000
_MAX_PIECE = 512
# Maximum characters that may replace one. Unicode's compatibility rules need up to 18.
_MAX_REPLACEMENT = 36
_MAX_REPLACEMENTS = 2**20  # characters in total; published files have a twentieth
# Bits of a trie unit that must equal a byte for a step along it.
_LABEL = 0x800000FF


@dataclasses.dataclass(frozen=True)
class SentencePieceModel:
    """Content of a SentencePiece file."""

    kind: str  # "unigram" or "bpe"
    pieces: list[str]  # in the order of their ids
    scores: list[float]  # log probabilities (unigram) or minus the ranks (BPE)
    types: list[int]  # such as `NORMAL` and `CONTROL`
    byte_fallback: bool  # whether unknown characters are spelled in bytes
    special_ids: dict[str, int]  # ids of "unk", "bos" and "eos", -1 if not used
    charsmap: bytes  # compiled Unicode normalization rules, perhaps empty
    add_dummy_prefix: bool  # whether a space is put before a text
    remove_extra_whitespaces: bool  # whether spaces are trimmed, and runs become one
    data: bytes = dataclasses.field(repr=False)  # the file itself

    @property
    def scored(self) -> list[tuple[str, float]]:
        """Pieces with their scores."""
        return list(zip(self.pieces, self.scores, strict=True))

    @property
    def vocabulary(self) -> dict[str, int]:
        """Ids of all pieces."""
        return {piece: index for index, piece in enumerate(self.pieces)}

    def merges(self) -> list[tuple[str, str]]:
        """Return BPE's merges, which the file leaves implicit: every split into two pieces."""
        known = set(self.pieces)
        return [
            (piece[:place], piece[place:])
            for piece in self.pieces
            for place in range(1, len(piece))
            if piece[:place] in known and piece[place:] in known
        ]

    def added_tokens(self) -> list[AddedToken]:
        """Return control symbols, which are special, and user defined symbols, which are not."""
        return [
            AddedToken(piece, normalized=False, special=type == CONTROL)
            for piece, type in zip(self.pieces, self.types, strict=True)
            if type in (CONTROL, USER_DEFINED)
        ]


def parse_sentencepiece(path: str | os.PathLike) -> SentencePieceModel:
    """Read and check a SentencePiece file."""
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
    """SentencePiece's compiled normalization rules: strings and their replacements."""

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
                f"the compiled rules replace a character by {self.longest:,} characters, more "
                f"than {_MAX_REPLACEMENT}"
            )
        # No search step may leave the trie, and no rule may point outside of the replacements.
        targets = np.arange(len(units)) ^ _offset(units)
        inner = units >> 31 == 0
        leaves = targets[inner & (units >> 8 & 1 == 1)]
        if (targets[inner] | 0xFF).max(initial=0) >= len(units):
            raise ValueError("the compiled rules lead out of their table")
        starts = units[leaves] & 0x7FFFFFFF
        ends = np.frombuffer(self._replacements + b"\0", np.uint8)
        if (starts >= len(ends)).any() or (ends[starts] >> 6 == 0b10).any():
            raise ValueError("the compiled rules have invalid replacements")
        self._units = units.tolist()
        # Most text is copied without a search: ASCII characters that no rule starts with, not
        # followed by a combining mark.
        plain = bytes(byte for byte in range(128) if not self._has_ascii_rule(byte))
        self._plain = re.compile(b"[%s]+(?![\x80-\xff])" % re.escape(plain) if plain else b"(?!)")

    def normalize(self, text: str) -> str:
        """Return the text with the rules applied."""
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
        """Return whether a rule starts with this byte, alone or followed by ASCII."""
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
    # A file may name a start or end token that is not among its pieces.
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
        raise ValueError("it is neither a unigram nor a BPE model")
    if len(set(model.pieces)) != len(model.pieces):
        raise ValueError("a piece occurs twice")
    longest = max(map(len, model.pieces))
    if longest > _MAX_PIECE or not all(model.pieces):
        raise ValueError(f"a piece is empty or longer than {_MAX_PIECE} characters ({longest})")
    if not all(map(math.isfinite, model.scores)):
        raise ValueError("a score is not a finite number")
    if not 0 <= model.special_ids["unk"] < len(model.pieces):
        raise ValueError(
            f"its unknown piece has the id {model.special_ids['unk']}, but it has only "
            f"{len(model.pieces)} pieces"
        )
    if model.byte_fallback:
        missing = {f"<0x{byte:02X}>" for byte in range(256)} - set(model.pieces)
        if missing:
            raise ValueError(f"it spells in bytes, but lacks the piece {min(missing)}")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message: number, and value (bytes unless it is a varint)."""
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
                raise ValueError(f"the data is truncated or invalid at byte {place} of {len(data)}")
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
    raise ValueError(f"the data is truncated or invalid at byte {place} of {len(data)}")


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
    """Return an encoded protobuf field: bytes, an integer or a 32-bit float."""
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
