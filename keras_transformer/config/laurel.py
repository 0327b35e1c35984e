"""A narrow residual beside the mixer of a block (LAuReL)."""

from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import Weight, dense_of, norm_of

__all__ = ["Laurel"]


@part
class Laurel(Part):
    """A learned augmented residual: the mixer's input, and a normalized projection of low rank.

    Their sum is added to the states behind the mixer, and both are divided by the square root of
    two (Gemma 3n).

    Source: Menghani et al. 2024, "LAuReL: Learned Augmented Residual Layer",
    https://arxiv.org/abs/2411.07501, section 2.
    """

    rank: int = option("width of the narrow projection.", least=1)

    def weights(self, norm: str) -> tuple[Weight, ...]:
        """Return the weights of the layer, with a norm of this type."""
        return (
            *dense_of("laurel/down", "hidden_dim", "laurel_rank", bias=False),
            *dense_of("laurel/up", "laurel_rank", "hidden_dim", bias=False),
            *norm_of("laurel/norm", norm),
        )
