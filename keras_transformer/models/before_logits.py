"""The layers between the states of a backbone and its logits, and what else is a dense layer."""

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.initializers import kernel_initializer
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import one_piece


def dense(
    name: str, units: int, config: TransformerConfig, initializer, dtype, **options
) -> keras.layers.Dense:
    """A dense layer with the initial weights of a config."""
    initial = kernel_initializer(config, initializer)
    return keras.layers.Dense(units, kernel_initializer=initial, name=name, dtype=dtype, **options)


def state_projection(config: TransformerConfig, initializer, dtype) -> keras.layers.Dense | None:
    """What makes states as narrow as the embedding, with `token_projection`."""
    if not config.token_projection:
        return None
    units = config.embedding_dim
    return dense("state_projection", units, config, initializer, dtype, use_bias=False)


def output_transform(config: TransformerConfig, initializer, dtype) -> list[keras.layers.Layer]:
    """The layers of `output_transform` of the side that writes: none without it.

    Source: Devlin et al. 2018, "BERT", the head of masked language models as published.
    """
    if config.output_transform is None:
        return []
    activation = get_activation(config.output_transform)
    with one_piece():
        norm = make_normalization(
            config.normalization,
            config.normalization_epsilon,
            name="output_transform_norm",
            dtype=dtype,
        )
        transform = dense(
            "output_transform",
            config.hidden_dim,
            config,
            initializer,
            dtype,
            activation=activation,
        )
    return [transform, norm]
