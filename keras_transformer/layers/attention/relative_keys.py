"""Scores of queries with trained vectors of the distances to the keys."""

import keras
from keras import ops

from keras_transformer.config import RelativeKeys
from keras_transformer.layers.arguments import part_of


class DistanceScores(keras.layers.Layer):
    """Products of queries with the vector of the distance to each key.

    Args:
        part: `config.RelativeKeys`.
        head_dim: int, width of a head.
        embeddings_initializer: initializer of the vectors.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        queries: float `(batch, query_length, heads, head_dim)`, of the first states of a row.
        keys: float `(batch, key_length, heads, head_dim)`, of all states of the row.

    Returns:
        Float `(batch, heads, query_length, key_length)`, what is added to the products of queries
        and keys.

    Source: Shaw et al. 2018, "Self-Attention with Relative Position Representations", section 3.2.
    """

    def __init__(
        self, part: RelativeKeys, head_dim: int, embeddings_initializer="glorot_uniform", **kwargs
    ):
        super().__init__(**kwargs)
        self.part = part_of("part", part, RelativeKeys)
        self.head_dim = head_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, queries_shape=None, keys_shape=None):
        shape = (self.part.number, self.head_dim)
        self.distances = self.add_weight(shape, self.embeddings_initializer, name="distances")
        self.built = True

    def call(self, queries, keys):
        of_all = ops.einsum("bqhd,kd->bhqk", queries, ops.cast(self.distances, queries.dtype))
        places = [ops.arange(ops.shape(x)[1], dtype="int32") for x in (queries, keys)]
        between = ops.expand_dims(places[1], 0) - ops.expand_dims(places[0], 1)
        rows = ops.clip(between, -self.part.before, self.part.behind) + self.part.before
        return ops.take_along_axis(of_all, rows[None, None], axis=3)

    def compute_output_shape(self, queries_shape, keys_shape):
        return (queries_shape[0], queries_shape[2], queries_shape[1], keys_shape[1])
