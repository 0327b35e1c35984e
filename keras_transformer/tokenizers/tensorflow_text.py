"""Token ids to strings as TensorFlow ops: the way back of `tensorflow_graph.py`."""

import json

import tensorflow as tf

from keras_transformer.tokenizers.backend import byte_alphabet


class IdsToText(tf.Module):
    """Ragged ids to strings, as `Tokenizer.decode_batch` of a byte-level tokenizer gives them.

    Args:
        tokenizer_json: what a `tokenizer.json` holds, a string.
        continues: bool, whether the ids go on with a text: then the space before it stays.

    Raises:
        ValueError: for a tokenizer whose tokens are not written in bytes.

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
        strips = kinds[1:] == [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
        if not kinds or kinds[0]["type"] != "ByteLevel" or (kinds[1:] and not strips):
            said = ", ".join(part["type"] for part in kinds) or "none"
            raise ValueError(
                f"Ids become text in TensorFlow where tokens are written in bytes, and the decoder "
                f"of this tokenizer is {said}; use decode_batch otherwise."
            )
        self._strips = strips and not continues
        self._pieces = _pieces(description)

    def __call__(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Maps ids `(batch, None)` to strings `(batch,)`."""
        pieces = ids.with_flat_values(tf.gather(tf.constant(self._pieces), ids.flat_values))
        texts = tf.strings.reduce_join(pieces, axis=-1)
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        return tf.strings.regex_replace(texts, "^ ", "") if self._strips else texts


def _parts(decoder: dict | None) -> list[dict]:
    if decoder is None:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _pieces(description: dict) -> list[bytes]:
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
            of_bytes = all(char in value for char in token)
            pieces[i] = bytes(value[c] for c in token) if of_bytes else token.encode()
    return pieces
