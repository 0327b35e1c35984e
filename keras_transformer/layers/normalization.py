"""The normalizations of a block: Keras's own layers, by the name that a config has for them."""

import keras

_KINDS = {
    "layer_norm": keras.layers.LayerNormalization,
    "rms_norm": keras.layers.RMSNormalization,
}


def make_normalization(kind: str, epsilon: float, **kwargs) -> keras.layers.Layer:
    """The Keras layer for `"layer_norm"` or `"rms_norm"`. ValueError for another kind."""
    if kind not in _KINDS:
        known = ", ".join(map(repr, _KINDS))
        raise ValueError(f"Unknown normalization {kind!r}. Known are: {known}.")
    layer = _KINDS[kind](epsilon=epsilon, **kwargs)
    layer.supports_masking = True  # Keras's RMSNormalization would drop a mask, with a warning.
    return layer
