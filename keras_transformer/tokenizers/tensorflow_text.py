"""Conversion of token ids to strings as TensorFlow ops, the inverse of `tensorflow_graph.py`."""

import json
import re

import tensorflow as tf

from keras_transformer.tokenizers.backend import byte_alphabet
from keras_transformer.tokenizers.sentencepiece import SPACE


class IdsToText(tf.Module):
    """Map from ragged ids to strings, as in `Tokenizer.decode_batch`.

    Supported are tokenizers with tokens spelled in bytes, and with SentencePiece's pieces.

    Args:
        tokenizer_json: the content of a `tokenizer.json`, a string.
        continues: bool, whether the ids continue a text, so that a space at their start stays.

    Raises:
        ValueError: if the tokenizer is of another kind.

    Example:
    ```python
    import tensorflow as tf
    from keras_transformer.tokenizers import Tokenizer
    from keras_transformer.tokenizers.tensorflow_text import IdsToText

    tokenizer = Tokenizer.train(["a man rides a bike ."] * 2, vocabulary_size=300)
    ids = tf.ragged.constant(tokenizer.encode_batch(["a man", "a bike"]))
    to_text = IdsToText(tokenizer.to_tensorflow().tokenizer_json)
    assert to_text(ids).numpy().tolist() == [b"a man", b"a bike"]
    ```
    """

    def __init__(self, tokenizer_json: str, continues: bool = False):
        super().__init__()
        description = json.loads(tokenizer_json)
        kinds = _parts(description["decoder"])
        spaced = kinds[: len(_SPACED)] == _SPACED
        rest = kinds[len(_SPACED) :] if spaced else kinds[1:]
        strips = rest == [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
        in_bytes = bool(kinds) and kinds[0]["type"] == "ByteLevel"
        if not (spaced or in_bytes) or (rest and not strips):
            said = ", ".join(part["type"] for part in kinds) or "none"
            raise ValueError(
                "TensorFlow can decode ids of tokens that are spelled in bytes or are pieces of "
                f"SentencePiece, but the decoder of this tokenizer is {said}. Use decode_batch."
            )
        self._strips = strips and not continues
        self._pieces = _pieces(description, spaced)

    def __call__(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Map ids `(batch, None)` to strings `(batch,)`."""
        pieces = ids.with_flat_values(tf.gather(tf.constant(self._pieces), ids.flat_values))
        texts = tf.strings.reduce_join(pieces, axis=-1)
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        return tf.strings.regex_replace(texts, "^ ", "") if self._strips else texts


# How pieces are joined, as in `sentencepiece.space_decoder`.
_SPACED = [
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]


def _parts(decoder: dict | None) -> list[dict]:
    if decoder is None:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _pieces(description: dict, spaced: bool) -> list[bytes]:
    """Return the bytes of each id; empty for special tokens."""
    vocabulary = description["model"]["vocab"]
    if not isinstance(vocabulary, dict):  # a unigram vocabulary is a list, with scores
        vocabulary = {token: i for i, (token, _) in enumerate(vocabulary)}
    added = description["added_tokens"]
    vocabulary = vocabulary | {token["content"]: token["id"] for token in added}
    special = {token["id"] for token in added if token["special"]}
    value = {char: i for i, char in enumerate(byte_alphabet())}
    pieces = [b""] * (max(vocabulary.values()) + 1)
    for token, i in vocabulary.items():
        if i not in special:
            of_bytes = not spaced and all(char in value for char in token)
            pieces[i] = bytes(value[c] for c in token) if of_bytes else token.encode()
            if spaced:
                byte = re.fullmatch("<0x([0-9A-F]{2})>", token)
                spelled = bytes.fromhex(byte[1]) if byte else None
                pieces[i] = spelled or token.replace(SPACE, " ").encode()
    return pieces
