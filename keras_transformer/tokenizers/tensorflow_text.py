"""Token ids to strings as TensorFlow ops: the way back of `tensorflow_graph.py`."""

import json
import re

import tensorflow as tf

from keras_transformer.tokenizers.backend import byte_alphabet
from keras_transformer.tokenizers.sentencepiece import SPACE


class IdsToText(tf.Module):
    """Ragged ids to strings, as `Tokenizer.decode_batch` gives them.

    Of a tokenizer whose tokens are written in bytes, or are pieces of SentencePiece.

    Args:
        tokenizer_json: what a `tokenizer.json` holds, a string.
        continues: bool, whether the ids go on with a text: then the space before it stays.

    Raises:
        ValueError: for a tokenizer of another kind.

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
                "Ids become text in TensorFlow where tokens are written in bytes or are pieces of "
                f"SentencePiece, and the decoder of this tokenizer is {said}; use decode_batch "
                "otherwise."
            )
        self._strips = strips and not continues
        self._pieces = _pieces(description, spaced)

    def __call__(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Maps ids `(batch, None)` to strings `(batch,)`."""
        pieces = ids.with_flat_values(tf.gather(tf.constant(self._pieces), ids.flat_values))
        texts = tf.strings.reduce_join(pieces, axis=-1)
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        return tf.strings.regex_replace(texts, "^ ", "") if self._strips else texts


# How pieces are joined, as `sentencepiece.space_decoder` writes it.
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
    """The bytes of each id; none of special tokens."""
    vocabulary = description["model"]["vocab"]
    if not isinstance(vocabulary, dict):  # That of unigram is a list, with scores.
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
