"""Norms of a block, by their names in a config."""

import functools

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class RMSNormalizationPlusOne(keras.layers.RMSNormalization):
    """Root-mean-square norm that multiplies by its weight plus one (Gemma)."""

    def build(self, input_shape):
        shape = (input_shape[self.axis],)
        self.scale = self.add_weight(name="scale", shape=shape, initializer="zeros")

    def call(self, x):
        # In float32: half precision has few numbers near 1.
        scale = 1 + ops.cast(self.scale, "float32")
        return ops.rms_normalization(x, scale=scale, axis=self.axis, epsilon=self.epsilon)


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalizationPlusOne(keras.layers.LayerNormalization):
    """LayerNorm that multiplies by its weight plus one, and adds a bias (Nemotron)."""

    def __init__(self, gamma_initializer="zeros", **kwargs):
        super().__init__(gamma_initializer=gamma_initializer, **kwargs)

    def call(self, x):
        # In float32: half precision has few numbers near 1.
        scale = 1 + ops.cast(self.gamma, "float32")
        outputs = ops.layer_normalization(x, scale, self.beta, self.axis, self.epsilon)
        return ops.cast(outputs, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class RMSNormalizationNoWeight(keras.layers.RMSNormalization):
    """Root-mean-square norm without a weight (nanochat)."""

    def build(self, input_shape):
        self.scale = None


@keras.saving.register_keras_serializable(package="keras_transformer")
class HeadNormalization(keras.layers.LayerNormalization):
    """LayerNorm of each head's states `(..., heads, head_dim)`, with own weights and no bias."""

    def build(self, input_shape):
        self.gamma = self.add_weight(name="gamma", shape=input_shape[-2:], initializer="ones")

    def call(self, x):
        normalized = ops.layer_normalization(ops.cast(x, "float32"), epsilon=self.epsilon)
        return ops.cast(normalized * ops.cast(self.gamma, "float32"), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class BatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization of each feature, over all places of all rows (PatchTST).

    Its moving averages keep 0.9 of their value in a training step, as in PyTorch; Keras's default
    keeps 0.99. If its weights are frozen, even one by one, it normalizes by the averages and leaves
    them unchanged.
    """

    def __init__(self, momentum: float = 0.9, **kwargs):
        super().__init__(momentum=momentum, **kwargs)

    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=bool(training) and self.gamma.trainable, mask=mask)


@keras.saving.register_keras_serializable(package="keras_transformer")
class CumulativeGroupNormalization(keras.layers.Layer):
    """Normalize each frame of a map by the mean and the variance of all frames up to it.

    The mean is over the features and the bands of a frame and of those before it; the variance
    counts how far each frame was from the mean at its own time. Each feature has a weight.

    Args:
        epsilon: float, added to the variance.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        x: float `(batch, frames, bands, features)`.

    Returns:
        Float of the same shape. No frame depends on those behind it.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers.normalization import CumulativeGroupNormalization
    from keras import ops

    x = np.random.rand(1, 5, 4, 2).astype("float32")
    layer = CumulativeGroupNormalization()
    whole, part = (ops.convert_to_numpy(layer(each)) for each in (x, x[:, :3]))
    assert np.allclose(whole[:, :3], part, atol=1e-5)
    ```

    Source: Google DeepMind 2025, the published code of Gemma 3n.
    """

    def __init__(self, epsilon: float = 1e-3, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape):
        self.gamma = self.add_weight(input_shape[-1:], "ones", name="gamma")

    def call(self, x):
        dtype, x = x.dtype, ops.cast(x, "float32")
        numbers = ops.cumsum(ops.ones_like(x[:, :, :1, :1]), axis=1) * (x.shape[2] * x.shape[3])

        def mean(values):
            return ops.cumsum(ops.sum(values, axis=(2, 3), keepdims=True), axis=1) / numbers

        x = x - mean(x)
        x = x * ops.rsqrt(mean(ops.square(x)) + self.epsilon)
        return ops.cast(x * ops.cast(self.gamma, "float32"), dtype)

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}


_KINDS = {
    "layer_norm": keras.layers.LayerNormalization,
    "layer_norm_no_bias": functools.partial(keras.layers.LayerNormalization, center=False),
    "layer_norm_plus_one": LayerNormalizationPlusOne,
    "rms_norm": keras.layers.RMSNormalization,
    "rms_norm_plus_one": RMSNormalizationPlusOne,
    "rms_norm_no_weight": RMSNormalizationNoWeight,
    "batch_norm": BatchNormalization,
}


def make_normalization(kind: str, epsilon: float, **kwargs) -> keras.layers.Layer:
    """Make the norm of a name in `config.NORMALIZATIONS`. Raises ValueError if it is unknown."""
    if kind not in _KINDS:
        known = ", ".join(map(repr, _KINDS))
        raise ValueError(f"Unknown normalization {kind!r}. Known are: {known}.")
    layer = _KINDS[kind](epsilon=epsilon, **kwargs)
    layer.supports_masking = True  # Keras's RMSNormalization would drop a mask, with a warning.
    return layer


def normalized(norm: keras.layers.Layer, x, training: bool, mask=None):
    """Apply a norm to states, passing `training` if the norm depends on it.

    A layer that is recomputed in the backward pass is not within a call that sets `training`.
    States whose mask, bool `(batch, length)`, is False do not count in the averages over a batch.
    """
    if isinstance(norm, BatchNormalization):
        return norm(x, training=training, mask=mask)
    return norm(x)


def make_head_normalization(kind: str, epsilon: float, **kwargs) -> keras.layers.Layer:
    """Make a norm with a weight for each head. Raises ValueError if it is not a LayerNorm."""
    if kind not in ("layer_norm", "layer_norm_no_bias"):
        raise ValueError(
            "`query_key_norm_per_head` needs `query_key_norm` and a LayerNorm, 'layer_norm' or "
            f"'layer_norm_no_bias', received {kind!r}."
        )
    return HeadNormalization(epsilon=epsilon, center=False, **kwargs)


def unit_vectors(vectors):
    """Return vectors divided by their lengths, over the last axis, like `keras.ops.normalize`.

    A zero vector stays zero and has no gradient; with Keras it is NaN on JAX and PyTorch.
    """
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    there = squares > 0
    lengths = ops.rsqrt(ops.where(there, squares, ops.ones_like(squares)))
    lengths = ops.minimum(lengths, 1.0 / keras.config.epsilon())
    return ops.where(there, vectors * lengths, ops.zeros_like(vectors))
