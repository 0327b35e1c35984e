"""Score functions of attention: how well a key matches a query, per head."""

import math
from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.kernels import attention
from keras_transformer.layers.normalization import unit_vectors

# Measured on a CPU: with 4 queries (beams) transposed keys are faster again.
_FEW_QUERIES = 1


class Score(keras.layers.Layer):
    """Base class of scores of projected queries and keys.

    Args:
        num_heads: int, number of query heads.
        head_dim: int, width of a head.
        max_sequence_length: int, for scores that have one weight per slot.

    Call arguments:
        queries: float `(batch, num_heads, query_length, head_dim)`.
        keys: float `(batch, num_key_value_heads, key_length, head_dim)`.

    Returns:
        Float `(batch, num_heads, query_length, key_length)`.
    """

    # Factor of a plain dot product, which the fused kernels compute; another score has None.
    scale: float | None = None
    # Whether a score depends only on the query and the key, not on their places.
    of_contents = True
    # Whether queries and keys pass `prepared` before the layer or a kernel reads them.
    prepares = False

    def __init__(self, num_heads: int, head_dim: int, max_sequence_length=None, **kwargs):
        super().__init__(name="score", **kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.max_sequence_length = max_sequence_length


class Dot(Score):
    """Dot product (Luong et al. 2015, equation 8)."""

    scale = 1.0

    def call(self, queries, keys):
        # Query heads that share a key head become rows of one product.
        shape, groups = ops.shape(queries), ops.shape(keys)[1]
        queries = ops.reshape(queries * self.scale, (shape[0], groups, -1, shape[3]))
        few = isinstance(shape[2], int) and shape[2] <= _FEW_QUERIES
        products = attention.products(queries, keys, few)
        return ops.reshape(products, (*shape[:3], ops.shape(keys)[2]))


class ScaledDot(Dot):
    """Dot product divided by the root of the head width (Vaswani et al. 2017, section 3.2.1)."""

    def __init__(
        self, num_heads: int, head_dim: int, max_sequence_length=None, scale=None, **kwargs
    ):
        super().__init__(num_heads, head_dim, max_sequence_length, **kwargs)
        self.scale = 1 / math.sqrt(head_dim) if scale is None else scale


class General(Score):
    """Trained bilinear form (Luong et al. 2015, equation 8)."""

    def build(self, input_shape):
        shape = (self.num_heads, self.head_dim, self.head_dim)
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer="glorot_uniform")

    def call(self, queries, keys):
        return ops.einsum("bnth,nhk,bnsk->bnts", queries, self.kernel, _ungrouped(queries, keys))


class Additive(Score):
    """One-layer network (Bahdanau et al. 2014, appendix A.1.2)."""

    def build(self, input_shape):
        shape = (self.num_heads, self.head_dim)
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer="glorot_uniform")

    def call(self, queries, keys):
        keys = _ungrouped(queries, keys)
        hidden = ops.tanh(ops.expand_dims(queries, 3) + ops.expand_dims(keys, 2))
        return ops.einsum("bntsh,nh->bnts", hidden, self.kernel)


class Cosine(Score):
    """Cosine times a trained strength (Graves et al. 2014, equations 5 and 6)."""

    def build(self, input_shape):
        self.strength = self.add_weight(
            name="strength", shape=(self.num_heads,), initializer="ones"
        )

    def call(self, queries, keys):
        keys = _ungrouped(queries, keys)
        queries, keys = (unit_vectors(ops.cast(x, "float32")) for x in (queries, keys))
        strength = ops.cast(self.strength, "float32")[:, None, None]
        return strength * ops.einsum("bnth,bnsh->bnts", queries, keys)


class ScaledCosine(Dot):
    """Cosine times a trained strength of at most 100, which is trained as its logarithm.

    It is a dot product of what `prepared` returns, so that the fused kernels compute it.

    Source: Liu et al. 2021, "Swin Transformer V2", section 3.2, https://arxiv.org/abs/2111.09883.
    """

    prepares = True

    def build(self, input_shape):
        self.log_strength = self.add_weight(
            name="log_strength",
            shape=(self.num_heads,),
            initializer=keras.initializers.Constant(math.log(10)),
        )

    def prepared(self, queries, keys):
        """Return queries and keys whose dot products are the scores.

        Args:
            queries: float `(batch, query_length, num_heads, head_dim)`.
            keys: float, with the features of a head on the last axis.
        """
        unit = [unit_vectors(ops.cast(x, "float32")) for x in (queries, keys)]
        log_strength = ops.minimum(ops.cast(self.log_strength, "float32"), math.log(100))
        unit[0] = unit[0] * ops.exp(log_strength)[:, None]
        return ops.cast(unit[0], queries.dtype), ops.cast(unit[1], keys.dtype)


class Location(Score):
    """Score per slot from the query alone (Luong et al. 2015, equation 9)."""

    of_contents = False

    def __init__(self, num_heads: int, head_dim: int, max_sequence_length=None, **kwargs):
        super().__init__(num_heads, head_dim, max_sequence_length, **kwargs)
        if not max_sequence_length:
            raise ValueError(
                "score='location' has one weight for each slot: give `max_sequence_length`, "
                f"received {max_sequence_length}."
            )

    def build(self, input_shape):
        shape = (self.num_heads, self.head_dim, self.max_sequence_length)
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer="glorot_uniform")

    def call(self, queries, keys):
        slots = ops.shape(keys)[2]
        if isinstance(slots, int) and slots > self.max_sequence_length:
            raise ValueError(
                f"score='location' has {self.max_sequence_length} slots, received {slots} keys. "
                "Truncate the input, or raise `max_sequence_length`."
            )
        return ops.einsum("bnth,nhs->bnts", queries, self.kernel[..., :slots])


class Own(Score):
    """Score by a user-defined function or layer, which gets as many key heads as query heads."""

    of_contents = False

    def __init__(self, function: Callable, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.function = function

    def build(self, input_shape):
        if isinstance(self.function, keras.layers.Layer) and not self.function.built:
            states = keras.KerasTensor((1, self.num_heads, 2, self.head_dim), self.compute_dtype)
            self.function(states, states)

    def call(self, queries, keys):
        return self.function(queries, _ungrouped(queries, keys))


def _ungrouped(queries, keys):
    """Repeat the key heads, one for each query head."""
    groups = queries.shape[1] // keys.shape[1]
    return ops.repeat(keys, groups, axis=1) if groups > 1 else keys


_SCORES = {
    "scaled_dot": ScaledDot,
    "dot": Dot,
    "general": General,
    "additive": Additive,
    "cosine": Cosine,
    "scaled_cosine": ScaledCosine,
    "location": Location,
}


def get(
    name: str | Callable,
    num_heads: int,
    head_dim: int,
    max_sequence_length=None,
    scale: float | None = None,
    **kwargs,
) -> Score:
    """Return the score of this name, or a user-defined one. Raises ValueError if it is unknown."""
    if scale is not None:
        if name != "scaled_dot":
            raise ValueError(f"`score_scale` needs score='scaled_dot', received score={name!r}.")
        kwargs["scale"] = scale
    if callable(name):
        return Own(name, num_heads, head_dim, max_sequence_length, **kwargs)
    if name not in _SCORES:
        raise ValueError(f"Unknown score {name!r}. Known are: {', '.join(map(repr, _SCORES))}.")
    return _SCORES[name](num_heads, head_dim, max_sequence_length, **kwargs)
