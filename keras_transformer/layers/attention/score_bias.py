"""Biases of the attention scores by position, learned or fixed."""

import dataclasses
import math
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.config import ALiBi as ALiBiPart
from keras_transformer.config import RelativeBias, Side
from keras_transformer.config.mixers import GATE_VALUES
from keras_transformer.kernels.indexing import look_up
from keras_transformer.layers.arguments import ChecksCall, SavesArguments
from keras_transformer.layers.position import sequence_positions
from keras_transformer.support.checking import check_bool

# Axes of the call arguments of layers that bias the scores by positions.
OF_PAIRS = {
    "query_positions": ("batch or 1", "query_length"),
    "key_positions": ("batch or 1", "key_length"),
}


@keras.saving.register_keras_serializable(package="keras_transformer")
class RelativePositionBias(ChecksCall, SavesArguments, keras.layers.Layer):
    """Trained bias per head and bucket of distances, added to the attention scores.

    Each small distance has its own bucket; larger ones share logarithmically growing buckets.

    Args:
        num_heads: int, number of heads.
        num_buckets: int, number of buckets (of both directions together).
        max_distance: int, distance from which on all distances share the last bucket.
        bidirectional: bool, False for causal attention, where keys are never ahead of the query.
        embeddings_initializer: initializer of the biases.
        num_layers: int, number of attention layers, each with its own table. None makes one table
            that all layers share.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        query_positions: int `(batch or 1, query_length)`.
        key_positions: int `(batch or 1, key_length)`.
        layer: int, the number of the attention layer, with `num_layers`.

    Returns:
        Float `(batch or 1, num_heads, query_length, key_length)`.

    Raises:
        ValueError: if there are too few buckets, or `max_distance` is small enough to have its own
            bucket.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import RelativePositionBias

    positions = np.arange(5)[None]
    assert RelativePositionBias(num_heads=2)(positions, positions).shape == (1, 2, 5, 5)
    ```

    Source: Raffel et al. 2019, "T5", section 2.1; a table for each layer: Chung et al. 2023,
    "UniMax".
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
        num_layers: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.num_layers = num_layers
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self._exact = num_buckets // (4 if bidirectional else 2)  # distances with their own bucket
        if self._exact < 1 or max_distance <= self._exact:
            raise ValueError(
                f"num_buckets={num_buckets} and max_distance={max_distance} leave no distances "
                f"to share a bucket. Give at least {4 if bidirectional else 2} buckets, and a "
                f"`max_distance` above {self._exact}."
            )
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    @classmethod
    def from_part(
        cls, part: RelativeBias, side: Side, causal: bool, name: str = "relative_bias", **kwargs
    ) -> "RelativePositionBias":
        """Make the layer for a part of a config; `kwargs` are the other arguments of the layer."""
        kwargs.pop("embeddings_initializer", None)
        sizes = (side.num_heads, part.num_buckets, part.max_distance)
        layers = side.num_layers if part.tables == "own" else None
        return cls(*sizes, bidirectional=not causal, num_layers=layers, name=name, **kwargs)

    def build(self, query_positions_shape=None, key_positions_shape=None):
        layers = () if self.num_layers is None else (self.num_layers,)
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(*layers, self.num_buckets, self.num_heads),
            initializer=self.embeddings_initializer,
        )

    def call(self, query_positions, key_positions, layer: int = 0):
        distance = _distances(query_positions, key_positions)
        table = self.embeddings if self.num_layers is None else self.embeddings[layer]
        bias = look_up(table, self._bucket(ops.cast(distance, "int32")))
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
        # The floor of the logarithm decides the bucket, so it is float32 on every backend.
        ratio = ops.cast(ops.maximum(distance, 1), "float32") / exact
        scaled = ops.log(ratio) / math.log(self.max_distance / exact) * (buckets - exact)
        far = ops.minimum(exact + ops.cast(scaled, "int32"), buckets - 1)
        return offset + ops.where(distance < exact, distance, far)

    def compute_output_shape(self, query_positions_shape, key_positions_shape):
        return _pairs_shape(query_positions_shape, self.num_heads, key_positions_shape)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ALiBi(ChecksCall, SavesArguments, keras.layers.Layer):
    """Fixed penalty per head, linear in the distance, added to the attention scores.

    Args:
        num_heads: int. The slopes are a geometric sequence starting at `2^(-8/num_heads)`.
        scale: float, factor of the bias.
        rounded: bool, round slopes, positions and their products to bfloat16 (Falcon-RW).
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

    @classmethod
    def from_part(cls, part: ALiBiPart, side: Side, causal: bool, **kwargs) -> "ALiBi":
        """Make the layer for a part of a config; `kwargs` are the other arguments of the layer."""
        kwargs.pop("embeddings_initializer", None)
        return cls(side.num_heads, part.scale, part.rounded, **kwargs)

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


def gated_bias(attention, states, bias):
    """Return the bias of the scores times the gate of each head and query.

    Args:
        attention: the `MultiHeadAttention`, with the layer `bias_gate` and `bias_gate_scale`.
        states: float `(batch, length, dim)`, what the queries are projected from.
        bias: float `(batch or 1, num_heads, length, keys)`.

    Source: Chen et al. 2021, "WavLM", section 3.1.
    """
    shape = ops.shape(states)
    of_heads = ops.reshape(states, (shape[0], shape[1], attention.num_heads, -1))
    gates = ops.cast(attention.bias_gate(of_heads), "float32")
    gates = ops.reshape(gates, (shape[0], shape[1], attention.num_heads, 2, GATE_VALUES // 2))
    gates = ops.transpose(ops.sigmoid(ops.sum(gates, axis=-1)), (3, 0, 2, 1))[..., None]
    scale = ops.cast(attention.bias_gate_scale, "float32")[:, None, None]
    gates = gates[0] * (gates[1] * scale - 1.0) + 2.0
    return bias * ops.cast(gates, bias.dtype)


@dataclasses.dataclass(frozen=True)
class LazyBias:
    """Bias of the pairs of tokens of a sequence, computed only for the pairs that are needed.

    To Keras this is one opaque object, so a layer can take it as an argument next to tensors.

    Fields:
        layer: layer that maps the positions `(batch or 1, length)` of queries and keys to a bias.
        positions: int `(batch or 1, length)`. None means 0, 1, 2, ...
        of_groups: a similar layer, for the groups of `global_block_size`.
        number: int, the number of the attention layer, for a `layer` with a table for each.
    """

    layer: keras.layers.Layer
    positions: Any
    of_groups: keras.layers.Layer | None = None
    number: int | None = None

    def of(self, query_positions, key_positions):
        """Return the bias of pairs of positions, int `(batch or 1, length)` each."""
        options = {} if self.number is None else {"layer": self.number}
        return self.layer(query_positions, key_positions, **options)

    @property
    def read_variables(self) -> list:
        """Return the weights that the layers read."""
        layers = (self.layer, self.of_groups)
        return [v for layer in layers if layer is not None for v in layer.variables]

    def materialize(self, states, queries: int | None = None):
        """Return the bias of all pairs, or of the first `queries`, for `(batch, length, dim)`."""
        positions = sequence_positions(states) if self.positions is None else self.positions
        return self.of(positions[:, :queries], positions)


def _in_bfloat16(numbers):
    """Round non-negative numbers to bfloat16. XLA would remove a cast to bfloat16 and back."""
    powers = 2.0 ** np.arange(-30, 32)
    reached = ops.expand_dims(numbers, -1) >= ops.convert_to_tensor(powers, "float32")
    exponents = ops.maximum(ops.sum(ops.cast(reached, "int32"), axis=-1) - 1, 0)
    least = ops.take(ops.convert_to_tensor(powers / 128, "float32"), exponents, axis=0)
    return ops.round(numbers / least) * least


def _distances(query_positions, key_positions):
    """Subtract query from key positions of any integer dtypes, which TensorFlow cannot mix."""
    return ops.subtract(ops.expand_dims(key_positions, 1), ops.expand_dims(query_positions, 2))


def _pairs_shape(queries, num_heads: int, keys) -> tuple:
    """Return the shape of a bias of queries and keys of shape `(batch or 1, length)`."""
    batch = keys[0] if queries[0] == 1 else queries[0]
    return (batch, num_heads, queries[1], keys[1])


def _slopes(num_heads: int) -> list[float]:
    """Return ALiBi's slopes; other numbers than powers of two take some of the next power's."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    if power < num_heads:
        slopes += _slopes(2 * power)[0::2][: num_heads - power]
    return slopes
