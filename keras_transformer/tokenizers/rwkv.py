"""Tokenizer of RWKV ("World"): the longest token of the vocabulary at each place, in bytes.

Source: Peng et al. 2024, https://arxiv.org/abs/2404.05892, "RWKV World Tokenizer".
"""

import ast
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from keras_transformer.support.files import write_text
from keras_transformer.tokenizers.backend import (
    InvalidTokenizer,
    byte_alphabet,
    check_ids,
    refusing,
    try_out,
)
from keras_transformer.tokenizers.folder import (
    CHAT_FILE,
    CONFIG_FILE,
    PUBLISHED_KEYS,
    RWKV_FILE,
    TOKEN_FLAGS,
    Folder,
    read_text,
)
from keras_transformer.tokenizers.published import start_and_end
from keras_transformer.tokenizers.tokenizer import Tokenizer

# Token 0, which no line of the published vocabulary has: it stands between documents.
END_OF_TEXT = "<|rwkv_tokenizer_end_of_text|>"
_TOKENS = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT)
# Maximum bytes of a token, and characters of a file: twice as many as in the published one.
_MOST_BYTES, _MOST_CHARACTERS = 256, 2 * 2**20
# What `repr` writes of a string or of bytes, up to four characters for each byte.
_ESCAPES = r"\\(?:[\\'\"nrt]|x[0-9a-f]{2}%s)"
_STRING = _ESCAPES % r"|u[0-9a-f]{4}|U000[0-9a-f]{5}|U0010[0-9a-f]{4}"
_LITERAL = re.compile(
    "|".join(
        rf"{prefix}{quote}(?:[^\\{quote}]|{escape})*{quote}"
        for prefix, escape in (("", _STRING), ("b", _ESCAPES % ""))
        for quote in "'\""
    )
)
_LINE = re.compile(rf"(\d{{1,9}}) (.{{2,{4 * _MOST_BYTES + 3}}}) (\d{{1,9}})", re.DOTALL)
# GPT-2's character for each byte, and one that stands for it at the start of a token.
_SPELLING = byte_alphabet()
_BYTES = {character: byte for byte, character in enumerate(_SPELLING)}
_FIRST = 0xF0000
_MARKS = {character: chr(_FIRST + byte) for character, byte in _BYTES.items()}
_UNMARKED = {mark: character for character, mark in _MARKS.items()}
_MARK = Regex(f"[{chr(_FIRST)}-{chr(_FIRST + 255)}]")


class LongestMatch:
    """Pre-tokenizer that takes the longest token at each place, in time linear in the text.

    Args:
        tokens: the vocabulary, each byte as a character of `byte_alphabet`. It has all bytes.
    """

    def __init__(self, tokens: Iterable[str]):
        self._root: dict[str, Any] = {}  # a trie; "" in a node says that a token ends there
        for token in tokens:
            node = self._root
            for character in token:
                node = node.setdefault(character, {})
            node[""] = None

    def pre_tokenize(self, text: tokenizers.PreTokenizedString) -> None:
        """Split a text, as the library asks for it."""
        text.split(self._split)

    def _split(self, _: int, text: tokenizers.NormalizedString) -> list:
        # Slices take time in the length of the text that they are cut from. The library splits it
        # in one pass if the characters say where, and knows afterwards where they come from.
        characters = list(text.normalized)
        for start in self._starts(text.normalized):
            characters[start] = _MARKS[characters[start]]
        marked = iter(characters)
        text.map(lambda _: next(marked))
        pieces = text.split(_MARK, "merged_with_next")
        for piece in pieces:
            piece.map(lambda character: _UNMARKED.get(character, character))
        return pieces

    def _starts(self, text: str) -> list[int]:
        starts, place = [], 0
        while place < len(text):
            starts.append(place)
            node = self._root
            for end in range(place, len(text)):
                node = node.get(text[end])
                if node is None:
                    break
                if "" in node:
                    place = end + 1
        return starts


def read_vocabulary(text: str) -> dict[str, int]:
    """Return the tokens of a file with their ids, each byte as a character of `byte_alphabet`.

    Args:
        text: lines of an id, a token as Python writes a string or bytes, and its number of bytes.

    Raises:
        InvalidTokenizer: if a line says something else, if the file or a token is too long, if a
            token or an id occurs twice, or if a byte has no token, since texts with that byte could
            not be encoded.
    """
    if len(text) > _MOST_CHARACTERS:
        raise InvalidTokenizer(
            f"it has {len(text):,} characters, more than {_MOST_CHARACTERS:,}, twice as many as "
            "the published vocabulary"
        )
    found: dict[str, int] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        parts = _LINE.fullmatch(line)
        if parts is None or _LITERAL.fullmatch(parts[2]) is None:
            raise InvalidTokenizer(
                f"line {number} is not an id, a token of up to {_MOST_BYTES} bytes as Python "
                f"writes it, and its number of bytes: {line[:60]!r}"
            )
        token = _literal(parts[2], number)
        if len(token) != int(parts[3]) or not 0 < len(token) <= _MOST_BYTES:
            raise InvalidTokenizer(
                f"line {number} has a token of {len(token)} bytes and says {parts[3]}; a token has "
                f"1 to {_MOST_BYTES}"
            )
        spelled = "".join(_SPELLING[byte] for byte in token)
        if spelled in found:
            raise InvalidTokenizer(f"line {number} has {token!r} a second time")
        found[spelled] = int(parts[1])
    if len({*found.values()}) < len(found):
        raise InvalidTokenizer("two tokens have the same id")
    missing = [byte for byte, character in enumerate(_SPELLING) if character not in found]
    if missing:
        raise InvalidTokenizer(f"it has no token for {len(missing)} bytes, such as {missing[0]}")
    return found


def _literal(written: str, number: int) -> bytes:
    """Return the bytes of a string or of bytes, as Python writes them."""
    try:
        token = ast.literal_eval(written)
        return token.encode() if isinstance(token, str) else token
    except (ValueError, SyntaxError) as error:
        raise InvalidTokenizer(f"line {number} has {written!r}: {error}") from None


def make_backend(vocabulary: dict[str, int], further: dict[str, int]) -> tokenizers.Tokenizer:
    """Return the backend of a vocabulary, with the ids of further tokens, which are added later."""
    for token, index in further.items():
        if vocabulary.get(token, index) != index:
            raise InvalidTokenizer(f"{token!r} has the ids {vocabulary[token]} and {index}")
    backend = tokenizers.Tokenizer(models.WordLevel({**vocabulary, **further}))
    backend.normalizer = normalizers.ByteLevel()
    backend.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(LongestMatch(vocabulary))
    backend.decoder = decoders.ByteLevel()
    return backend


class RWKVTokenizer(Tokenizer, format="rwkv"):
    """Tokenizer of an RWKV model, which `Tokenizer.from_files` returns for its files."""

    _crosses_words = True

    @classmethod
    def from_files(cls, directory: str | os.PathLike) -> "RWKVTokenizer":
        """Load a folder with `rwkv_vocab_v20230424.txt`, or a `vocab.txt` of the same lines."""
        folder = Folder(directory)
        path = folder.path / (RWKV_FILE if folder.has(RWKV_FILE) else "vocab.txt")
        text = read_text(path)
        folder.of_class(path, _TOKENS)
        with refusing(f"{folder.where} is not a usable vocabulary of RWKV"):
            vocabulary = read_vocabulary(text)
            # An ordinary token may have a role: two line breaks end an answer.
            spelled = {name: spell(token) for name, token in folder.tokens.items() if token}
            ordinary = {name: token for name, token in spelled.items() if token in vocabulary}
            folder.tokens |= dict.fromkeys(ordinary)
            further = {token.content: i for i, token in folder.listed_tokens().items()}
            named = {token for token in folder.tokens.values() if token} - further.keys()
            if len(named) == 1 and 0 not in {*vocabulary.values(), *further.values()}:
                further[named.pop()] = 0
            backend = make_backend(vocabulary, further)
            folder.add_tokens(backend)
            folder.tokens |= ordinary
            start_and_end(backend, folder)
            check_ids(backend)
            try_out(backend)
            roles = folder.roles(backend)
        return cls(backend, chat_template=folder.chat_template(), **roles)

    def lines(self) -> list[str]:
        """Return the lines of the vocabulary file, in the order of the ids."""
        added = {token.content for token in self._backend.get_added_tokens_decoder().values()}
        vocabulary = sorted(self._backend.get_vocab(False).items(), key=lambda item: item[1])
        tokens = [(index, _bytes(token)) for token, index in vocabulary if token not in added]
        return [f"{index} {_written(token)} {len(token)}\n" for index, token in tokens]

    def save(self, directory: str | os.PathLike) -> None:
        """Write RWKV's own file, and `tokenizer_config.json` with the special tokens."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        added = self._backend.get_added_tokens_decoder()
        names = {token.content for token in added.values()}
        config: dict[str, Any] = {
            "tokenizer_class": "RwkvTokenizer",
            "added_tokens_decoder": {
                str(index): {option: getattr(token, option) for option in ("content", *TOKEN_FLAGS)}
                for index, token in sorted(added.items())
            },
        }
        for role, keys in PUBLISHED_KEYS.items():
            token = self._roles[role]
            text = token if token is None or token in names else _bytes(token).decode()
            config |= dict.fromkeys(keys, text)
        ids, (letter,) = self.encode("a"), self.encode("a", special_tokens=False)
        config |= {"add_bos_token": ids[0] != letter, "add_eos_token": ids[-1] != letter}
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        write_text(directory / RWKV_FILE, "".join(self.lines()))
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        write_text(directory / CONFIG_FILE, text)
        Path(directory, CHAT_FILE).unlink(missing_ok=True)

    def to_tensorflow(self, sequence_length: int | None = None):
        """Raise ValueError: the tokenizer is not available in TensorFlow."""
        raise ValueError("to_tensorflow() does not support RWKV's tokenizers.")


def spell(token: str) -> str:
    """Return a text with each of its bytes as a character of `byte_alphabet`."""
    return "".join(_SPELLING[byte] for byte in token.encode())


def _bytes(token: str) -> bytes:
    return bytes(_BYTES[character] for character in token)


def _written(token: bytes) -> str:
    try:
        return repr(token.decode())
    except UnicodeDecodeError:
        return repr(token)
