"""Config of MobileNetV5, a convolutional network that makes the states of an image (Gemma 3n)."""

import functools
import math
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from keras_transformer.config.inputs import ImageStemConfig
from keras_transformer.config.options import Part, option, part
from keras_transformer.config.resnet import halved
from keras_transformer.config.weight import Weight, norm_of, weight_of
from keras_transformer.support.checking import shorten

__all__ = ["MobileNetStage", "MobileNetV5StemConfig"]

BLOCKS = ("edge_residual", "inverted_bottleneck")
# The size of the convolutions that make fewer keys and values, which no published model changes.
_REDUCTION = 3
# The factor of the features between the two convolutions that join the maps of the last stages.
_FUSION = 2
_MOST = 2**15


class MobileNetConvolution(NamedTuple):
    """A convolution of a MobileNet.

    Fields:
        name: str, of its layer.
        size: int, height and width of its kernel.
        inputs, outputs: ints, its features.
        grid: ints, rows and columns of its output for an image of the usual size.
        step: int, its stride.
        depthwise: bool, whether each feature is convolved by itself.
        norm: bool, whether an RMS norm follows.
        activated: bool, whether an activation follows the norm.
    """

    name: str
    size: int
    inputs: int
    outputs: int
    grid: tuple[int, int]
    step: int = 1
    depthwise: bool = False
    norm: bool = True
    activated: bool = False


class MobileNetBlock(NamedTuple):
    """A block of a MobileNet.

    Fields:
        name: str, what the names of its layers begin with.
        convolutions: tuple of `MobileNetConvolution`, in the order of the computation. A block of
            attention has those of its queries, keys, values and output.
        features: int, of its output.
        adds: bool, whether its input is added to its output.
        scaled: bool, whether a trained factor for each feature follows.
        stage: `MobileNetStage` of a block of attention, which has a norm before it; or None.
    """

    name: str
    convolutions: tuple[MobileNetConvolution, ...]
    features: int
    adds: bool
    scaled: bool
    stage: "MobileNetStage | None" = None


@part
class MobileNetStage(Part):
    """A stage of a MobileNet, whose first block halves the rows and columns of the map.

    Its blocks are followed by pairs of a block of attention and an inverted bottleneck of
    convolutions of single places.
    """

    dim: int = option("features of the map.", least=1, most=_MOST)
    kernel_sizes: tuple | list = option(
        'height and width of the first kernel of each block: of `"edge_residual"` the one that '
        'expands, of `"inverted_bottleneck"` one of each feature by itself, or 0 for none.'
    )
    expansions: tuple | list = option("factor of the features within each block.")
    block: str = option(
        'the kind of the blocks: `"inverted_bottleneck"`, whose depthwise convolutions are between '
        'an expansion and a projection of single places (MobileNetV4), or `"edge_residual"`, with '
        "one full convolution in place of the expansion and the depthwise ones.",
        "inverted_bottleneck",
        choices=BLOCKS,
    )
    halving_size: int = option(
        "height and width of the kernel with a stride, between the expansion and the projection of "
        "a first inverted bottleneck.",
        5,
        least=1,
        most=63,
    )
    attentions: int = option("number of pairs behind the blocks.", 0, least=0, most=2**10)
    num_heads: int = option("number of query heads of the attention.", 1, least=1, most=_MOST)
    head_dim: int = option("width of a head, and of the one head of keys.", 64, least=1, most=_MOST)
    key_stride: int = option(
        "rows and columns of places that share a key and a value.", 1, least=1, most=64
    )
    pair_expansion: int = option(
        "factor of the features within the bottleneck of a pair.", 2, least=1, most=64
    )

    def check(self):
        sizes, factors = self.kernel_sizes, self.expansions
        edge = self.block == "edge_residual"
        fits = all(type(n) is int and edge <= n <= 63 and (n % 2 or not n) for n in sizes)
        fits = fits and all(type(n) is int and 1 <= n <= 64 for n in factors)
        if not fits or not 1 <= len(sizes) == len(factors) <= 2**10:
            raise ValueError(
                "`kernel_sizes` and `expansions` of a stage must have a number for each block, odd "
                f"sizes up to 63{'' if edge else ', or 0,'} and factors from 1 to 64, received "
                f"{shorten(sizes)} and {shorten(factors)}."
            )
        if self.halving_size % 2 == 0:
            raise ValueError(f"`halving_size` must be odd, received {self.halving_size}.")
        if self.num_heads * self.head_dim > _MOST:
            raise ValueError(
                f"`num_heads` times `head_dim` must be at most {_MOST:,}, received "
                f"{self.num_heads} and {self.head_dim}."
            )

    def blocks(self, name: str, before: int, grid: tuple[int, int]) -> Iterator[MobileNetBlock]:
        """Return the blocks.

        Args:
            name: str, what the names of the blocks begin with.
            before: int, features of the map before the stage.
            grid: ints, its rows and columns.
        """
        edge, features = self.block == "edge_residual", before
        sizes = zip(self.kernel_sizes, self.expansions, strict=True)
        for number, (size, factor) in enumerate(sizes):
            own, halves = f"{name}_block_{number}", not number
            inner = factor * features
            make = self._edge_residual if edge else self._bottleneck
            found = make(own, size, features, inner, grid, halves)
            yield MobileNetBlock(own, found, self.dim, not halves, not edge)
            features, grid = self.dim, found[-1].grid
        inner = self.pair_expansion * self.dim
        for number in range(len(self.kernel_sizes), self.num_blocks, 2):
            own = f"{name}_block_{number}"
            yield MobileNetBlock(own, self._attention(own, grid), self.dim, True, True, self)
            own = f"{name}_block_{number + 1}"
            found = self._bottleneck(own, 0, self.dim, inner, grid, False)
            yield MobileNetBlock(own, found, self.dim, True, True)

    @property
    def num_blocks(self) -> int:
        """Number of blocks, including those of the pairs."""
        return len(self.kernel_sizes) + 2 * self.attentions

    def _edge_residual(self, name, size, features, inner, grid, halves):
        """Return the convolutions of an edge residual."""
        step, after = (2, halved(grid)) if halves else (1, grid)
        first = MobileNetConvolution(
            f"{name}_expansion", size, features, inner, after, step, activated=True
        )
        return first, MobileNetConvolution(f"{name}_projection", 1, inner, self.dim, after)

    def _bottleneck(self, name, size, features, inner, grid, halves):
        """Return the convolutions of an inverted bottleneck."""
        found, after = [], grid
        if size:
            sizes = size, features, features
            found.append(MobileNetConvolution(f"{name}_depthwise", *sizes, grid, depthwise=True))
        found.append(
            MobileNetConvolution(f"{name}_expansion", 1, features, inner, grid, activated=True)
        )
        if halves:
            sizes, after = (self.halving_size, inner, inner), halved(grid)
            values = {"depthwise": True, "activated": True}
            found.append(MobileNetConvolution(f"{name}_halving", *sizes, after, 2, **values))
        found.append(MobileNetConvolution(f"{name}_projection", 1, inner, self.dim, after))
        return tuple(found)

    def _attention(self, name: str, grid: tuple[int, int]) -> tuple[MobileNetConvolution, ...]:
        """Return the convolutions of a block of attention."""
        inner, plain, fewer = self.num_heads * self.head_dim, {"norm": False}, self.keys_of(grid)
        found = [MobileNetConvolution(f"{name}_query", 1, self.dim, inner, grid, **plain)]
        for each in ("key", "value"):
            if self.key_stride > 1:
                sizes = _REDUCTION, self.dim, self.dim
                values = {"step": self.key_stride, "depthwise": True}
                own = f"{name}_{each}_reduction"
                found.append(MobileNetConvolution(own, *sizes, fewer, **values))
            sizes = 1, self.dim, self.head_dim
            found.append(MobileNetConvolution(f"{name}_{each}", *sizes, fewer, **plain))
        found.append(MobileNetConvolution(f"{name}_output", 1, inner, self.dim, grid, **plain))
        return tuple(found)

    def keys_of(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of the keys for those of a map."""
        rows, columns = (-(-n // self.key_stride) for n in grid)
        return rows, columns


def _stage(dim: int, sizes: tuple[int, ...], factors: tuple[int, ...], **values):
    return MobileNetStage(dim=dim, kernel_sizes=sizes, expansions=factors, **values)


@part
class MobileNetV5StemConfig(ImageStemConfig, kind="mobilenet_v5"):
    """`layers.stems.MobileNetV5Stem`: a MobileNetV5, the images of Gemma 3n.

    The maps of the last two stages are joined, and averaged to a grid of states. All norms are RMS
    norms with the epsilon of the side's block, and all padding is that of TensorFlow's `"same"`.
    The defaults are those of timm's `mobilenetv5_300m_enc`.
    """

    is_whole: ClassVar[bool] = True

    image_size: tuple | list = option("height and width of an image.", (768, 768))
    filters: int = option("features of the first convolution.", 64, least=1, most=_MOST)
    stages: tuple[MobileNetStage, ...] = option(
        "the stages, two or more.",
        (
            _stage(128, (3, 3, 3), (4, 4, 4), block="edge_residual"),
            _stage(256, (3, 5, 3, 5, 3), (6, 4, 4, 4, 4)),
            _stage(
                640, (*(5,) * 8, 0), (6, *(4,) * 7, 1),
                attentions=14, num_heads=12, head_dim=64, key_stride=2,
            ),
            _stage(1280, (5,), (6,), attentions=19, num_heads=16, head_dim=96),
        ),
    )  # fmt: skip
    state_grid: tuple | list = option("rows and columns of the states.", (16, 16))

    def check(self):
        super().check()
        grid = self.state_grid
        if len(grid) != 2 or not all(type(n) is int and 1 <= n <= 2**10 for n in grid):
            raise ValueError(
                "`state_grid` of the stem must be two integers from 1 to 1,024, rows and columns, "
                f"received {shorten(grid)}."
            )
        if not 2 <= len(self.stages) <= 8:
            raise ValueError(f"The stem must have 2 to 8 `stages`, received {len(self.stages)}.")
        count = sum(stage.num_blocks for stage in self.stages)
        if count > 2**10:
            raise ValueError(f"The stages must have at most 1,024 blocks, received {count:,}.")
        self.check_size(self.image_size)

    def check_size(self, image_size: tuple[int, int]) -> None:
        """Raise ValueError unless the places of an image form squares that are states."""
        pairs = zip(self.joined_grid(image_size), self.state_grid, strict=True)
        if any(places % states for places, states in pairs):
            rows, columns = self.joined_grid(image_size)
            raise ValueError(
                f"An image of {' x '.join(map(str, image_size))} pixels has a map of {rows} x "
                f"{columns} places, which cannot be averaged to a grid of "
                f"{' x '.join(map(str, self.state_grid))} states: its rows and columns must be "
                "multiples of these."
            )

    def joined_grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of the map before the last stage."""
        for _ in range(len(self.stages)):
            image_size = halved(image_size)
        return image_size

    def grid(self, image_size):
        return tuple(self.state_grid)

    @property
    def num_states(self):
        return math.prod(self.state_grid)

    @property
    def first_convolution(self) -> MobileNetConvolution:
        """The convolution before the first stage, which has a bias."""
        features = self.num_channels, self.filters
        grid = halved(self.image_size)
        return MobileNetConvolution("input_convolution", 3, *features, grid, 2, activated=True)

    @functools.cached_property
    def blocks_of_stages(self) -> tuple[tuple[MobileNetBlock, ...], ...]:
        """The blocks of each stage."""
        found, features = [], self.filters
        grid = self.first_convolution.grid
        for i, stage in enumerate(self.stages):
            found.append(tuple(stage.blocks(f"input_stage_{i}", features, grid)))
            features, grid = stage.dim, found[-1][-1].convolutions[-1].grid
        return tuple(found)

    @property
    def blocks(self) -> tuple[MobileNetBlock, ...]:
        """The blocks of all stages."""
        return tuple(block for each in self.blocks_of_stages for block in each)

    @property
    def joined_features(self) -> int:
        """Features of the joined maps of the last two stages."""
        return self.stages[-2].dim + self.stages[-1].dim

    @functools.cached_property
    def convolutions(self) -> tuple[MobileNetConvolution, ...]:
        """All convolutions but the last one, whose output has the width of the states."""
        inputs, grid = self.joined_features, self.joined_grid(self.image_size)
        fusion = MobileNetConvolution(
            "input_fusion_expansion", 1, inputs, _FUSION * inputs, grid, activated=True
        )
        within = (each for block in self.blocks for each in block.convolutions)
        return (self.first_convolution, *within, fusion)

    @property
    def weights(self):
        found: list[Weight] = []
        for each in self.convolutions:
            size, outputs = f"size_{each.size}", f"features_{each.outputs}"
            axes = (outputs,) if each.depthwise else (f"features_{each.inputs}", outputs)
            found += weight_of(f"{each.name}/kernel", size, size, *axes)
            if each.name == self.first_convolution.name:
                found += weight_of(f"{each.name}/bias", outputs)
            if each.norm:
                found += norm_of(f"{each.name}_norm", "rms_norm", outputs)
        for block in self.blocks:
            features = f"features_{block.features}"
            if block.stage is not None:
                found += norm_of(f"{block.name}_norm", "rms_norm", features)
            if block.scaled:
                found += weight_of(f"{block.name}_scale", features)
        last = f"features_{_FUSION * self.joined_features}"
        found += weight_of("input_projection/kernel", "size_1", "size_1", last, "embedding_dim")
        for name in ("input_projection_norm", "input_norm"):
            found += norm_of(name, "rms_norm", "embedding_dim")
        return tuple(found)

    def sizes(self, width):
        made = {"size_1": 1}
        for each in self.convolutions:
            made |= {f"size_{each.size}": each.size}
            made |= {f"features_{n}": n for n in (each.inputs, each.outputs)}
        return made

    @property
    def products(self):
        counts = {f"{each.name}/kernel": math.prod(each.grid) for each in self.convolutions}
        joined = math.prod(self.joined_grid(self.image_size))
        return {**counts, "input_projection/kernel": joined}

    @property
    def pair_products(self):
        total, grid = 0, self.first_convolution.grid
        for stage in self.stages:
            grid = halved(grid)
            pairs = math.prod(grid) * math.prod(stage.keys_of(grid))
            total += stage.attentions * 2 * pairs * stage.num_heads * stage.head_dim
        return total

    @property
    def kept_numbers(self):
        return sum(
            math.prod(each.grid) * each.outputs * (1 + each.norm + each.activated)
            for each in self.convolutions
        )
