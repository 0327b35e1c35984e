"""Config of the convolutional network that makes the states of an image."""

import math
from typing import ClassVar, NamedTuple

from keras_transformer.config.inputs import ImageStemConfig
from keras_transformer.config.options import option, part
from keras_transformer.config.weight import Weight, dense_of, weight_of
from keras_transformer.support.checking import shorten

__all__ = ["ResNetStemConfig"]

# A bottleneck is narrower than its output by this factor.
NARROWING = 4


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
    """`layers.stems.ResNetStem`: a ResNet of bottlenecks with frozen batch norms (DETR).

    Each place of the last map is a state. Each attention adds the sines and cosines of the row and
    the column of a state to its queries and keys.
    """

    attention_positions: ClassVar[bool] = True

    image_size: tuple | list = option(
        "usual height and width of an image, for plans; images may have any size.", (800, 1333)
    )
    filters: int = option("features of the first convolution.", 64, least=1, most=2**15)
    widths: tuple | list = option(
        "features of the output of each stage, multiples of 4.", (256, 512, 1024, 2048)
    )
    depths: tuple | list = option("number of bottlenecks of each stage.", (3, 4, 6, 3))

    def check(self):
        super().check()
        for name, each in (("widths", NARROWING), ("depths", 1)):
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
                f"1,024 bottlenecks, received {shorten(self.widths)} and {shorten(self.depths)}."
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
    def num_states(self):
        return math.prod(self.grid(self.image_size))

    @property
    def convolutions(self) -> tuple[ResNetConvolution, ...]:
        """All convolutions but the projection to the states, bottleneck by bottleneck."""
        grid = halved(self.image_size)
        found = [
            ResNetConvolution("input_convolution", 7, self.num_channels, self.filters, 2, grid)
        ]
        grid, before = halved(grid), self.filters
        for stage, (width, depth) in enumerate(zip(self.widths, self.depths, strict=True)):
            for block in range(depth):
                name, inner = f"input_stage_{stage}_block_{block}", width // NARROWING
                step, wide = 2 if stage and not block else 1, grid
                grid = halved(grid) if step == 2 else grid
                found += [
                    ResNetConvolution(f"{name}_convolution_0", 1, before, inner, 1, wide),
                    ResNetConvolution(f"{name}_convolution_1", 3, inner, inner, step, grid),
                    ResNetConvolution(f"{name}_convolution_2", 1, inner, width, 1, grid),
                ]
                if before != width or step != 1:
                    found.append(
                        ResNetConvolution(f"{name}_shortcut", 1, before, width, step, grid)
                    )
                before = width
        return tuple(found)

    @property
    def weights(self):
        found: list[Weight] = []
        for name, size, inputs, outputs, _, _ in self.convolutions:
            axes = (f"size_{size}", f"size_{size}", f"features_{inputs}", f"features_{outputs}")
            found += weight_of(f"{name}/kernel", *axes)
            for part_ in ("gamma", "beta", "moving_mean", "moving_variance"):
                found += weight_of(f"{name}_frozen_norm/{part_}", axes[-1])
        last = f"features_{self.widths[-1]}"
        return (*found, *dense_of("input_projection", last, "embedding_dim"))

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
