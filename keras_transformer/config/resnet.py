"""Config of the convolutional network that makes the states of an image."""

import math
from typing import NamedTuple

from keras_transformer.config.inputs import ImageStemConfig
from keras_transformer.config.options import option, part
from keras_transformer.config.weight import Weight, dense_of, norm_of, weight_of
from keras_transformer.support.checking import shorten

__all__ = ["ResNetStemConfig"]

# A bottleneck is narrower than its output by this factor.
NARROWING = 4
VARIANTS = ("b", "d")
BLOCKS = ("bottleneck", "basic")
POSITIONS = ("shares", "counts")


class ResNetConvolution(NamedTuple):
    """A convolution of a ResNet, which a frozen batch norm follows.

    Fields:
        name: str, of its layer.
        size: int, height and width of its kernel.
        inputs, outputs: ints, its features.
        step: int, its stride.
        grid: ints, rows and columns of its output for an image of the usual size.
    """

    name: str
    size: int
    inputs: int
    outputs: int
    step: int
    grid: tuple[int, int]


def halved(size: tuple[int, int]) -> tuple[int, int]:
    """Return the rows and columns that a stride of 2 leaves."""
    rows, columns = (-(-n // 2) for n in size)
    return rows, columns


@part
class ResNetStemConfig(ImageStemConfig, kind="resnet"):
    """`layers.stems.ResNetStem`: a ResNet with frozen batch norms (DETR, RT-DETR).

    Each place of the last map is a state. Each attention adds the sines and cosines of the row and
    the column of a state to its queries and keys. A head may read the maps of earlier stages.
    """

    image_size: tuple | list = option(
        "usual height and width of an image, for plans; images may have any size.", (800, 1333)
    )
    filters: int = option("features of the first convolution.", 64, least=1, most=2**15)
    widths: tuple | list = option(
        "features of the output of each stage, for bottlenecks multiples of 4.",
        (256, 512, 1024, 2048),
    )
    depths: tuple | list = option("number of blocks of each stage.", (3, 4, 6, 3))
    block: str = option(
        'the convolutions of a block: a `"bottleneck"` of three, or `"basic"`, two of 3 x 3 '
        "(ResNet-18 and ResNet-34).",
        "bottleneck",
        choices=BLOCKS,
    )
    variant: str = option(
        'how the network becomes narrower: `"b"`, a first convolution of 7 x 7, and shortcuts with '
        'a stride; or `"d"`, three of 3 x 3, and shortcuts behind an average pooling (RT-DETR).',
        "b",
        choices=VARIANTS,
    )
    num_maps: int = option(
        "number of stages before the last one whose maps a head reads (RT-DETR).",
        0,
        least=0,
        most=8,
    )
    projection_norm: bool = option(
        "the projection to the states has a batch norm in place of a bias (RT-DETR).", False
    )
    positions: str = option(
        'what the sines and cosines are of: rows and columns as `"shares"` of the image without '
        'its padding (DETR), or their `"counts"`, for images without padding (RT-DETR).',
        "shares",
        choices=POSITIONS,
    )

    def check(self):
        super().check()
        multiple = NARROWING if self.block == "bottleneck" else 1
        for name, each in (("widths", multiple), ("depths", 1)):
            values = getattr(self, name)
            fits = all(type(n) is int and 1 <= n <= 2**15 and n % each == 0 for n in values)
            if not fits or not 1 <= len(values) <= 8:
                multiples = f", multiples of {each}" if each > 1 else ""
                raise ValueError(
                    f"`{name}` of the stem must be 1 to 8 integers from 1 to 32,768{multiples}, "
                    f"one for each stage, received {shorten(values)}."
                )
        if len(self.widths) != len(self.depths) or sum(self.depths) > 2**10:
            raise ValueError(
                "`widths` and `depths` of the stem must have a number for each stage, and at most "
                f"1,024 blocks, received {shorten(self.widths)} and {shorten(self.depths)}."
            )
        if self.num_maps >= len(self.widths):
            raise ValueError(
                f"`num_maps` must be below the number of stages, {len(self.widths)}, received "
                f"{self.num_maps}."
            )
        if self.variant == "d" and self.filters % 2:
            raise ValueError(
                f"`filters` of the stem must be even for variant='d', received {self.filters}."
            )

    def check_width(self, width: int) -> None:
        if width % 4:
            raise ValueError(
                "A stem of kind 'resnet' needs states whose width is a multiple of 4, half of it "
                f"for the sines and cosines of rows, received {width}."
            )

    def grid(self, image_size):
        for _ in range(1 + len(self.widths)):
            image_size = halved(image_size)
        return image_size

    @property
    def attention_positions(self):
        return True

    @property
    def num_states(self):
        return math.prod(self.grid(self.image_size))

    @property
    def map_widths(self) -> tuple[int, ...]:
        """Features of the maps that a head reads."""
        last = len(self.widths) - 1
        return tuple(self.widths[last - self.num_maps : last])

    def convolutions_of_block(
        self, stage: int, block: int, grid: tuple[int, int]
    ) -> tuple[ResNetConvolution, ...]:
        """Return the convolutions of a block, and its shortcut's if it has one as the last.

        Args:
            stage: int, number of the stage.
            block: int, number of the block in the stage.
            grid: ints, rows and columns of the input of the block.
        """
        name, width = f"input_stage_{stage}_block_{block}", self.widths[stage]
        before = width if block else (self.filters, *self.widths)[stage]
        step = 2 if stage and not block else 1
        after = halved(grid) if step == 2 else grid
        sizes = [(3, before, width, step, after), (3, width, width, 1, after)]
        if self.block == "bottleneck":
            inner = width // NARROWING
            sizes = [
                (1, before, inner, 1, grid),
                (3, inner, inner, step, after),
                (1, inner, width, 1, after),
            ]
        found = [
            ResNetConvolution(f"{name}_convolution_{i}", *each) for i, each in enumerate(sizes)
        ]
        first = self.variant == "d" and self.block == "basic" and not block
        if before != width or step != 1 or first:
            own = 1 if self.variant == "d" else step  # behind a pooling
            found.append(ResNetConvolution(f"{name}_shortcut", 1, before, width, own, after))
        return tuple(found)

    @property
    def first_convolutions(self) -> tuple[ResNetConvolution, ...]:
        """The convolutions before the first stage."""
        grid, channels, name = halved(self.image_size), self.num_channels, "input_convolution"
        if self.variant == "b":
            return (ResNetConvolution(name, 7, channels, self.filters, 2, grid),)
        half = self.filters // 2
        return (
            ResNetConvolution(name, 3, channels, half, 2, grid),
            ResNetConvolution(f"{name}_1", 3, half, half, 1, grid),
            ResNetConvolution(f"{name}_2", 3, half, self.filters, 1, grid),
        )

    @property
    def convolutions(self) -> tuple[ResNetConvolution, ...]:
        """All convolutions but the projection to the states, block by block."""
        found = list(self.first_convolutions)
        grid = halved(found[-1].grid)
        for stage, depth in enumerate(self.depths):
            for block in range(depth):
                found += self.convolutions_of_block(stage, block, grid)
                grid = found[-1].grid
        return tuple(found)

    @property
    def weights(self):
        found: list[Weight] = []
        for name, size, inputs, outputs, _, _ in self.convolutions:
            axes = (f"size_{size}", f"size_{size}", f"features_{inputs}", f"features_{outputs}")
            found += weight_of(f"{name}/kernel", *axes)
            for part_ in ("gamma", "beta", "moving_mean", "moving_variance"):
                found += weight_of(f"{name}_frozen_norm/{part_}", axes[-1])
        last, norm = f"features_{self.widths[-1]}", self.projection_norm
        found += dense_of("input_projection", last, "embedding_dim", bias=not norm)
        if norm:
            found += norm_of("input_projection_norm", "batch_norm", "embedding_dim")
        return tuple(found)

    def sizes(self, width):
        made = {}
        for _, size, inputs, outputs, _, _ in self.convolutions:
            made |= {f"size_{size}": size}
            made |= {f"features_{features}": features for features in (inputs, outputs)}
        return made

    @property
    def products(self):
        counts = {f"{each.name}/kernel": math.prod(each.grid) for each in self.convolutions}
        return {**counts, "input_projection/kernel": self.num_states}
