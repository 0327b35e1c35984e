"""The hidden layer that heads have in front of their output."""

from typing import Any, ClassVar

from keras_transformer.checking import check_bool
from keras_transformer.config import TransformerConfig
from keras_transformer.layers.feed_forward import FeedForward, get_activation
from keras_transformer.layers.initializers import kernel_initializer
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import one_piece
from keras_transformer.structure import Weight, hidden_of_head

# Values of a config that its feed-forward layers are made of.
_OF_FEED_FORWARD = ("intermediate_dim", "activation", "gated", "gate_limit", "use_bias")


class HiddenLayer:
    """For a `Task`: a dense layer, an activation and perhaps a normalization."""

    hidden_name: ClassVar[str] = "hidden"

    def make_hidden(self, activation, units: int, norm: str | None, epsilon: float) -> None:
        """Makes the layers, with a bias if `self.hidden_bias` says so."""
        name = self.hidden_name
        self.activation = get_activation(activation)
        setattr(self, f"{name}_dense", self._dense(units, name, use_bias=self.hidden_bias))
        if norm is not None:
            with one_piece():
                norm = make_normalization(
                    norm, epsilon, name=f"{name}_norm", dtype=self.dtype_policy
                )
            norm.build((None, None, units))
        setattr(self, f"{name}_norm", norm)

    def hidden(self, states):
        """The states behind it."""
        dense, norm = (getattr(self, f"{self.hidden_name}_{part}") for part in ("dense", "norm"))
        states = self.activation(dense(states))
        return states if norm is None else norm(states)


class OptionalHidden(HiddenLayer):
    """For a `Task` whose head has the layer if there is a `hidden_activation`."""

    hidden_options = ("hidden_activation", "hidden_bias", "block_norm")

    def set_hidden(self, hidden_activation, hidden_bias, block_norm) -> None:
        """Makes the layer of these options, if there is to be one."""
        self.hidden_activation = hidden_activation
        self.hidden_bias = check_bool("hidden_bias", hidden_bias)
        self.block_norm = check_bool("block_norm", block_norm)
        self.hidden_dense = self.hidden_norm = None
        if hidden_activation is not None:
            config = self.backbone.config.sides[-1]
            kind = config.normalization if block_norm else None
            self.make_hidden(
                hidden_activation, config.hidden_dim, kind, config.normalization_epsilon
            )
        elif block_norm or not hidden_bias:
            raise ValueError(
                "`hidden_bias` and `block_norm` are of a hidden layer: give `hidden_activation`."
            )

    @staticmethod
    def hidden_values(values: dict[str, Any]) -> dict[str, Any]:
        """What the weights depend on, of the `values` of the task."""
        return {
            "hidden_activation": values.get("hidden_activation"),
            "hidden_bias": values.get("hidden_bias", True),
            "block_norm": values.get("block_norm", False),
        }

    @classmethod
    def hidden_weights(
        cls, config: TransformerConfig, values: dict[str, Any]
    ) -> tuple[Weight, ...]:
        """The lines of its weights, for a config and `values` of the task."""
        values = cls.hidden_values(values)
        if values["hidden_activation"] is None:
            return ()
        norm = config.normalization if values["block_norm"] else None
        return hidden_of_head("hidden", bias=values["hidden_bias"], norm=norm)


class OptionalFeedForward:
    """For a `Task` whose head may have a feed-forward sub-layer, with a norm behind its sum."""

    def set_feed_forward(self, feed_forward) -> None:
        """Makes it as the blocks of the side that the head reads have it, if there is to be one."""
        self.feed_forward = check_bool("feed_forward", feed_forward)
        if not self.feed_forward:
            return
        config = self.backbone.config.sides[-1]
        options = {name: getattr(config, name) for name in _OF_FEED_FORWARD}
        with one_piece():
            self.feed_forward_layer = FeedForward(
                **options,
                kernel_initializer=kernel_initializer(config),
                name="feed_forward",
                dtype=self.dtype_policy,
            )
            self.feed_forward_norm = make_normalization(
                config.normalization,
                config.normalization_epsilon,
                name="feed_forward_norm",
                dtype=self.dtype_policy,
            )
        for layer in (self.feed_forward_layer, self.feed_forward_norm):
            layer.build((None, None, config.hidden_dim))

    def fed_forward(self, states, dropout):
        """The states behind it; `dropout` is a function of what goes in, and of what comes out."""
        return self.feed_forward_norm(states + dropout(self.feed_forward_layer(dropout(states))))
