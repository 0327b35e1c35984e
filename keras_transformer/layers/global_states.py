"""Trained states before those of the input."""

import keras
from keras import ops

from keras_transformer.layers.arguments import SavesArguments


@keras.saving.register_keras_serializable(package="keras_transformer")
class GlobalStates(SavesArguments, keras.layers.Layer):
    """Put trained states, the same in each row, before other states.

    Args:
        count: int, their number.
        embeddings_initializer: initializer of the states.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        states: float `(batch, length, dim)`.

    Returns:
        Float `(batch, count + length, dim)`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers.global_states import GlobalStates

    assert GlobalStates(3)(np.ones((2, 5, 8))).shape == (2, 8, 8)
    ```

    Source: Phang et al. 2022, "Investigating Efficiently Extending Transformers for Long Input
    Summarization", section 3.2.
    """

    def __init__(self, count: int, embeddings_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.count = count
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, states_shape):
        shape = (self.count, states_shape[-1])
        self.embeddings = self.add_weight(shape, self.embeddings_initializer, name="embeddings")
        self.built = True

    def call(self, states):
        own = ops.cast(self.embeddings, states.dtype)[None]
        own = ops.broadcast_to(own, (ops.shape(states)[0], *own.shape[1:]))
        return ops.concatenate([own, states], axis=1)

    def compute_output_shape(self, states_shape):
        batch, length, dim = states_shape
        return (batch, length and self.count + length, dim)
