"""Vectors that each token has for each layer, and the sub-layer that adds them."""

import keras
from keras import ops

from keras_transformer.config import LayerInput, LayerInputs, Norm
from keras_transformer.kernels.indexing import look_up
from keras_transformer.layers.arguments import SavesArguments, own_layer, part_of
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.feed_forward import activated, build_function
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerVectors(SavesArguments, keras.layers.Layer):
    """Make a vector for each token and layer from its id and from its embedding.

    Args:
        part: `config.LayerInputs`.
        num_layers: int, number of layers.
        norm: `config.Norm`, of the projected embeddings.
        embeddings_initializer, kernel_initializer: initializers of the table and of the projection.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        token_ids: int `(batch, length)`.
        embedded: float `(batch, length, hidden_dim)`, the embeddings of the tokens.
        placed: bool `(batch, length)`, the tokens in whose place other states are. They have the
            vectors of the first token, which they do not train. Defaults to no such tokens.

    Returns:
        Float `(batch, length, num_layers, dim)`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import LayerInputs
    from keras_transformer.layers.layer_inputs import LayerVectors

    vectors = LayerVectors(LayerInputs(vocabulary_size=9, dim=4), num_layers=3)
    ids, embedded = np.array([[1, 2]]), np.ones((1, 2, 8), "float32")
    assert vectors(ids, embedded=embedded).shape == (1, 2, 3, 4)
    ```

    Source: Google 2025, the published code of Gemma 3n.
    """

    def __init__(
        self,
        part: LayerInputs | dict,
        num_layers: int,
        norm: Norm | dict | None = None,
        embeddings_initializer="uniform",
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part_of("part", part, LayerInputs)
        self.num_layers = num_layers
        kind = part_of("norm", norm or Norm(type="rms_norm"), Norm)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        with no_inner_remat():
            self.projection = Dense(
                num_layers * self.part.dim,
                use_bias=False,
                kernel_initializer=keras.initializers.get(kernel_initializer),
                name="projection",
                dtype=self.dtype_policy,
            )
            self.norm = make_normalization(
                kind.type, kind.epsilon, name="norm", dtype=self.dtype_policy
            )

    def build(self, token_ids_shape, embedded_shape=None, placed_shape=None):
        shape = (self.part.vocabulary_size, self.num_layers * self.part.dim)
        self.embeddings = self.add_weight(shape, self.embeddings_initializer, name="embeddings")
        self.projection.build(embedded_shape)
        self.norm.build((None, None, self.num_layers, self.part.dim))
        self.built = True

    def call(self, token_ids, embedded=None, placed=None):
        dim, width = self.part.dim, embedded.shape[-1]
        shape = (*ops.shape(token_ids), self.num_layers, dim)
        known = ops.logical_and(token_ids >= 0, token_ids < self.part.vocabulary_size)
        ids = ops.where(known, token_ids, 0)  # a token without such vectors has those of the first
        own = ops.reshape(look_up(self.embeddings, ids), shape)
        if placed is not None:  # as published models do: it is their padding's vector
            known = ops.logical_and(known, ops.logical_not(placed))
            own = ops.where(known[..., None, None], own, ops.stop_gradient(own))
        own = ops.cast(own, self.compute_dtype) * dim**0.5
        projected = ops.reshape(self.projection(embedded) * width**-0.5, shape)
        return (self.norm(projected) + own) * 2**-0.5

    def compute_output_shape(self, token_ids_shape, embedded_shape=None, placed_shape=None):
        return (*token_ids_shape, self.num_layers, self.part.dim)


@keras.saving.register_keras_serializable(package="keras_transformer")
class AddedLayerInput(SavesArguments, keras.layers.Layer):
    """Add the vector of a token for this layer to its states, gated by them.

    Args:
        part: `config.LayerInput`.
        norm: `config.Norm`, of what is added.
        kernel_initializer: initializer of the kernels.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        states: float `(batch, length, hidden_dim)`.
        vectors: float `(batch, length, dim)`.

    Returns:
        Float `(batch, length, hidden_dim)`, what is to be added.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import LayerInput
    from keras_transformer.layers.layer_inputs import AddedLayerInput

    added = AddedLayerInput(LayerInput(dim=4))
    assert added(np.ones((1, 2, 8)), vectors=np.ones((1, 2, 4))).shape == (1, 2, 8)
    ```

    Source: Google 2025, the published code of Gemma 3n.
    """

    def __init__(
        self,
        part: LayerInput | dict,
        norm: Norm | dict | None = None,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part_of("part", part, LayerInput)
        self.kind = part_of("norm", norm or Norm(type="rms_norm"), Norm)
        self.activation = own_layer(self.part.activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def _dense(self, units: int, name: str) -> Dense:
        with no_inner_remat():
            return Dense(
                units,
                use_bias=False,
                kernel_initializer=self.kernel_initializer.clone(),
                name=name,
                dtype=self.dtype_policy,
            )

    def build(self, states_shape, vectors_shape=None):
        inner = (*states_shape[:-1], self.part.dim)
        self.gate = self._dense(self.part.dim, "gate")
        self.gate.build(states_shape)
        build_function(self.activation, inner)
        self.output_dense = self._dense(states_shape[-1], "output")
        self.output_dense.build(inner)
        with no_inner_remat():
            self.norm = make_normalization(
                self.kind.type, self.kind.epsilon, name="norm", dtype=self.dtype_policy
            )
        self.norm.build(states_shape)
        self.built = True

    def call(self, states, vectors=None):
        gate = activated(self.activation, self.gate(states))
        return self.norm(self.output_dense(gate * ops.cast(vectors, gate.dtype)))

    def compute_output_shape(self, states_shape, vectors_shape=None):
        return tuple(states_shape)
