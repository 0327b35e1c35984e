"""Hidden layers and feed-forward sub-layers of heads, in front of their output."""

from collections.abc import Callable, Mapping
from typing import Any

from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import Weight, hidden_of_head
from keras_transformer.layers.feed_forward import FeedForward, get_activation
from keras_transformer.layers.initializers import kernel_initializer
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.support.checking import check_bool
from keras_transformer.tasks.base.head import Head

# Config values that the feed-forward layers are made from.
_OF_FEED_FORWARD = ("intermediate_dim", "activation", "gated", "gate_limit", "use_bias")
HIDDEN_OPTIONS = ("hidden_activation", "hidden_bias", "block_norm")


class HiddenLayer:
    """A dense layer, an activation and optionally a normalization, for a head.

    Args:
        head: the head; it and its task get the layers as attributes.
        activation: str, see `layers.FeedForward`.
        units: int, the width of the output.
        use_bias: bool, whether the dense layer has a bias.
        norm: str, the kind of normalization; None if there is no normalization.
        epsilon: float, the epsilon of the normalization.
        name: str, the prefix of the layers' names.
    """

    def __init__(
        self, head: Head, activation, units: int, use_bias: bool, norm, epsilon, name="hidden"
    ):
        self.activation = get_activation(activation)
        self.dense = head.make_dense(units, name, use_bias=use_bias)
        self.norm = None
        if norm is not None:
            policy = head.task.dtype_policy
            with no_inner_remat():
                self.norm = make_normalization(norm, epsilon, name=f"{name}_norm", dtype=policy)
            self.norm.build((None, None, units))
        head.keep(**{f"{name}_dense": self.dense, f"{name}_norm": self.norm})

    def __call__(self, states):
        states = self.activation(self.dense(states))
        return states if self.norm is None else self.norm(states)


def optional_hidden(
    head: Head, hidden_activation, hidden_bias: bool, block_norm: bool
) -> HiddenLayer | None:
    """Set the `HIDDEN_OPTIONS` of a head, and return its hidden layer or None."""
    head.hidden_activation = hidden_activation
    head.hidden_bias = check_bool("hidden_bias", hidden_bias)
    head.block_norm = check_bool("block_norm", block_norm)
    if hidden_activation is None:
        if block_norm or not hidden_bias:
            raise ValueError(
                "`hidden_bias` and `block_norm` need a hidden layer: give `hidden_activation`."
            )
        head.keep(hidden_dense=None, hidden_norm=None)
        return None
    config = head.task.backbone.config.sides[-1]
    norm = config.normalization if block_norm else None
    epsilon = config.normalization_epsilon
    return HiddenLayer(head, hidden_activation, config.hidden_dim, hidden_bias, norm, epsilon)


def hidden_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `HIDDEN_OPTIONS` among a task's values, with defaults."""
    return {
        "hidden_activation": values.get("hidden_activation"),
        "hidden_bias": values.get("hidden_bias", True),
        "block_norm": values.get("block_norm", False),
    }


def hidden_weights(config: TransformerConfig, values: Mapping[str, Any]) -> tuple[Weight, ...]:
    """Return the weights of the hidden layer that a task's values describe, if any."""
    values = hidden_values(values)
    if values["hidden_activation"] is None:
        return ()
    norm = config.normalization if values["block_norm"] else None
    return hidden_of_head("hidden", bias=values["hidden_bias"], norm=norm)


class FeedForwardSubLayer:
    """A feed-forward sub-layer with a post-norm residual, as in the blocks.

    It has the same options as the blocks of the side (encoder or decoder) that the head reads.
    """

    def __init__(self, head: Head):
        config = head.task.backbone.config.sides[-1]
        policy = head.task.dtype_policy
        options = {name: getattr(config, name) for name in _OF_FEED_FORWARD}
        with no_inner_remat():
            self.layer = FeedForward(
                **options,
                kernel_initializer=kernel_initializer(config),
                name="feed_forward",
                dtype=policy,
            )
            self.norm = make_normalization(
                config.normalization,
                config.normalization_epsilon,
                name="feed_forward_norm",
                dtype=policy,
            )
        for layer in (self.layer, self.norm):
            layer.build((None, None, config.hidden_dim))
        head.keep(feed_forward_layer=self.layer, feed_forward_norm=self.norm)

    def __call__(self, states, dropout: Callable):
        """Apply the sub-layer; `dropout` is a function applied to its input and its output."""
        return self.norm(states + dropout(self.layer(dropout(states))))
