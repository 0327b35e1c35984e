"""Bytes that each token adds to a text, according to a tokenizer's decoder.

Concatenated, the bytes of a text's tokens are the UTF-8 of the decoded text, except for a space at
its start (and, with `clean_up_tokenization_spaces`, spaces before punctuation).
"""

import re
from typing import Any

from keras_transformer.tokenizers.backend import byte_alphabet, steps_of
from keras_transformer.tokenizers.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
# Decoders that work token by token, except for byte tokens and the ends of a text.
_KNOWN = {"ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece"}
# A token that every decoder leaves unchanged, put around the token in question.
_AROUND = "a"


def token_bytes(tokenizer: Tokenizer) -> list[bytes | None]:
    """Return the bytes that each id adds to a decoded text when it is neither first nor last.

    Special tokens and unused ids are None.
    """
    piece = _Pieces(tokenizer)
    special = set(tokenizer.special_ids)
    tokens: list[bytes | None] = [None] * tokenizer.vocabulary_size
    for token, index in tokenizer.get_vocabulary().items():
        if index not in special:
            tokens[index] = piece(token)
    return tokens


def strips_first_space(tokenizer: Tokenizer) -> bool:
    """Return whether a decoded text lacks the space that its first token adds elsewhere."""
    piece = _Pieces(tokenizer)
    special = set(tokenizer.special_ids)
    for token, index in tokenizer.get_vocabulary().items():
        if index not in special and (piece(token) or b"").startswith(b" "):
            return not tokenizer.decode([index]).startswith(" ")
    return False


def ids_within_words(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of WordPiece tokens that continue a word.

    At the start of a text, they are decoded with their prefix, such as `##`.
    """
    steps = decoder_steps(tokenizer)
    prefixes = tuple(step["prefix"] for step in steps if step["type"] == "WordPiece")
    return [i for token, i in tokenizer.get_vocabulary().items() if token.startswith(prefixes)]


def decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the steps of a tokenizer's decoder, in order."""
    return steps_of(tokenizer._backend.decoder)


class _Pieces:
    """Function from a token to the bytes that it adds when it is neither first nor last."""

    def __init__(self, tokenizer: Tokenizer):
        self._decoder = tokenizer._backend.decoder
        self._refusing = tokenizer._refusing
        kinds = [step["type"] for step in decoder_steps(tokenizer)]
        unknown = set(kinds) - _KNOWN
        before = "ByteLevel" in kinds and set(kinds[: kinds.index("ByteLevel")])
        if unknown or before or {"ByteLevel", "Replace"} <= set(kinds):  # CLIP's ends of words
            raise ValueError(
                f"The text that a single token adds is not known for a tokenizer with the decoder "
                f"{' and '.join(sorted(unknown or kinds))}."
            )
        characters = byte_alphabet() if "ByteLevel" in kinds else ()
        self._byte_level = {character: byte for byte, character in enumerate(characters)}
        self._byte_tokens = "ByteFallback" in kinds
        self._before = self._decode([_AROUND])
        self._after = self._decode([_AROUND, _AROUND])[len(self._before) :]

    def __call__(self, token: str) -> bytes:
        if self._byte_level:
            # A token with any other character is an added one, which stands for its own text.
            if all(character in self._byte_level for character in token):
                return bytes(self._byte_level[character] for character in token)
            return token.encode()
        match = _BYTE_TOKEN.fullmatch(token) if self._byte_tokens else None
        if match:
            return bytes([int(match[1], 16)])
        text = self._decode([_AROUND, token, _AROUND])
        return text[len(self._before) : len(text) - len(self._after)].encode()

    def _decode(self, tokens: list[str]) -> str:
        # Without a decoder the library puts spaces between the tokens.
        if self._decoder is None:
            return " ".join(tokens)
        with self._refusing("decode"):
            return self._decoder.decode(tokens)
