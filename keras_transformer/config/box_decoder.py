"""Values and weights of the layers that find objects in the maps of a convolutional network."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.config.edge_distribution import EdgeDistribution
from keras_transformer.config.feed_forward import ACTIVATIONS
from keras_transformer.config.fusion import batch_norm, convolution
from keras_transformer.config.options import check_values
from keras_transformer.config.prompted import linear_layers
from keras_transformer.config.weight import Shapes
from keras_transformer.support.checking import (
    check_bool,
    check_choice,
    check_int,
    check_number,
    shorten,
)

# Blocks of two parallel convolutions in each network that joins two maps, and the most of them.
BLOCKS, MOST_BLOCKS = 3, 9
# More layers than published models have: their tensors have lines in a family's table.
MOST_LAYERS = 16
# Values of training alone.
NOISE = ("num_denoising", "label_noise_ratio", "box_noise_scale")
# Queries with noise, all of which a mask compares with each other.
MOST_NOISY = 2**12
SAMPLINGS = ("linear", "nearest")
JOINS = ("csp", "csp_elan")


@dataclasses.dataclass(frozen=True)
class BoxDecoder:
    """Values of the layers in `layers.pyramid` and `layers.refining_decoder` (RT-DETR, D-FINE).

    Args:
        num_queries: int, places of the maps that become queries, each of which may find an object.
        width: int, features of the states of the decoder.
        num_layers: int, layers of the decoder, each of which refines the boxes.
        num_heads: int, heads of its attentions.
        num_points: int, places that a head reads in each map, or a list with a number for each map.
        intermediate_dim: int, the inner width of its feed-forward layers.
        activation: str, of its feed-forward layers.
        expansion: float, inner features of the layers that join two maps, as a share of a map's;
            with `join="csp_elan"` of half of a map's.
        map_activation: str, of the convolutions of maps.
        join: str, how two maps are joined: by a cross stage partial network of RepVGG's blocks,
            `"csp"`; or by two of them behind each other, each before a convolution, whose outputs
            are joined with their input, `"csp_elan"` (D-FINE). With the latter the convolutions
            between maps have no activation, and a map becomes smaller by one of each feature.
        join_depth: float, blocks of each such network, as a share of 3.
        project_always: bool, whether maps are projected to the states of the decoder even if they
            have its `width`.
        value_projection: bool, whether attention to maps projects what it reads, and what it
            returns.
        gated: bool, whether two gates say how much of the states, and of what attention has read,
            is kept, in place of their sum (D-FINE's target gating layer).
        edges: dict of values of `EdgeDistribution`, a distribution of each edge of a box that each
            layer refines (D-FINE). With None each layer refines the box itself.
        offset_scale: float, how far from the center of a box its edges count as 1: by default
            half of its width and height.
        sampling: str, how a map is read between the centers of its places: `"linear"`, or the
            `"nearest"` place (RT-DETRv2's discrete sampling).
        num_denoising: int, further queries in training, which are objects with noise, each once
            near to its place and once far from it; 0 for none. They are divided into groups of
            all objects of an image, of which there is at least one.
        label_noise_ratio: float, twice the share of them with a random class.
        box_noise_scale: float, how far their corners are moved at most: 1 is half the width and
            height of the box, and the far ones are moved by as much again.

    Raises:
        ValueError: if a value is out of range.

    Source: Zhao et al. 2023, "DETRs Beat YOLOs on Real-time Object Detection", section 4; Lv et al.
    2024, "RT-DETRv2", section 3, https://arxiv.org/abs/2407.17140; Peng et al. 2024, "D-FINE",
    sections 4 and A.1, https://arxiv.org/abs/2410.13842; noise: Zhang et al. 2022, "DINO", section
    3.3.
    """

    num_queries: int = 300
    width: int = 256
    num_layers: int = 6
    num_heads: int = 8
    num_points: int | Sequence[int] = 4
    intermediate_dim: int = 1024
    activation: str = "relu"
    expansion: float = 1.0
    map_activation: str = "silu"
    join: str = "csp"
    join_depth: float = 1.0
    project_always: bool = True
    value_projection: bool = True
    gated: bool = False
    edges: Mapping[str, Any] | EdgeDistribution | None = None
    offset_scale: float = 0.5
    sampling: str = "linear"
    num_denoising: int = 100
    label_noise_ratio: float = 0.5
    box_noise_scale: float = 1.0

    def __post_init__(self):
        for name in ("num_queries", "width", "num_heads", "intermediate_dim"):
            check_int(name, getattr(self, name), 1, 2**16)
        check_int("num_layers", self.num_layers, 1, MOST_LAYERS)
        if isinstance(self.num_points, (list, tuple)):
            object.__setattr__(self, "num_points", tuple(self.num_points))
            if not 1 <= len(self.num_points) <= MOST_LAYERS:
                raise ValueError(
                    "`num_points` must be an integer, or one for each map, received "
                    f"{shorten(self.num_points)}."
                )
        points = self.num_points
        for count in points if isinstance(points, tuple) else (points,):
            check_int("num_points", count, 1, 2**8)
        check_choice("join", self.join, JOINS)
        check_number("join_depth", self.join_depth, above=0, at_most=MOST_BLOCKS / BLOCKS)
        if not self.blocks:
            raise ValueError(
                f"`join_depth` must leave at least one block, received {self.join_depth}."
            )
        for name in ("project_always", "value_projection", "gated"):
            check_bool(name, getattr(self, name))
        if not isinstance(self.edges, EdgeDistribution | None):
            object.__setattr__(self, "edges", EdgeDistribution.of(self.edges))
        check_number("expansion", self.expansion, above=0, at_most=16)
        for name in ("activation", "map_activation"):
            check_choice(name, getattr(self, name), ACTIVATIONS)
        check_number("offset_scale", self.offset_scale, above=0, at_most=16)
        check_choice("sampling", self.sampling, SAMPLINGS)
        check_int("num_denoising", self.num_denoising, 0, MOST_NOISY)
        check_number("label_noise_ratio", self.label_noise_ratio, at_least=0, at_most=2)
        check_number("box_noise_scale", self.box_noise_scale, at_least=0, at_most=16)
        if self.width % self.num_heads:
            raise ValueError(
                "`width` of the `box_decoder` must be a multiple of `num_heads`, received "
                f"{self.width} and {self.num_heads}."
            )

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> "BoxDecoder":
        """Return the values of a mapping; those that are missing are the published ones.

        Raises:
            ValueError: if a value is unknown or out of range.
        """
        return cls(**check_values("`box_decoder`", given, cls))

    def values(self) -> dict[str, Any]:
        """Return the values as a dict for files."""
        points = self.num_points
        points = list(points) if isinstance(points, tuple) else points
        return {**dataclasses.asdict(self), "num_points": points}

    def lasting_values(self) -> dict[str, Any]:
        """Return the values that a trained decoder depends on, without the values of the noise."""
        return {name: value for name, value in self.values().items() if name not in NOISE}

    @property
    def blocks(self) -> int:
        """Blocks of two parallel convolutions in each network that joins two maps."""
        return round(BLOCKS * self.join_depth)

    def points(self, levels: int) -> tuple[int, ...]:
        """Return how many places a head reads in each of `levels` maps.

        Raises:
            ValueError: if `num_points` has them for another number of maps.
        """
        if not isinstance(self.num_points, tuple):
            return (self.num_points,) * levels
        if len(self.num_points) != levels:
            raise ValueError(
                f"`num_points` of the `box_decoder` must have a number for each of {levels} maps, "
                f"received {shorten(list(self.num_points))}."
            )
        return self.num_points

    def inner(self, features: int) -> int:
        """Return the inner features of the layers that join two maps of `features`."""
        if self.join == "csp_elan":
            return max(round(features * self.expansion // 2), 1)
        return max(int(features * self.expansion), 1)

    def shapes(self, widths: Sequence[int], features: int, classes: int) -> Shapes:
        """Return the shapes of all variables.

        Args:
            widths: ints, features of the maps before the states, the largest map first.
            features: int, features of the states of the encoder.
            classes: int, number of classes.
        """
        pyramid = self.pyramid_shapes(widths, features)
        decoder = self.decoder_shapes(len(widths) + 1, features, classes)
        return {
            **{f"pyramid/{path}": shape for path, shape in pyramid.items()},
            **{f"decoder/{path}": shape for path, shape in decoder.items()},
        }

    def pyramid_shapes(self, widths: Sequence[int], features: int) -> Shapes:
        """Return the shapes of the variables of `MapPyramid`."""
        made: Shapes = {}
        for i, width in enumerate(widths):
            made |= normed_convolution(f"project_{i}", 1, width, features)
            made |= normed_convolution(f"lateral_{i}", 1, features, features)
            if self.join == "csp_elan":
                made |= normed_convolution(f"downsample_{i}/place", 1, features, features)
                made |= normed_convolution(f"downsample_{i}/feature", 3, 1, features)
            else:
                made |= normed_convolution(f"downsample_{i}", 3, features, features)
            for join in ("top_down", "bottom_up"):
                made |= self._join(f"{join}_{i}", features)
        return made

    def _join(self, name: str, features: int) -> Shapes:
        inner = self.inner(features)
        if self.join == "csp":
            return self._partial(name, 2 * features, inner, features)
        made = normed_convolution(f"{name}/first", 1, 2 * features, 2 * features)
        for i, inputs in enumerate((features, inner)):
            made |= self._partial(f"{name}/stage_{i}", inputs, inner, inner)
            made |= normed_convolution(f"{name}/wide_{i}", 3, inner, inner)
        made |= normed_convolution(f"{name}/output", 1, 2 * (features + inner), features)
        return made

    def _partial(self, name: str, inputs: int, inner: int, outputs: int) -> Shapes:
        made: Shapes = {}
        for part in ("first", "second"):
            made |= normed_convolution(f"{name}/{part}", 1, inputs, inner)
        for i in range(self.blocks):
            made |= normed_convolution(f"{name}/block_{i}/wide", 3, inner, inner)
            made |= normed_convolution(f"{name}/block_{i}/narrow", 1, inner, inner)
        if inner != outputs:
            made |= normed_convolution(f"{name}/output", 1, inner, outputs)
        return made

    def projects(self, features: int) -> bool:
        """Return whether maps of `features` are projected to the states of the decoder."""
        return self.project_always or features != self.width

    def decoder_shapes(self, levels: int, features: int, classes: int) -> Shapes:
        """Return the shapes of the variables of `RefiningDecoder` for `levels` maps."""
        width, boxes = self.width, [self.width, self.width, self.width, 4]
        made: Shapes = {}
        if self.projects(features):
            for i in range(levels):
                made |= normed_convolution(f"input_{i}", 1, features, width)
        made |= {
            **convolution("proposal", 0, width, width),
            **_norm("proposal_norm", width),
            **convolution("proposal_classes", 0, width, classes),
            **linear_layers("proposal_boxes", boxes),
            **linear_layers("query_positions", [4, 2 * width, width]),
        }
        if self.num_denoising:
            made["denoising_classes/embeddings"] = (classes + 1, width)
        points = self.num_heads * sum(self.points(levels))
        for i in range(self.num_layers):
            name = f"layer_{i}"
            for part in ("query", "key", "value", "output"):
                made |= convolution(f"{name}/self_attention/{part}", 0, width, width)
            attention = f"{name}/cross_attention"
            made |= {
                **convolution(f"{attention}/offsets", 0, width, 2 * points),
                **convolution(f"{attention}/weights", 0, width, points),
                **convolution(f"{name}/intermediate", 0, width, self.intermediate_dim),
                **convolution(f"{name}/output", 0, self.intermediate_dim, width),
            }
            if self.value_projection:
                made |= convolution(f"{attention}/value", 0, width, width)
                made |= convolution(f"{attention}/output", 0, width, width)
            if self.gated:
                made |= convolution(f"{name}/gate", 0, 2 * width, 2 * width)
            for norm in ("self_attention", "cross_attention", "feed_forward"):
                made |= _norm(f"{name}/{norm}_norm", width)
            made |= convolution(f"classes_{i}", 0, width, classes)
            outputs = 4 if self.edges is None else self.edges.outputs
            made |= linear_layers(f"boxes_{i}", [*boxes[:-1], outputs])
        if self.edges is not None:
            made |= linear_layers("first_boxes", boxes)
            made |= self.edges.shapes(self.num_layers)
        return made


def normed_convolution(name: str, size: int, inputs: int, outputs: int) -> Shapes:
    """Return the shapes of the variables of a convolution without bias and of its batch norm."""
    return {
        **convolution(f"{name}/convolution", size, inputs, outputs, bias=False),
        **batch_norm(f"{name}/norm", outputs),
    }


def _norm(name: str, features: int) -> Shapes:
    return {f"{name}/gamma": (features,), f"{name}/beta": (features,)}
