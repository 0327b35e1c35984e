"""Vectors that each token has for each layer: where they come from, and how a block uses them."""

from collections.abc import Callable

from keras_transformer.config.feed_forward import ACTIVATIONS
from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import Weight, dense_of, norm_of, weight_of

__all__ = ["LayerInput", "LayerInputs"]


@part
class LayerInputs(Part):
    """`layers.layer_inputs.LayerVectors`: a vector for each token and layer (Gemma 3n, Gemma 4).

    It is the mean of an embedding of the token and of a normalized projection of its usual one.
    """

    layer = "keras_transformer.layers.layer_inputs:LayerVectors"

    vocabulary_size: int = option("number of tokens that have these embeddings.", least=1)
    dim: int = option("width of the vector of one layer.", least=1)

    def weights(self, norm: str) -> tuple[Weight, ...]:
        """Return the weights of the layer, with norms of this type."""
        name = "layer_inputs"
        return (
            *weight_of(f"{name}/embeddings", "layer_vocabulary", "layer_vectors"),
            *dense_of(f"{name}/projection", "hidden_dim", "layer_vectors", bias=False),
            *norm_of(f"{name}/norm", norm, "layer_vector"),
        )

    def sizes(self, num_layers: int) -> dict[str, int]:
        """Return the sizes of the weight axes, by name."""
        return {
            "layer_vocabulary": self.vocabulary_size,
            "layer_vectors": num_layers * self.dim,
            "layer_vector": self.dim,
        }


@part
class LayerInput(Part):
    """A sub-layer that adds the vector of a token for this layer, gated by the states.

    The activated projection of the states is multiplied by the vector, projected back, normalized
    and added (Gemma 3n, Gemma 4).
    """

    dim: int = option("width of the vector.", least=1)
    activation: str | Callable = option(
        "activation of the projected states, one of `config.ACTIVATIONS`.",
        "gelu_tanh",
        choices=ACTIVATIONS,
        function=True,
    )

    def weights(self, norm: str) -> tuple[Weight, ...]:
        """Return the weights of the sub-layer, with a norm of this type."""
        return (
            *dense_of("layer_input/gate", "hidden_dim", "layer_input_dim", bias=False),
            *dense_of("layer_input/output", "layer_input_dim", "hidden_dim", bias=False),
            *norm_of("layer_input/norm", norm),
        )
