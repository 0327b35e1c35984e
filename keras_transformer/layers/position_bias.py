"""Positions that bias the scores of the attention, learned or fixed."""

import dataclasses
import math
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import check_bool
from keras_transformer.kernels.indexing import look_up
from keras_transformer.layers.arguments import ChecksCall, SavesArguments
from keras_transformer.layers.position import sequence_positions

# Arrays of layers that bias the scores by positions.
OF_PAIRS = {
    "query_positions": ("batch or 1", "query_length"),
    "key_positions": ("batch or 1", "key_length"),
}


@keras.saving.register_keras_serializable(package="keras_transformer")
class RelativePositionBias(ChecksCall, SavesArguments, keras.layers.Layer):
    """A trained bias per head and bucket of distances, added to the attention scores.

    Small distances have a bucket each, larger ones share logarithmically growing buckets.

    Args:
        num_heads: int.
        num_buckets: int, number of buckets (of both directions together).
        max_distance: int, from this distance on all share the last bucket.
        bidirectional: bool, False for causal attention, where keys never lie ahead.
        embeddings_initializer: initializer of the biases.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        query_positions: int `(batch or 1, query_length)`.
        key_positions: int `(batch or 1, key_length)`.

    Returns:
        Float `(batch or 1, num_heads, query_length, key_length)`.

    Raises:
        ValueError: for too few buckets, or a `max_distance` within the small ones.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import RelativePositionBias

    positions = np.arange(5)[None]
    assert RelativePositionBias(num_heads=2)(positions, positions).shape == (1, 2, 5, 5)
    ```

    Source: Raffel et al. 2019, "T5", section 2.1.
    """

    option_rules: ClassVar = {
        "num_buckets": "relative_num_buckets",
        "max_distance": "relative_max_distance",
        "bidirectional": check_bool,
    }
    axes = OF_PAIRS

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        embeddings_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self._exact = num_buckets // (4 if bidirectional else 2)  # distances 0, 1, ... alone
        if self._exact < 1 or max_distance <= self._exact:
            raise ValueError(
                f"num_buckets={num_buckets} and max_distance={max_distance} leave no distances "
                f"to share a bucket. Give at least {4 if bidirectional else 2} buckets, and a "
                f"`max_distance` above {self._exact}."
            )
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, query_positions_shape=None, key_positions_shape=None):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_buckets, self.num_heads),
            initializer=self.embeddings_initializer,
        )

    def call(self, query_positions, key_positions):
        distance = _distances(query_positions, key_positions)
        bias = look_up(self.embeddings, self._bucket(ops.cast(distance, "int32")))
        return ops.transpose(ops.cast(bias, self.compute_dtype), (0, 3, 1, 2))

    def _bucket(self, distance):
        buckets, offset = self.num_buckets, 0
        if self.bidirectional:
            buckets //= 2
            offset = ops.cast(distance > 0, "int32") * buckets
            distance = ops.abs(distance)
        else:
            distance = ops.maximum(-distance, 0)
        exact = self._exact
        # The floor of the logarithm decides the bucket: in float32 on every backend.
        ratio = ops.cast(ops.maximum(distance, 1), "float32") / exact
        scaled = ops.log(ratio) / math.log(self.max_distance / exact) * (buckets - exact)
        far = ops.minimum(exact + ops.cast(scaled, "int32"), buckets - 1)
        return offset + ops.where(distance < exact, distance, far)

    def compute_output_shape(self, query_positions_shape, key_positions_shape):
        return _pairs_shape(query_positions_shape, self.num_heads, key_positions_shape)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ALiBi(ChecksCall, SavesArguments, keras.layers.Layer):
    """A fixed penalty per head, linear in the distance, added to the attention scores.

    Args:
        num_heads: int. The slopes are a geometric sequence from `2^(-8/num_heads)`.
        scale: float, factor of the bias.
        rounded: bool, slopes, positions and their products are numbers of bfloat16 (Falcon-RW).
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        query_positions: int `(batch or 1, query_length)`.
        key_positions: int `(batch or 1, key_length)`.

    Returns:
        Float `(batch or 1, num_heads, query_length, key_length)`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import ALiBi

    positions = np.arange(3)[None]
    bias = ALiBi(num_heads=8)(positions, positions)
    assert np.allclose(bias[0, 0, 2], [-1.0, -0.5, 0.0])  # slope 1/2
    ```

    Source: Press et al. 2021, "Train Short, Test Long", section 3.
    """

    option_rules: ClassVar = {"scale": "alibi_scale", "rounded": "alibi_rounded"}
    axes = OF_PAIRS

    def __init__(self, num_heads: int, scale: float = 1.0, rounded: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.scale = scale
        self.rounded = rounded

    def build(self, query_positions_shape=None, key_positions_shape=None):
        pass  # There are no weights.

    def call(self, query_positions, key_positions):
        slopes = ops.convert_to_tensor(_slopes(self.num_heads), dtype="float32")[:, None, None]
        if self.rounded:

            def of_place(positions):
                places = _in_bfloat16(ops.cast(ops.expand_dims(positions, 1), "float32"))
                return _in_bfloat16(_in_bfloat16(slopes) * places)

            queries, keys = (
                of_place(ops.expand_dims(positions, axis))
                for positions, axis in ((query_positions, 2), (key_positions, 1))
            )
            bias = -ops.abs(keys - queries)
        else:
            distance = _distances(query_positions, key_positions)
            bias = -ops.cast(ops.expand_dims(ops.abs(distance), 1), "float32") * slopes
        return ops.cast(bias * self.scale, self.compute_dtype)

    def compute_output_shape(self, query_positions_shape, key_positions_shape):
        return _pairs_shape(query_positions_shape, self.num_heads, key_positions_shape)


@dataclasses.dataclass(frozen=True)
class PairBias:
    """The bias of the pairs of a sequence, of which no more is computed than is asked for.

    To Keras this is an object, and so beside tensors one argument.

    Fields:
        layer: of positions `(batch or 1, length)` of queries and keys to a bias.
        positions: int `(batch or 1, length)`. None for 0, 1, 2, ...
        of_groups: a layer likewise, of the groups of `global_block_size`.
    """

    layer: keras.layers.Layer
    positions: Any
    of_groups: keras.layers.Layer | None = None

    @property
    def read_variables(self) -> list:
        """The weights that it reads."""
        layers = (self.layer, self.of_groups)
        return [v for layer in layers if layer is not None for v in layer.variables]

    def whole(self, states, queries: int | None = None):
        """Of all pairs of tokens with states `(batch, length, dim)`, or of the first queries."""
        positions = sequence_positions(states) if self.positions is None else self.positions
        return self.layer(positions[:, :queries], positions)


def _in_bfloat16(numbers):
    """Numbers from 0 on, rounded: of casts there and back XLA leaves the rounding out."""
    powers = 2.0 ** np.arange(-30, 32)
    reached = ops.expand_dims(numbers, -1) >= ops.convert_to_tensor(powers, "float32")
    exponents = ops.maximum(ops.sum(ops.cast(reached, "int32"), axis=-1) - 1, 0)
    least = ops.take(ops.convert_to_tensor(powers / 128, "float32"), exponents, axis=0)
    return ops.round(numbers / least) * least


def _distances(query_positions, key_positions):
    """Of every key from every query, of integers of any kinds, which TensorFlow does not mix."""
    return ops.subtract(ops.expand_dims(key_positions, 1), ops.expand_dims(query_positions, 2))


def _pairs_shape(queries, num_heads: int, keys) -> tuple:
    """The shape of a bias of queries `(batch or 1, length)` and keys likewise."""
    batch = keys[0] if queries[0] == 1 else queries[0]
    return (batch, num_heads, queries[1], keys[1])


def _slopes(num_heads: int) -> list[float]:
    """The slopes of ALiBi; between powers of two those of the next power fill the gaps."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    if power < num_heads:
        slopes += _slopes(2 * power)[0::2][: num_heads - power]
    return slopes
