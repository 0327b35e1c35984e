"""Base class of the stems of a config: positions, norm, dropout, and the width of the blocks."""

from keras_transformer.config import TransformerConfig
from keras_transformer.distribution.layout import spread_batch
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.initializers import embedding_initializer, kernel_initializer
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.parts import layer_of
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.layers.stems.stem import Stem


class PositionedStem(Stem):
    """Base class of the stems that a config describes.

    A subclass makes the layers for the content of its states, then calls `make_rest`, and calls
    `positioned` to add the rest to the content.

    Args:
        config: `TransformerConfig` of a side.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self._width = config.only_side.added_dim
        # One initializer for all tables: each draws its own seed when it is made.
        self._embeddings = embedding_initializer(config, initializer)

    def make_rest(self, initializer) -> None:
        """Make the layers that follow the content."""
        config = self.config
        self.position_embedding = self.embedding_norm = self.embedding_projection = None
        side = config.only_side
        if side.position is not None:
            self.position_embedding = layer_of(side.position).from_part(
                side.position,
                side,
                embeddings_initializer=self._embeddings,
                dtype=self.dtype_policy,
            )
        if config.embedding_normalization:
            self.embedding_norm = make_normalization(
                config.normalization,
                config.normalization_epsilon,
                name="embedding_norm",
                dtype=self.dtype_policy,
            )
        with no_inner_remat():
            self.dropout_layer = Dropout(config.dropout, dtype=self.dtype_policy)
        if config.embedding_projection:
            self.embedding_projection = Dense(
                config.hidden_dim,
                kernel_initializer=kernel_initializer(config, initializer),
                name="embedding_projection",
                dtype=self.dtype_policy,
            )

    def build(self, input_shape=None):
        for layer in (self.position_embedding, self.embedding_norm, self.embedding_projection):
            if layer is not None:
                layer.build((None, None, self._width))

    def positioned(self, x, positions=None, training: bool = False):
        """Return the states for the blocks, from their content `(batch, length, embedding_dim)`."""
        return self.finished(self.with_positions(x, positions), training)

    def with_positions(self, x, positions=None):
        """Add the positions to the content of the states, if the config has any."""
        if self.position_embedding is None:
            return x
        return x + self.position_embedding(x, positions=positions)

    def finished(self, x, training: bool = False):
        """Return the states for the blocks, from content that already has its positions."""
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = spread_batch(x)
        x = self.dropout_layer(x, training=True) if training else x
        return x if self.embedding_projection is None else self.embedding_projection(x)
