"""Tokenizer as a Keras layer over TensorFlow ops."""

import json

import keras
import tokenizers


@keras.saving.register_keras_serializable("keras_transformer")
class TensorFlowTokenizer(keras.layers.Layer):
    """Layer that maps strings to token ids with TensorFlow ops.

    `Tokenizer.to_tensorflow()` makes it. It works eagerly, in `tf.function`, in `tf.data` and in an
    exported SavedModel, on every Keras backend. The ids are the same as those of
    `Tokenizer.encode_batch`, with the template's special tokens. With a backend other than
    TensorFlow, a SavedModel must track `layer.graph`, a `tf.Module` that maps strings to ragged
    ids, to include the vocabulary.

    Supported are WordPiece with BERT's normalizer, byte-level BPE and byte-level unigram: all that
    `Tokenizer.train` makes, and published tokenizers such as BERT's, GPT-2's and RoBERTa's.
    KerasHub's BERT and SentencePiece tokenizers, such as T5's and Llama's, are supported with the
    ids that KerasHub's layer gives in a graph. These differ from `encode_batch` for a few odd texts
    with two equally good segmentations, such as one letter repeated a hundred times. The ids may
    also differ for the few hundred characters that were added to Unicode so recently that only one
    of the libraries knows their class.

    Args:
        tokenizer_json: the content of a `tokenizer.json`, a string.
        pad_id: int, the padding id. Required with `sequence_length`.
        sequence_length: int, the length that every row is cut or padded to, keeping the special
            tokens. `None` returns a `tf.RaggedTensor`.
        split_special_tokens: whether a special token that is written out in a text, such as
            `[MASK]`, is treated as ordinary text.

    Call arguments:
        texts: a string tensor `(batch,)`, or a list of strings.

    Returns:
        int32 ids: ragged `(batch, None)`, or dense `(batch, sequence_length)`.

    Raises:
        ImportError: if TensorFlow or tensorflow-text is not installed.
        ValueError: if a part of the tokenizer is not supported, or if `sequence_length` is given
            without `pad_id` or leaves no room for a token beside the special tokens.

    Example:
    ```python
    from keras_transformer.tokenizers import Tokenizer

    tokenizer = Tokenizer.train(["a man rides a bike ."] * 2, vocabulary_size=300)
    layer = tokenizer.to_tensorflow(sequence_length=8)
    ids = tokenizer.encode("a man")
    assert layer(["a man"]).numpy().tolist() == [ids + [tokenizer.pad_id] * (8 - len(ids))]
    ```
    """

    def __init__(
        self,
        tokenizer_json: str,
        pad_id: int | None = None,
        sequence_length: int | None = None,
        split_special_tokens: bool = False,
        **kwargs,
    ):
        kwargs.setdefault("dtype", "int32")
        super().__init__(**kwargs)
        try:
            from keras_transformer.tokenizers.tensorflow_graph import TextToIds
        except ImportError as error:
            raise ImportError(
                f"Tokenizing in TensorFlow needs tensorflow and tensorflow-text ({error}). "
                'Install them with: pip install "keras_transformer[tensorflow]"'
            ) from error
        # Strings cannot be arrays of the backend, so Keras must not convert the input.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.supports_jit = False

        backend = tokenizers.Tokenizer.from_str(tokenizer_json)
        prefix, suffix = _around(backend.encode("a"))
        pair = backend.encode("a", "a")
        if sequence_length is not None:
            added = len(prefix) + len(suffix)
            if pad_id is None:
                raise ValueError(
                    "`sequence_length` needs a padding token, and this tokenizer has none. "
                    "Leave `sequence_length` out to get ragged rows."
                )
            if not isinstance(sequence_length, int) or sequence_length <= added:
                raise ValueError(
                    f"`sequence_length` must be an integer greater than {added}, the number of "
                    f"special tokens. Received: sequence_length={sequence_length!r}"
                )
        self.tokenizer_json = tokenizer_json
        self.pad_id = pad_id
        self.sequence_length = sequence_length
        self.split_special_tokens = split_special_tokens
        template = [prefix, suffix], _around(pair)
        description = json.loads(tokenizer_json)
        if split_special_tokens:
            description["added_tokens"] = []
        self.graph = TextToIds(description, template, _segments(pair))
        self.built = True

    def call(self, texts):
        if self.sequence_length is None:
            return self.graph(texts)
        ids = self.graph(texts, max_length=self.sequence_length)
        return ids.to_tensor(self.pad_id, shape=(None, self.sequence_length))

    def compute_output_spec(self, texts):
        shape = (texts.shape[0], self.sequence_length)
        return keras.KerasTensor(shape, dtype="int32", ragged=self.sequence_length is None)

    def get_config(self):
        config = super().get_config()
        config.update(
            tokenizer_json=self.tokenizer_json,
            pad_id=self.pad_id,
            sequence_length=self.sequence_length,
            split_special_tokens=self.split_special_tokens,
        )
        return config


def _around(encoding: tokenizers.Encoding) -> list[list[int]]:
    """Return the ids that the template adds before a text or pair, between two texts, and after."""
    return [ids for number, ids in _parts(encoding, encoding.ids) if number is None]


def _segments(encoding: tokenizers.Encoding) -> list[list[int]]:
    """Return the segment ids of a pair's parts: before, first text, between, second text, after."""
    return [segments for _, segments in _parts(encoding, encoding.type_ids)]


def _parts(encoding: tokenizers.Encoding, values: list[int]) -> list[tuple[int | None, list[int]]]:
    """Split the values of an encoding into parts, each with the number of its text.

    One text has the numbers None, 0, None, and a pair None, 0, None, 1, None.
    """
    numbers = encoding.sequence_ids
    texts = [number for number in (0, 1) if number in numbers]
    if not texts:
        raise ValueError("This tokenizer has no token for the text 'a'.")
    parts, end = [], 0
    for text in texts:
        begin = numbers.index(text)
        parts += [(None, values[end:begin])]
        end = len(numbers) - numbers[::-1].index(text)
        parts += [(text, values[begin:end])]
    return [*parts, (None, values[end:])]
