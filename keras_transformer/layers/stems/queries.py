"""Stem of trained queries: their states, or states of zeros with trained positions."""

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.stems.stem import Embedded, PositionedStem


@keras.saving.register_keras_serializable(package="keras_transformer")
class QueryStem(PositionedStem):
    """Queries: states of zeros, each with a trained position for every attention; or trained ones.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `QueryStemConfig`.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `attended`, float `(batch, length, width)`, the states that the queries
            attend to, for the number of their rows.

    Returns:
        `Embedded`: states `(batch, num_queries, hidden_dim)`, and their positions if these are
        trained.

    Source: Carion et al. 2020, "End-to-End Object Detection with Transformers", section 3.2;
    trained states: Li et al. 2023, "BLIP-2", section 3.1.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        self.make_rest(initializer)

    @property
    def inputs(self):
        return ()

    def build(self, input_shape=None):
        shape = (self.config.stem.num_queries, self.config.embedding_dim)
        self.queries = self.add_weight(shape, self._embeddings, name="input_queries")
        super().build(input_shape)

    def call(self, inputs, training=False):
        positions = ops.cast(self.queries, self.compute_dtype)[None]
        rows = ops.shape(inputs["attended"])[0]
        if self.config.stem.trained == "state":
            states = ops.broadcast_to(positions, (rows, *positions.shape[1:]))
            return Embedded(self.finished(states, training))
        states = ops.zeros((rows, *positions.shape[1:]), positions.dtype)
        return Embedded(self.finished(states, training), attention_positions=positions)
