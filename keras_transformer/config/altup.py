"""Copies of the states, of which each block computes one and predicts the others (AltUp)."""

from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import Weight, dense_of, norm_of, weight_of

__all__ = ["AltUp"]


@part
class AltUp(Part):
    """Alternating updates: a block computes one of several copies of the states (Gemma 3n).

    It predicts all copies by a mix of them, computes the first one, and corrects the others by what
    the prediction of the first one lacked. The copies are projections of the embeddings, and the
    states behind the last block are the mean of their projections.

    Source: Baykal et al. 2023, "Alternating Updates for Efficient Transformers",
    https://arxiv.org/abs/2301.13310.
    """

    copies: int = option("number of copies of the states.", 4, least=2, most=64)
    limit: float | None = option(
        "largest magnitude of the weights of a mix in training. None disables it.",
        None,
        positive=True,
    )

    def weights(self, norm: str) -> tuple[Weight, ...]:
        """Return the weights that a block has of it, with a norm of this type."""
        return (
            *norm_of("altup/router_norm", norm),
            *dense_of("altup/router", "hidden_dim", "copies", bias=False),
            *weight_of("altup/prediction", "copies", "pairs_of_copies"),
            *weight_of("altup/correction", "copies", "copies"),
            *weight_of("altup/scale", "hidden_dim"),
        )

    def weights_around(self) -> tuple[Weight, ...]:
        """Return the weights that make the copies before the blocks, and join them behind."""
        axes = ("further_copies", "hidden_dim", "hidden_dim")
        return (
            *weight_of("altup_copies/kernel", *axes),
            *weight_of("altup_mean/kernel", *axes),
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the weight axes, by name."""
        return {
            "copies": self.copies,
            "further_copies": self.copies - 1,
            "pairs_of_copies": self.copies**2,
        }
