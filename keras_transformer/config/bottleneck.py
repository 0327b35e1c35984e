"""Convolutions over the grid of patches behind a block (ViTDet)."""

from keras_transformer.config.feed_forward import ACTIVATIONS
from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import Weight, dense_of, norm_of, weight_of

__all__ = ["Bottleneck"]


@part
class Bottleneck(Part):
    """A residual of three convolutions, which carries states from window to window.

    A convolution of single patches narrows the states, one of three by three patches reads their
    neighbours, and a third one widens them again. A norm follows each, and the activation the first
    two. At first the residual adds nothing: the scale of its last norm is zero.

    Source: Li et al. 2022, "Exploring Plain Vision Transformer Backbones for Object Detection",
    https://arxiv.org/abs/2203.16527, section 3; the convolutions: He et al. 2015, "Deep Residual
    Learning for Image Recognition", section 4.1.
    """

    dim: int = option("width between the convolutions.", least=1, most=2**20)
    activation: str = option(
        "activation behind the first two convolutions.", "gelu", choices=ACTIVATIONS
    )
    epsilon: float = option("added to the variance in the norms.", 1e-6, positive=True)

    def weights(self, norm: str) -> tuple[Weight, ...]:
        """Return the weights of the layers, with norms of this type."""
        inner, name = "bottleneck_dim", "bottleneck"
        size = ("bottleneck_size", "bottleneck_size")
        return (
            *dense_of(f"{name}/input", "hidden_dim", inner, bias=False),
            *norm_of(f"{name}/input_norm", norm, inner),
            *weight_of(f"{name}/convolution/kernel", *size, inner, inner),
            *norm_of(f"{name}/convolution_norm", norm, inner),
            *dense_of(f"{name}/output", inner, "hidden_dim", bias=False),
            *norm_of(f"{name}/output_norm", norm),
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the weight axes that the side does not define, by name."""
        return {"bottleneck_dim": self.dim, "bottleneck_size": 3}
