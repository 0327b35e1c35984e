"""Values and weights of distributions of the edges of boxes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_transformer.config.fusion import convolution
from keras_transformer.config.options import check_values
from keras_transformer.config.weight import Shapes
from keras_transformer.support.checking import check_int, check_number

# More linear layers than published models have: their tensors have lines in a family's table.
MOST_QUALITY_LAYERS = 8


@dataclasses.dataclass(frozen=True)
class EdgeDistribution:
    """Values of the layers in `layers.edge_distribution` (D-FINE).

    Each edge of a box has a probability of each of `bins + 1` distances from its first place, of
    which the expected one counts. Distances are denser near to 0.

    Args:
        bins: int, an even number, one less than there are distances.
        reach: float, half of the largest distance, as a share of the width or height of the first
            box. It is a weight, which checkpoints may hold with another value.
        scale: float, how much denser distances near to 0 are. It is a weight as well.
        top: int, how many of the largest probabilities of an edge tell the quality of a box.
        quality_dim: int, inner width of the linear layers that tell it.
        quality_layers: int, their number.

    Raises:
        ValueError: if a value is out of range.

    Source: Peng et al. 2024, "D-FINE: Redefine Regression Task of DETRs as Fine-grained
    Distribution Refinement", section 4.1, https://arxiv.org/abs/2410.13842; quality: Li et al.
    2020, "Generalized Focal Loss V2", section 3.2.
    """

    bins: int = 32
    reach: float = 0.5
    scale: float = 4.0
    top: int = 4
    quality_dim: int = 64
    quality_layers: int = 2

    def __post_init__(self):
        check_int("bins", self.bins, 4, 2**10)
        if self.bins % 2:
            raise ValueError(f"`bins` of the `edges` must be an even number, received {self.bins}.")
        check_number("reach", self.reach, above=0, at_most=2**10)
        check_number("scale", self.scale, above=0, at_most=2**10)
        check_int("top", self.top, 1, self.bins + 1)
        check_int("quality_dim", self.quality_dim, 1, 2**16)
        check_int("quality_layers", self.quality_layers, 1, MOST_QUALITY_LAYERS)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "EdgeDistribution":
        """Return the values of a mapping; those that are missing are the published ones.

        Raises:
            ValueError: if a value is unknown or out of range.
        """
        return cls(**check_values("`edges` of the `box_decoder`", given, cls))

    @property
    def outputs(self) -> int:
        """Logits of the distances of all edges of a box."""
        return 4 * (self.bins + 1)

    @property
    def quality_widths(self) -> list[int]:
        """Width of the input of the linear layers of the quality, and of each one's output."""
        inner = [self.quality_dim] * (self.quality_layers - 1)
        return [4 * (self.top + 1), *inner, 1]

    @property
    def quality_names(self) -> list[str]:
        """Names of the linear layers of the quality."""
        return [f"linear_{i}" for i in range(self.quality_layers)]

    def shapes(self, layers: int) -> Shapes:
        """Return the shapes of the variables of `EdgeDistributions` for a decoder of `layers`."""
        made: Shapes = {"edges/reach": (1,), "edges/scale": (1,)}
        widths = self.quality_widths
        for i in range(layers):
            for name, before, after in zip(self.quality_names, widths, widths[1:], strict=False):
                made |= convolution(f"edges/quality_{i}/{name}", 0, before, after)
        return made
