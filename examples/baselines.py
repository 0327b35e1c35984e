"""Predecessors of the transformer, in Keras layers: models that classify, translate and continue.

All take ids, 0 for padding, and return logits. `examples/comparison.py` trains them side by side.
"""

from collections.abc import Callable

import keras_transformer  # noqa: F401, before Keras: it takes a backend that is installed

import keras
import numpy as np
from keras import layers, ops

_KERNEL_SIZES = (3, 4, 5)
# Hash buckets for pairs of words, which have no ids of their own.
_BUCKETS, _FACTOR = 20_000, 31_337


def bag_of_words(vocabulary: int, classes: int) -> keras.Model:
    """Build a bag of words: a weight for each word and class, regardless of the order of words."""
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    weights = layers.Embedding(vocabulary, classes, embeddings_initializer="zeros")(ids)
    logits = layers.Lambda(_summed, name="sum")([weights, ids])
    return keras.Model(ids, layers.Dense(classes, name="logits")(logits))


def fast_text(vocabulary: int, classes: int, width: int = 32) -> keras.Model:
    """Build fastText: the mean vector of words and of pairs of neighbours (Joulin et al. 2016)."""
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    pairs = layers.Lambda(_pairs, name="pairs")(ids)
    words = layers.Lambda(_mean, name="words")([layers.Embedding(vocabulary, width)(ids), ids])
    of_pairs = layers.Embedding(_BUCKETS, width)(pairs)
    of_pairs = layers.Lambda(_mean, name="neighbours")([of_pairs, pairs])
    states = layers.Dropout(0.5)(layers.Concatenate()([words, of_pairs]))
    return keras.Model(ids, layers.Dense(classes, name="logits")(states))


def text_cnn(vocabulary: int, classes: int, width: int = 128, filters: int = 100) -> keras.Model:
    """Build a TextCNN: convolutions over 3, 4 and 5 words with max pooling (Kim 2014)."""
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = layers.Embedding(vocabulary, width)(ids)
    x = layers.Lambda(_without_padding, name="real")([x, ids])
    found = [
        layers.GlobalMaxPooling1D()(
            layers.Conv1D(filters, size, padding="same", activation="relu")(x)
        )
        for size in _KERNEL_SIZES
    ]
    states = layers.Dropout(0.5)(layers.Concatenate()(found))
    return keras.Model(ids, layers.Dense(classes, name="logits")(states))


def lstm(
    vocabulary: int, classes: int, width: int = 128, units: int = 96, attention: bool = False
) -> keras.Model:
    """Build a bidirectional LSTM that classifies its last states, or a mean of all by attention.

    Source: Hochreiter and Schmidhuber 1997; attention from Yang et al. 2016, section 2.2.
    """
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = layers.Dropout(0.3)(layers.Embedding(vocabulary, width, mask_zero=True)(ids))
    states = layers.Bidirectional(layers.LSTM(units, return_sequences=attention))(x)
    if attention:
        scores = layers.Dense(1, use_bias=False)(layers.Dense(units, activation="tanh")(states))
        states = _AttentionOverStates(name="attention")([states, scores, ids])
    states = layers.Dropout(0.3)(states)
    return keras.Model(ids, layers.Dense(classes, name="logits")(states))


class _AttentionOverStates(layers.Layer):
    """Mean of the states of real tokens, weighted by the softmax of their scores."""

    supports_masking = True

    def call(self, given):
        states, scores, ids = given
        scores = ops.where(ops.not_equal(ids, 0)[..., None], scores, -1e9)
        return ops.sum(ops.softmax(scores, axis=1) * states, axis=1)

    def compute_mask(self, inputs, mask=None):
        return None


class LSTMTranslator(keras.Model):
    """A bidirectional LSTM reads, and another LSTM writes, with or without attention.

    Args:
        vocabulary: int, number of tokens, shared by both languages.
        width: int, width of word vectors and states.
        score: None without attention; `"additive"` (Bahdanau et al. 2014) or `"general"` (Luong et
            al. 2015, section 3.1), here divided by the square root of the width. As in Luong's
            model, the state of a step is its own query.
        dropout: float, dropout rate of the word vectors and of the inputs of the logits.

    Source: Sutskever et al. 2014, "Sequence to Sequence Learning with Neural Networks".
    """

    def __init__(
        self, vocabulary: int, width: int = 128, score: str | None = None, dropout: float = 0.3
    ):
        super().__init__()
        self.embedding = layers.Embedding(vocabulary, width)
        self.dropout = layers.Dropout(dropout)
        half = layers.LSTM(width // 2, return_sequences=True, return_state=True)
        self.encoder = layers.Bidirectional(half)
        self.decoder = layers.LSTM(width, return_sequences=True, return_state=True)
        self.score = score
        self.query = layers.Dense(width, use_bias=False) if score else None
        self.key = layers.Dense(width, use_bias=False) if score == "additive" else None
        self.of_score = layers.Dense(1, use_bias=False) if score == "additive" else None
        self.joined = layers.Dense(width, activation="tanh") if score else None
        self.logits = layers.Dense(vocabulary)

    def build(self, input_shape=None):
        ids = keras.Input((None,), dtype="int32")
        self.call({"encoder_token_ids": ids, "decoder_token_ids": ids})
        self.built = True

    def call(self, inputs, training=False):
        read = self.read(inputs["encoder_token_ids"], training)
        return self.write(inputs["decoder_token_ids"], read, training)[0]

    def read(self, source, training: bool = False) -> tuple:
        """Return the states of the source, its mask, and the initial state of the decoder."""
        real = ops.not_equal(source, 0)
        x = self.dropout(self.embedding(source), training=training)
        states, *last = self.encoder(x, mask=real, training=training)
        return states, real, [ops.concatenate(last[i::2], axis=-1) for i in (0, 1)]

    def write(self, target, read: tuple, training: bool = False) -> tuple:
        """Return the logits after each token of the target, and the state for the next one."""
        states, real, begin = read
        x = self.dropout(self.embedding(target), training=training)
        x, *last = self.decoder(x, initial_state=begin, training=training)
        if self.score is not None:
            seen = ops.where(real[:, None], self._scores(x, states), -1e9)
            attended = ops.matmul(ops.softmax(seen, axis=-1), states)
            x = self.joined(ops.concatenate([x, attended], axis=-1))
        return self.logits(self.dropout(x, training=training)), (states, real, last)

    def translate(self, source: np.ndarray, begin: int, end: int, most: int = 50) -> list[list]:
        """Return the likeliest token at each step, up to the end token or `most` tokens.

        Args:
            source: int array `(sentences, length)`, 0 for padding.
            begin: int, the token that a translation begins with.
            end: int, the token that it ends with.
            most: int, maximum number of tokens.
        """
        read = self.read(ops.convert_to_tensor(source))
        written = np.full((len(source), 1), begin, "int32")
        found, done = [], np.zeros(len(source), bool)
        while not done.all() and len(found) < most:
            logits, read = self.write(ops.convert_to_tensor(written), read)
            written = ops.convert_to_numpy(ops.argmax(logits, axis=-1)).astype("int32")
            done |= written[:, 0] == end
            found.append(np.where(done, end, written[:, 0]))
        return [[int(x) for x in row if x != end] for row in np.stack(found, axis=1)]

    def _scores(self, x, states):
        """Return the scores of each step of the target and each word of the source."""
        if (
            self.score == "general"
        ):  # without the root, softmax saturates for a sum of this many products
            return ops.matmul(self.query(x), ops.swapaxes(states, 1, 2)) / states.shape[-1] ** 0.5
        hidden = ops.tanh(self.query(x)[:, :, None] + self.key(states)[:, None])
        return self.of_score(hidden)[..., 0]


def recurrent(cell: Callable, vocabulary: int, width: int) -> keras.Model:
    """Build a recurrent network that predicts the next token at each place."""
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = cell(width, return_sequences=True)(layers.Embedding(vocabulary, width)(ids))
    return keras.Model(ids, layers.Dense(vocabulary, name="logits")(x))


def _real(ids, dtype):
    return ops.cast(ops.not_equal(ids, 0), dtype)[..., None]


def _without_padding(given):
    x, ids = given
    return x * _real(ids, x.dtype)


def _summed(given):
    return ops.sum(_without_padding(given), axis=1)


def _mean(given):
    x, ids = given
    return _summed(given) / ops.maximum(ops.sum(_real(ids, x.dtype), axis=1), 1)


def _pairs(ids):
    """Return a hashed id for each pair of neighbours; 0 if one of them is padding."""
    before, after = ids, ops.pad(ids[:, 1:], [[0, 0], [0, 1]])
    hashed = 1 + ops.mod(before * _FACTOR + after, _BUCKETS - 1)
    return ops.where(ops.logical_and(before > 0, after > 0), hashed, 0)
