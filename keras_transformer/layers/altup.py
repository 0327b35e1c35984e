"""Copies of the states before, in and behind the blocks."""

import functools

import keras
from keras import ops

from keras_transformer.config import AltUp, Norm
from keras_transformer.layers.arguments import SavesArguments, initial_stack, part_of
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat

_SMALLEST = 1e-5  # the mean square that a copy has at least, before it gets the size of another


def _of_size(states, size):
    """Return states whose root mean square is `size`, float `(..., 1)`."""
    states = ops.cast(states, "float32")
    own = ops.maximum(ops.mean(ops.square(states), axis=-1, keepdims=True), _SMALLEST)
    return states * (size / ops.sqrt(own))


def _size(states):
    """Return the root mean square of states, float `(..., 1)`, with gradients at zero."""
    squares = ops.square(ops.cast(states, "float32"))
    return ops.sqrt(ops.maximum(ops.mean(squares, axis=-1, keepdims=True), 1e-30))


class _Projections(SavesArguments, keras.layers.Layer):
    """Base class of layers with a projection for each copy of the states behind the first."""

    def __init__(self, part: AltUp | dict, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.part = part_of("part", part, AltUp)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, states_shape):
        width = states_shape[-1]
        shape = (self.part.copies - 1, width, width)
        initializer = functools.partial(initial_stack, self.kernel_initializer)
        self.kernel = self.add_weight(shape, initializer, name="kernel")
        self.built = True


@keras.saving.register_keras_serializable(package="keras_transformer")
class CopiedStates(_Projections):
    """Make copies of states: the states, and projections of their size.

    Args:
        part: `config.AltUp`.
        kernel_initializer: initializer of the kernel.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        states: float `(batch, length, hidden_dim)`.

    Returns:
        Float `(batch, length, copies, hidden_dim)`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import AltUp
    from keras_transformer.layers.altup import CopiedStates

    assert CopiedStates(AltUp(copies=3))(np.ones((1, 2, 8))).shape == (1, 2, 3, 8)
    ```

    Source: Google 2025, the published code of Gemma 3n.
    """

    def call(self, states):
        projected = ops.einsum("bld,ndo->blno", states, ops.cast(self.kernel, states.dtype))
        further = ops.cast(_of_size(projected, _size(states)[:, :, None]), states.dtype)
        return ops.concatenate([states[:, :, None], further], axis=2)

    def compute_output_shape(self, states_shape):
        return (*states_shape[:-1], self.part.copies, states_shape[-1])


@keras.saving.register_keras_serializable(package="keras_transformer")
class JoinedStates(_Projections):
    """Join copies of states: the mean of the first, and of projections of the others of its size.

    Args:
        part: `config.AltUp`.
        kernel_initializer: initializer of the kernel.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        states: float `(batch, length, copies, hidden_dim)`.

    Returns:
        Float `(batch, length, hidden_dim)`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import AltUp
    from keras_transformer.layers.altup import JoinedStates

    assert JoinedStates(AltUp(copies=3))(np.ones((1, 2, 3, 8))).shape == (1, 2, 8)
    ```

    Source: Google 2025, the published code of Gemma 3n.
    """

    def call(self, states):
        first, others = states[:, :, 0], states[:, :, 1:]
        kernel = ops.cast(self.kernel, states.dtype)
        projected = ops.einsum("blnd,ndo->blno", others, kernel)
        further = ops.sum(_of_size(projected, _size(first)[:, :, None]), axis=2)
        mean = (ops.cast(first, further.dtype) + further) / self.part.copies
        return ops.cast(mean, states.dtype)

    def compute_output_shape(self, states_shape):
        return (*states_shape[:-2], states_shape[-1])


@keras.saving.register_keras_serializable(package="keras_transformer")
class AlternatingUpdates(SavesArguments, keras.layers.Layer):
    """Predict copies of states by a mix of them, and correct them by a new first one.

    Args:
        part: `config.AltUp`.
        norm: `config.Norm`, of the states that the weights of a mix are computed from.
        kernel_initializer: initializer of the kernels.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        states: float `(batch, length, copies, hidden_dim)`.
        first: float `(batch, length, hidden_dim)`, the new first copy. None predicts.
        training: bool, whether the weights of a mix are limited.

    Returns:
        Float `(batch, length, copies, hidden_dim)`: the predicted copies; with `first`, the given
        ones corrected.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import AltUp
    from keras_transformer.layers.altup import AlternatingUpdates

    layer, copies = AlternatingUpdates(AltUp(copies=3)), np.ones((1, 2, 3, 8), "float32")
    predicted = layer(copies)
    assert layer(predicted, first=predicted[:, :, 0] + 1).shape == (1, 2, 3, 8)
    ```

    Source: Baykal et al. 2023, "Alternating Updates for Efficient Transformers", section 3.
    """

    def __init__(
        self,
        part: AltUp | dict,
        norm: Norm | dict | None = None,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part_of("part", part, AltUp)
        self.kind = part_of("norm", norm or Norm(type="rms_norm"), Norm)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, states_shape, first_shape=None):
        copies, width = self.part.copies, states_shape[-1]
        with no_inner_remat():
            self.router_norm = make_normalization(
                self.kind.type, self.kind.epsilon, name="router_norm", dtype=self.dtype_policy
            )
            self.router = Dense(
                copies,
                use_bias=False,
                kernel_initializer=self.kernel_initializer.clone(),
                name="router",
                dtype=self.dtype_policy,
            )
        for layer in (self.router_norm, self.router):
            layer.build((*states_shape[:-2], width))
        kernel = self.kernel_initializer.clone()
        self.prediction = self.add_weight((copies, copies**2), kernel, name="prediction")
        self.correction = self.add_weight((copies, copies), kernel.clone(), name="correction")
        self.scale = self.add_weight((width,), "ones", name="scale")
        self.built = True

    def call(self, states, first=None, training: bool = False):
        if first is None:
            mix = self._mixed(states[:, :, 0], self.prediction, training)
            copies = self.part.copies
            mix = ops.reshape(mix, (*ops.shape(mix)[:-1], copies, copies))
            return states + ops.matmul(mix, states)
        added = (first - states[:, :, 0])[:, :, None]
        shares = self._mixed(first, self.correction, training) + 1.0
        return states + added * shares[..., None]

    def scaled(self, states):
        """Return the first copy, which the sub-layer of the vectors of a layer reads."""
        return states[:, :, 0] * ops.cast(self.scale, states.dtype)

    def _mixed(self, states, kernel, training: bool):
        """Return the weights of a mix: a product of a bounded projection of states."""
        given = self.router(self.router_norm(states) * (1 / states.shape[-1]))
        bounded = ops.cast(ops.tanh(ops.cast(given, "float32")), states.dtype)
        kernel = ops.cast(kernel, states.dtype)
        if training and self.part.limit is not None:
            kernel = ops.clip(kernel, -self.part.limit, self.part.limit)
        return ops.matmul(bounded, kernel)

    def compute_output_shape(self, states_shape, first_shape=None):
        return tuple(states_shape)
