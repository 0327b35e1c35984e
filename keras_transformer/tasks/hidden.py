"""The hidden layer that heads have in front of their output."""

from typing import Any, ClassVar

from keras_transformer.checking import check_bool
from keras_transformer.config import TransformerConfig
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import one_piece
from keras_transformer.structure import Weight, hidden_of_head


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
            config = self.backbone.config
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
