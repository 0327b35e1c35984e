"""Scores of contents with sinusoids of distances, as in Transformer-XL and XLNet."""

import math
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.config import RelativeSinusoids, Side
from keras_transformer.layers.arguments import SavesArguments
from keras_transformer.layers.attention.disentangled import RelativeStates
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.remat import no_inner_remat

_LONGEST_WAVE = 10_000.0


class SegmentedStates(NamedTuple):
    """`RelativeStates` of texts with segments.

    Fields:
        states: float `(1, distances, dim)`.
        buckets: int `(batch or 1, query_length, key_length)`.
        same_segment: bool `(batch, query_length, key_length)`, whether two tokens share a segment.
    """

    states: Any
    buckets: Any
    same_segment: Any

    def of_first_query(self) -> "SegmentedStates":
        """Return the states of the first query only."""
        return self._replace(buckets=self.buckets[:, :1], same_segment=self.same_segment[:, :1])


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidStates(SavesArguments, keras.layers.Layer):
    """Sinusoids of all distances in a row, and the distance of each pair of tokens.

    Distances are those of positions below the length of the row: greater ones count as the greatest
    of them.

    Args:
        dim: int, width of the sinusoids, an even number: sines in the first half, then cosines.
        max_distance: int, greater distances count as this one. Without it there is no limit.
        interleaved: bool, whether the sine and the cosine of a wave are neighbours instead.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        query_positions: int `(batch or 1, query_length)`.
        key_positions: int `(batch or 1, key_length)`.
        segment_ids: int `(batch, key_length)`, the segments of the tokens, or None.

    Returns:
        `RelativeStates`, or with segments `SegmentedStates`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers.attention.relative_sinusoids import SinusoidStates

    positions = np.arange(5)[None]
    assert SinusoidStates(8)(positions, positions).states.shape == (1, 9, 8)
    ```

    Source: Dai et al. 2019, "Transformer-XL", section 3.3, https://arxiv.org/abs/1901.02860.
    """

    def __init__(
        self, dim: int, max_distance: int | None = None, interleaved: bool = False, **kwargs
    ):
        super().__init__(**kwargs)
        self.dim, self.max_distance, self.interleaved = dim, max_distance, interleaved

    @classmethod
    def from_part(cls, part: RelativeSinusoids, side: Side, causal: bool, **kwargs):
        """Make the layer for a part of a config; `kwargs` are the other arguments of the layer."""
        kwargs.pop("embeddings_initializer", None)  # there is no table
        options = {"max_distance": part.max_distance, "interleaved": part.interleaved}
        return cls(side.hidden_dim, **options, name="relative_embedding", **kwargs)

    def call(self, query_positions, key_positions, segment_ids=None):
        length = ops.shape(key_positions)[1]
        distances = ops.cast(ops.arange(1 - length, length), "float32")
        if self.max_distance is not None:
            distances = ops.clip(distances, -self.max_distance, self.max_distance)
        waves = ops.arange(0, self.dim, 2, dtype="float32") * (-math.log(_LONGEST_WAVE) / self.dim)
        angles = distances[:, None] * ops.exp(waves)
        both = [ops.sin(angles), ops.cos(angles)]
        if self.interleaved:
            states = ops.reshape(ops.stack(both, axis=-1), (-1, self.dim))
        else:
            states = ops.concatenate(both, axis=-1)
        pairs = ops.expand_dims(query_positions, 2) - ops.expand_dims(key_positions, 1)
        places = ops.clip(ops.cast(pairs, "int32") + length - 1, 0, 2 * length - 2)
        states = ops.cast(states[None], self.compute_dtype)
        if segment_ids is None:
            return RelativeStates(states, places)
        same = ops.equal(segment_ids[:, :, None], segment_ids[:, None, :])
        return SegmentedStates(states, places, same)

    def compute_output_spec(self, query_positions, key_positions, segment_ids=None):
        (rows, queries), (others, keys) = query_positions.shape, key_positions.shape
        number = None if keys is None else 2 * keys - 1
        states = keras.KerasTensor((1, number, self.dim), self.compute_dtype)
        shape = (others if rows == 1 else rows, queries, keys)
        places = keras.KerasTensor(shape, "int32")
        if segment_ids is None:
            return RelativeStates(states, places)
        same = keras.KerasTensor((segment_ids.shape[0], queries, keys), "bool")
        return SegmentedStates(states, places, same)


@keras.saving.register_keras_serializable(package="keras_transformer")
class RelativeScores(SavesArguments, keras.layers.Layer):
    """Scores of queries with distances and segments, and of a bias with the keys.

    For a query `q` and a key `k` at a distance whose projected sinusoid is `r` the scores are
    `u.k + (q + v).r + (q + w).s`, with vectors `u`, `v`, `w` of each head, and a vector `s` for a
    key of the same segment and another one for a key of another.

    Args:
        dim: int, width of the sinusoids.
        num_heads, head_dim: int, number of heads and their width.
        compares_segments: bool, whether there are `w` and `s`.
        kernel_initializer: initializer of the projection.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        queries, keys: float `(batch, length, num_heads, head_dim)`.
        relative: `RelativeStates` or `SegmentedStates`.

    Returns:
        Float `(batch, num_heads, query_length, key_length)`, what is added to `q.k`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers.attention.relative_sinusoids import RelativeScores, SinusoidStates

    positions, heads = np.arange(5)[None], np.ones((1, 5, 2, 4), "float32")
    relative = SinusoidStates(8)(positions, positions)
    assert RelativeScores(8, 2, 4)(heads, keys=heads, relative=relative).shape == (1, 2, 5, 5)
    ```

    Source: Dai et al. 2019, "Transformer-XL", section 3.3; segments: Yang et al. 2019, "XLNet",
    section 2.5, https://arxiv.org/abs/1906.08237.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        head_dim: int,
        compares_segments: bool = True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.dim, self.num_heads, self.head_dim = dim, num_heads, head_dim
        self.compares_segments = compares_segments
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        with no_inner_remat():
            self.key_dense = Dense(
                num_heads * head_dim,
                use_bias=False,
                kernel_initializer=self.kernel_initializer.clone(),
                name="position_key",
                dtype=self.dtype_policy,
            )

    def build(self, queries_shape, keys_shape=None, relative_shape=None):
        self.key_dense.build((None, None, self.dim))
        shape = (self.num_heads, self.head_dim)
        for name in ("content_bias", "position_bias", *["segment_bias"] * self.compares_segments):
            setattr(self, name, self.add_weight(shape, "zeros", name=name))
        if self.compares_segments:
            initializer = self.kernel_initializer.clone()
            self.segments = self.add_weight((2, *shape), initializer, name="segments")
        self.built = True

    def call(self, queries, keys=None, relative=None):
        shape = (-1, self.num_heads, self.head_dim)
        positions = ops.reshape(self.key_dense(relative.states)[0], shape)
        of_all = ops.einsum("btnh,pnh->bntp", queries + self.position_bias, positions)
        scores = ops.take_along_axis(of_all, relative.buckets[:, None], axis=3)
        scores = scores + ops.einsum("nh,bsnh->bns", self.content_bias, keys)[:, :, None]
        if isinstance(relative, SegmentedStates):
            of_both = ops.einsum("btnh,cnh->cbnt", queries + self.segment_bias, self.segments)
            same, other = of_both[0][..., None], of_both[1][..., None]
            scores = scores + ops.where(relative.same_segment[:, None], same, other)
        return scores

    def compute_output_spec(self, queries, keys=None, relative=None):
        batch, length, heads, _ = queries.shape
        return keras.KerasTensor((batch, heads, length, keys.shape[1]), self.compute_dtype)
