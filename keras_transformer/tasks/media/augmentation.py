"""Random changes of the inputs of a training step, by layers of Keras."""

import logging
from collections.abc import Sequence

import keras

from keras_transformer.kernels.programs import let_compile
from keras_transformer.support.checking import describe
from keras_transformer.support.warned import warn_once

logger = logging.getLogger(__name__)


def augmentation_of(layers: Sequence) -> keras.Sequential | None:
    """Return the layers of an augmentation as one model; None if the list is empty.

    Warns once of layers with which training steps are not compiled on JAX. Raises ValueError if one
    of them is not a Keras layer.
    """
    wrong = [x for x in layers if not isinstance(x, keras.layers.Layer)]
    if wrong:
        raise ValueError(
            f"`augmentation` must be a list of Keras layers, received {describe(wrong[0])}."
        )
    if not layers:
        return None
    augmentation = keras.Sequential(layers)
    slow = let_compile(augmentation)
    if slow:
        warn_once(
            logger,
            "Training steps with %s are not compiled on JAX, and may take a hundred times as long: "
            "choose other layers for the augmentation, such as RandomTranslation and RandomZoom.",
            " and ".join(slow),
        )
    return augmentation


def layers_of(augmentation: keras.Sequential | None) -> list[keras.layers.Layer]:
    """Return the layers that `augmentation_of` was given."""
    return [] if augmentation is None else list(augmentation.layers)
