"""The normalizations of a block, by the name that a config has for them."""

import functools

import keras
from keras import ops

from keras_transformer.config_checks import check_head_norm


@keras.saving.register_keras_serializable(package="keras_transformer")
class RMSNormalizationPlusOne(keras.layers.RMSNormalization):
    """Root-mean-square normalization, times one more than its weight (Gemma)."""

    def build(self, input_shape):
        shape = (input_shape[self.axis],)
        self.scale = self.add_weight(name="scale", shape=shape, initializer="zeros")

    def call(self, x):
        # In float32: near to 1 half precision has few numbers.
        scale = 1 + ops.cast(self.scale, "float32")
        return ops.rms_normalization(x, scale=scale, axis=self.axis, epsilon=self.epsilon)


@keras.saving.register_keras_serializable(package="keras_transformer")
class HeadNormalization(keras.layers.LayerNormalization):
    """LayerNorm of each head's states `(..., heads, head_dim)`, by a weight of its own, no bias."""

    def build(self, input_shape):
        self.gamma = self.add_weight(name="gamma", shape=input_shape[-2:], initializer="ones")

    def call(self, x):
        normalized = ops.layer_normalization(ops.cast(x, "float32"), epsilon=self.epsilon)
        return ops.cast(normalized * ops.cast(self.gamma, "float32"), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class BatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization of each feature, over all places of all rows (PatchTST).

    Its moving averages keep nine tenths of what they were in a step of training, as those of
    PyTorch do. Keras's default keeps 99 hundredths. Where its weights are frozen, one by one too,
    it normalizes by the averages, and they stay.
    """

    def __init__(self, momentum: float = 0.9, **kwargs):
        super().__init__(momentum=momentum, **kwargs)

    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=bool(training) and self.gamma.trainable, mask=mask)


_KINDS = {
    "layer_norm": keras.layers.LayerNormalization,
    "layer_norm_no_bias": functools.partial(keras.layers.LayerNormalization, center=False),
    "rms_norm": keras.layers.RMSNormalization,
    "rms_norm_plus_one": RMSNormalizationPlusOne,
    "batch_norm": BatchNormalization,
}


def make_normalization(kind: str, epsilon: float, **kwargs) -> keras.layers.Layer:
    """The layer for a name in `config.NORMALIZATIONS`. ValueError for another kind."""
    if kind not in _KINDS:
        known = ", ".join(map(repr, _KINDS))
        raise ValueError(f"Unknown normalization {kind!r}. Known are: {known}.")
    layer = _KINDS[kind](epsilon=epsilon, **kwargs)
    layer.supports_masking = True  # Keras's RMSNormalization would drop a mask, with a warning.
    return layer


def normalized(norm: keras.layers.Layer, x, training: bool):
    """What a normalization makes of states, told whether it trains where that matters.

    A block that is computed again, in the backward pass, is within no call that says it.
    """
    return norm(x, training=training) if isinstance(norm, BatchNormalization) else norm(x)


def make_head_normalization(kind: str, epsilon: float, **kwargs) -> keras.layers.Layer:
    """The layer with a weight for each head. ValueError for another kind than a LayerNorm."""
    check_head_norm(kind)
    return HeadNormalization(epsilon=epsilon, center=False, **kwargs)
