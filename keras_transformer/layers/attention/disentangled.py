"""Disentangled attention: queries and keys also score relative positions (DeBERTa)."""

import math
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from keras_transformer.config import Disentangled, Side
from keras_transformer.layers.arguments import ChecksCall, SavesArguments
from keras_transformer.layers.attention.score_bias import OF_PAIRS
from keras_transformer.layers.normalization import make_normalization


class RelativeStates(NamedTuple):
    """States of relative positions, and the state that each pair of tokens uses.

    Fields:
        states: float `(1, num_buckets, dim)`.
        buckets: int `(batch or 1, query_length, key_length)`.

    Example: see `RelativeEmbedding`.

    Source: He et al. 2020, "DeBERTa", section 3.1.
    """

    states: Any
    buckets: Any

    def of_first_query(self) -> "RelativeStates":
        """Return the relative states of the first query only."""
        return self._replace(buckets=self.buckets[:, :1])


@keras.saving.register_keras_serializable(package="keras_transformer")
class RelativeEmbedding(ChecksCall, SavesArguments, keras.layers.Layer):
    """Trained state for each bucket of distances, for `disentangled` attention.

    The score of a query `q` and a key `k` that are in bucket `p` is `(q.k + q.K(p) + Q(p).k) /
    sqrt(3 head_dim)`; `Q` and `K` project the state of the bucket. Each distance up to a quarter of
    `num_buckets`, in each direction, has its own bucket; larger ones share logarithmically growing
    buckets. The scores of all pairs are computed: memory grows with the square of the length.

    Args:
        dim: int, width of a state, equal to the width of the attention's inputs.
        num_buckets: int, number of buckets of both directions together.
        max_distance: int, distance at which the buckets end. With half of `num_buckets` each
            distance has its own bucket.
        normalization: a name in `config.NORMALIZATIONS`, the norm of the states.
        normalization_epsilon: float, epsilon of the norm.
        embeddings_initializer: initializer of the states.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        query_positions: int `(batch or 1, query_length)`.
        key_positions: int `(batch or 1, key_length)`.

    Returns:
        `RelativeStates`.

    Raises:
        ValueError: if there are fewer than 4 buckets, or `max_distance` is below half of them.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import EncoderBlock, RelativeEmbedding

    x, positions = np.random.rand(2, 7, 32), np.arange(7)[None]
    relative = RelativeEmbedding(32, num_buckets=16, max_distance=32)(positions, positions)
    assert relative.states.shape == (1, 16, 32) and relative.buckets.shape == (1, 7, 7)
    block = EncoderBlock(num_heads=4, intermediate_dim=64, disentangled="shared")
    assert block(x, relative=relative).shape == (2, 7, 32)
    ```

    Source: He et al. 2020, "DeBERTa", section 3.1; buckets: its published models.
    """

    option_rules: ClassVar = {
        "dim": "hidden_dim",
        "num_buckets": "relative_num_buckets",
        "max_distance": "relative_max_distance",
    }
    axes = OF_PAIRS

    def __init__(
        self,
        dim: int,
        num_buckets: int = 512,
        max_distance: int = 512,
        normalization: str = "layer_norm",
        normalization_epsilon: float = 1e-7,
        embeddings_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not 2 <= num_buckets // 2 <= max_distance:
            raise ValueError(
                "`num_buckets` must be at least 4 and `max_distance` at least half of it, received "
                f"{num_buckets} and {max_distance}."
            )
        self.dim = dim
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.norm = make_normalization(
            normalization, normalization_epsilon, name="norm", dtype=self.dtype_policy
        )
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    @classmethod
    def from_part(
        cls, part: Disentangled, side: Side, causal: bool, **kwargs
    ) -> "RelativeEmbedding":
        """Make the layer for a part of a config; `kwargs` are the other arguments of the layer."""
        norm = side.block.norm
        return cls(
            side.hidden_dim,
            part.num_buckets,
            part.max_distance,
            norm.type,
            norm.epsilon,
            name="relative_embedding",
            **kwargs,
        )

    def build(self, query_positions_shape=None, key_positions_shape=None):
        shape = (self.num_buckets, self.dim)
        self.embeddings = self.add_weight(
            name="embeddings", shape=shape, initializer=self.embeddings_initializer
        )
        self.norm.build((None, *shape))

    def call(self, query_positions, key_positions):
        distances = ops.subtract(
            ops.expand_dims(query_positions, 2), ops.expand_dims(key_positions, 1)
        )
        states = self.norm(ops.convert_to_tensor(self.embeddings)[None])
        return RelativeStates(states, self._buckets(ops.cast(distances, "int32")))

    def _buckets(self, distances):
        half = self.num_buckets // 2
        buckets = distances
        if half < self.max_distance:
            exact = half // 2
            far = ops.abs(distances)
            ratio = ops.cast(ops.maximum(far, 1), "float32") / exact
            scaled = ops.log(ratio) / math.log((self.max_distance - 1) / exact) * (exact - 1)
            # The value is whole at the last distance: rounding must not move it up a bucket.
            shared = ops.cast(ops.ceil(scaled - 2e-5), "int32") + exact
            buckets = ops.where(far <= exact, distances, ops.sign(distances) * shared)
        return ops.clip(buckets + half, 0, 2 * half - 1)

    def compute_output_shape(self, query_positions_shape, key_positions_shape):
        (rows, queries), (others, keys) = query_positions_shape, key_positions_shape
        shape = (others if rows == 1 else rows, queries, keys)
        return RelativeStates((1, self.num_buckets, self.dim), shape)

    def compute_output_spec(self, query_positions, key_positions):
        states, buckets = self.compute_output_shape(query_positions.shape, key_positions.shape)
        states = keras.KerasTensor(states, self.compute_dtype)
        return RelativeStates(states, keras.KerasTensor(buckets, "int32"))


def position_projections(attention) -> tuple:
    """Return the layers that project relative positions to queries and keys."""
    if attention.attention.score_bias.projections == "shared":
        return attention.query_dense, attention.key_dense
    pairs = ((attention.query_dense, "position_query"), (attention.key_dense, "position_key"))
    return tuple(
        attention._projection(d.units, name, attention.attention.bias) for d, name in pairs
    )


def with_relative_scores(attention, queries, keys, relative, cache, bias):
    """Return the bias of the scores plus the scores of contents with relative positions."""
    wanted = attention.position_projections is not None
    if not wanted or relative is None or cache is not None:
        kind = getattr(attention.attention.score_bias, "projections", None)
        raise ValueError(
            "Attention with `disentangled`, and only this attention, needs `relative`, the output "
            "of a `RelativeEmbedding`, and takes no `cache`: received "
            f"disentangled={kind!r} {'with' if relative is not None else 'without'} `relative`."
        )
    heads = (attention.num_heads, attention.num_key_value_heads)
    position_queries, position_keys = (
        attention._split(dense(relative.states), count)[0]
        for dense, count in zip(attention.position_projections, heads, strict=True)
    )
    groups = heads[0] // heads[1]
    if groups > 1:
        position_keys = ops.repeat(position_keys, groups, axis=1)
        keys = ops.repeat(keys, groups, axis=2)
    buckets = relative.buckets[:, None]
    by_query = ops.einsum("btnh,pnh->bntp", queries, position_keys)
    by_key = ops.einsum("pnh,bsnh->bnps", position_queries, keys)
    scores = ops.take_along_axis(by_query, buckets, axis=3)
    scores = scores + ops.take_along_axis(by_key, buckets, axis=2)
    scores = scores * attention.score_function.scale
    return scores if bias is None else scores + bias
