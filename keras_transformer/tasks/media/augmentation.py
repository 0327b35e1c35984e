"""Random changes of the inputs of a training step, by layers of Keras."""

from collections.abc import Sequence

import keras

from keras_transformer.support.checking import describe


def augmentation_of(layers: Sequence) -> keras.Sequential | None:
    """Return the layers of an augmentation as one model; None if the list is empty.

    Raises ValueError if one of them is not a Keras layer.
    """
    wrong = [x for x in layers if not isinstance(x, keras.layers.Layer)]
    if wrong:
        raise ValueError(
            f"`augmentation` must be a list of Keras layers, received {describe(wrong[0])}."
        )
    return keras.Sequential(layers) if layers else None


def layers_of(augmentation: keras.Sequential | None) -> list[keras.layers.Layer]:
    """Return the layers that `augmentation_of` was given."""
    return [] if augmentation is None else list(augmentation.layers)
