"""Pooling of the states of a side to one vector, as the config of the side says."""

import keras
from keras import ops

from keras_transformer.config import Attention, TransformerConfig
from keras_transformer.layers.arguments import embedding_initializer, kernel_initializer
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.feed_forward import FeedForward, get_activation
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat


class AttentionPooling(keras.layers.Layer):
    """Attention of a trained query to all states, followed by a feed-forward layer.

    `x + f(norm(x))`, with `x` the attention of the query to the states; `x` alone if the vector has
    no `feed_forward`.

    Args:
        config: `TransformerConfig` of the side: heads, widths, activation, normalization.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`.
        padding_mask: bool `(batch, length)`, True for real states; None if all are.

    Returns:
        Float `(batch, hidden_dim)`.

    Source: Lee et al. 2019, "Set Transformer", section 3.2; Zhai et al. 2022, "Scaling Vision
    Transformers", section 2.3.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self._embeddings = embedding_initializer(config, initializer)
        self.norm = self.feed_forward = None
        vector = config.only_side.vector
        heads = vector.attention or Attention(num_heads=config.num_heads, head_dim=config.head_dim)
        options = {
            "kernel_initializer": kernel_initializer(config, initializer),
            "dtype": self.dtype_policy,
        }
        with no_inner_remat():
            self.attention = MultiHeadAttention(heads, name="attention", **options)
            if not vector.feed_forward:
                return
            self.feed_forward = FeedForward(
                config.intermediate_dim,
                activation=config.activation,
                name="feed_forward",
                **options,
            )
            self.norm = make_normalization(
                config.normalization,
                config.normalization_epsilon,
                name="norm",
                dtype=self.dtype_policy,
            )

    def build(self, input_shape=None):
        width = self.config.hidden_dim
        self.probe = self.add_weight((width,), self._embeddings, name="probe")
        shape = (None, None, width)
        self.attention.build(shape, shape)
        for layer in (self.norm, self.feed_forward):
            if layer is not None:
                layer.build(shape)

    def call(self, inputs, padding_mask=None):
        query = ops.cast(self.probe, inputs.dtype)[None, None]
        query = ops.broadcast_to(query, (ops.shape(inputs)[0], 1, inputs.shape[-1]))
        x = self.attention(query, value=inputs, value_mask=padding_mask)
        x = x if self.feed_forward is None else x + self.feed_forward(self.norm(x))
        return x[:, 0]


class SideVector(keras.layers.Layer):
    """Vector of each row of a side: one of its states, or all of them pooled, then projected.

    Args:
        config: `TransformerConfig` of the side, with its `vector_pooling`.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`, the states.
        token_ids: int `(batch, length)`, for the pooling `"end"`.
        padding_mask: bool `(batch, length)`, for the poolings `"attention"` and `"mean"`, True for
            real states.

    Returns:
        Float `(batch, vector_width)`.

    Source: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
    Supervision", section 2.4.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.pooling = self.norm = self.pooler = self.projection = self.output_projection = None
        if config.vector_pooling == "attention":
            self.pooling = AttentionPooling(
                config, initializer, name="vector", dtype=self.dtype_policy
            )
        if config.vector_normalization:
            self.norm = make_normalization(
                config.normalization,
                config.normalization_epsilon,
                name="vector_norm",
                dtype=self.dtype_policy,
            )
        if config.vector_pooler:
            self.pooler = Dense(
                config.hidden_dim,
                activation="tanh",
                kernel_initializer=kernel_initializer(config, initializer),
                name="vector_pooler",
                dtype=self.dtype_policy,
            )
        if config.vector_dim is not None:
            options = {"use_bias": config.vector_bias, "dtype": self.dtype_policy}
            activation = config.vector_activation
            self.projection = Dense(
                config.vector_dim,
                activation=None if activation is None else get_activation(activation),
                kernel_initializer=kernel_initializer(config, initializer),
                name="vector_projection",
                **options,
            )
            if activation is not None:
                self.output_projection = Dense(
                    config.vector_dim,
                    kernel_initializer=kernel_initializer(config, initializer),
                    name="vector_output",
                    **options,
                )

    def build(self, input_shape=None):
        for layer in (self.pooling, self.norm, self.pooler, self.projection):
            if layer is not None:
                layer.build((None, None, self.config.hidden_dim))
        if self.output_projection is not None:
            self.output_projection.build((None, None, self.config.vector_dim))

    def call(self, inputs, token_ids=None, padding_mask=None):
        kind = self.config.vector_pooling
        if kind == "attention":
            x = self.pooling(inputs, padding_mask=padding_mask)
        elif kind == "first":
            x = inputs[:, 0]
        elif kind == "last":
            x = inputs[:, -1]
        elif kind == "mean":
            x = _mean(inputs, padding_mask)
        else:
            end = self.config.vector_end_id
            marks = token_ids if end is None else ops.cast(ops.equal(token_ids, end), "int32")
            place = ops.one_hot(ops.argmax(marks, axis=1), inputs.shape[1], dtype=inputs.dtype)
            x = ops.einsum("bl,bld->bd", place, inputs)
        for layer in (self.norm, self.pooler, self.projection, self.output_projection):
            x = x if layer is None else layer(x)
        return x

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # Recomputing it would save little.


def _mean(states, padding_mask=None):
    """Return the mean of the real states of each row, `(batch, hidden_dim)`."""
    if padding_mask is None:
        return ops.mean(states, axis=1)
    real = ops.cast(padding_mask, states.dtype)[..., None]
    return ops.sum(states * real, axis=1) / ops.maximum(ops.sum(real, axis=1), 1)
